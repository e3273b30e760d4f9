// Streams, each a thread that does one task after the other, and the events
// that order them.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "tests/fake_cuda/fake_cuda.h"

namespace tfring::fake_cuda {

class Stream {
 public:
  explicit Stream(StreamKind kind)
      : context_(CurrentContext()), kind_(kind), thread_([this] { Run(); }) {}

  ~Stream() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void* context() const { return context_; }

  void Enqueue(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  void WaitUntilIdle() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty() && !busy_; });
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !tasks_.empty() || ends_; });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      Delay();
      task();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  // Now long and now short, and otherwise in every stream.
  void Delay() {
    while (GetOptions().held == kind_) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    const int delay_us = GetOptions().delay_us;
    if (delay_us == 0) return;
    random_ = random_ * 1103515245 + 12345;
    std::this_thread::sleep_for(
        std::chrono::microseconds((random_ >> 16) % (delay_us + 1)));
  }

  static uint32_t NextSeed() {
    static std::atomic<uint32_t> streams{0};
    return (static_cast<uint32_t>(getpid()) + ++streams) * 2654435761;
  }

  void* const context_;
  const StreamKind kind_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false;
  bool ends_ = false;
  uint32_t random_ = NextSeed();
  std::thread thread_;  // last: it uses all of the above
};

namespace {

std::mutex streams_mutex;

std::set<Stream*>& Streams() {
  static auto* const streams = new std::set<Stream*>();
  return *streams;
}

// Tickets may wrap round.
bool HasCome(const EventState& state, uint32_t ticket) {
  return static_cast<int32_t>(state.done - ticket) >= 0;
}

}  // namespace

Stream* NewStream(StreamKind kind) {
  auto* const stream = new Stream(kind);
  std::lock_guard<std::mutex> lock(streams_mutex);
  Streams().insert(stream);
  return stream;
}

void Delete(Stream* stream) {
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    Streams().erase(stream);
  }
  delete stream;
}

void Enqueue(Stream* stream, std::function<void()> task) {
  stream->Enqueue(std::move(task));
}

void WaitUntilIdle(Stream* stream) { stream->WaitUntilIdle(); }

void WaitUntilAllIdle() {
  std::lock_guard<std::mutex> lock(streams_mutex);
  for (Stream* const stream : Streams()) {
    if (stream->context() == CurrentContext()) stream->WaitUntilIdle();
  }
}

void Record(Event& event, Stream* stream) {
  const uint32_t ticket = ++event.state->recorded;
  stream->Enqueue([state = event.state, ticket] {
    if (!HasCome(*state, ticket)) state->done = ticket;
  });
}

void Await(const Event& event, Stream* stream) {
  static std::atomic<int> waits{0};
  const int ignored = GetOptions().ignore_waits;
  if (ignored > 0 && ++waits % ignored == 0) return;
  const uint32_t ticket = event.state->recorded;
  stream->Enqueue([state = event.state, ticket] {
    while (!HasCome(*state, ticket)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
}

}  // namespace tfring::fake_cuda
