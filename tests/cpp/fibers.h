// Fibers of one thread that wait for simulated moments.
//
// Not thread-safe, and not for sanitizers, which do not know about fibers.
#ifndef TFRING_TESTS_CPP_FIBERS_H_
#define TFRING_TESTS_CPP_FIBERS_H_

#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <unordered_map>
#include <vector>

namespace tfring {

class Fibers {
 public:
  explicit Fibers(int count) : fibers_(count) {}

  // Runs body(i) on each fiber i that is not dead.  Returns the fibers that
  // wait when no event is left.
  std::vector<int> Run(const std::function<void(int)>& body);

  double now() const { return now_; }
  int current() const { return current_; }
  bool IsDead(int fiber) const { return fibers_[fiber].is_dead; }

  // Returns when the calling fiber has been resumed.
  void Yield() { swapcontext(&fibers_[current_].context, &scheduler_); }
  // Resumes `fiber` at `time`, unless it has been resumed by then.
  void Wake(int fiber, double time);
  void WakeAll();
  // Returns when this much simulated time has passed.
  void Sleep(double seconds);

  // Calls `call` during a run, at `time` and on no fiber, and then resumes
  // `fiber`.  Does nothing if that fiber is dead or has ended.
  void At(int fiber, double time, std::function<void()> call);
  // Ends the fiber at `time`.
  void Kill(int fiber, double time);

 private:
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    int64_t turn = 0;  // counts how often it was resumed
    bool is_over = true;
    bool is_dead = false;
  };
  struct Event {
    double time;
    int64_t number;
    int fiber;
    // kCall, kDeath, or the fiber's turn: the event is void if the fiber has
    // been resumed since.
    int64_t turn;
    // Reversed, so that the earliest event comes first in a priority queue.
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  static constexpr int64_t kCall = -2, kDeath = -1;

  static void Main(int fiber);
  void Begin(int i);
  void Handle(const Event& event);
  void Resume(int i);
  void Call(const Event& event);
  void Die(int i);

  static inline Fibers* running_ = nullptr;
  std::vector<Fiber> fibers_;
  std::priority_queue<Event> events_;
  std::unordered_map<int64_t, std::function<void()>> calls_;  // by event
  ucontext_t scheduler_;
  const std::function<void(int)>* body_ = nullptr;
  double now_ = 0;
  int64_t next_event_ = 0;
  int current_ = 0;
  int left_ = 0;  // fibers that have not ended
};

}  // namespace tfring

#endif  // TFRING_TESTS_CPP_FIBERS_H_
