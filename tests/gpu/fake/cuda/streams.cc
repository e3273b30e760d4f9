// Streams, which run their tasks in order, and the queues with their threads.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/fake/cuda/fake_cuda.h"

namespace tfring::fake_cuda {
namespace {

struct Task {
  std::shared_ptr<Stream> stream;
  std::function<int()> run;
};

// A thread that runs the tasks of one or several streams in order.
class Queue {
 public:
  explicit Queue(Context* context) : context_(context) {}

  Context* context() const { return context_; }

  // Adds a user: a stream, or a context that shares the queue among streams.
  void Enter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++users_;
  }
  // Removes a user.  After the last one the queue finishes its tasks and ends.
  void Leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --users_;
    changed_.notify_all();
  }

  void Enqueue(std::shared_ptr<Stream> stream, std::function<int()> task);
  void WaitUntilIdle() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty(); });
  }
  void WaitUntilIdle(const Stream& stream);

  // Its thread.
  void Run();

 private:
  Context* const context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // the first of which runs
  int users_ = 0;
};

}  // namespace

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(Context* context, StreamKind kind, std::shared_ptr<Queue> queue)
      : context_(context), kind_(kind), queue_(std::move(queue)) {
    queue_->Enter();
  }
  ~Stream() { queue_->Leave(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Context* context() const { return context_; }
  StreamKind kind() const { return kind_; }
  void Enqueue(std::function<int()> task) {
    queue_->Enqueue(shared_from_this(), std::move(task));
  }
  void WaitUntilIdle() const { queue_->WaitUntilIdle(*this); }

  // Waits for a random time that differs between tasks and between streams.
  void Delay() {
    const Options& options = GetOptions();
    const auto is_held = [&] {
      return (options.held == kind_ ||
              options.held_device == context_->device) &&
             context_->error == 0;
    };
    if (is_held()) {
      const Resting resting;
      while (is_held()) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    const int delay_us = options.delay_us;
    if (delay_us == 0) return;
    random_ = random_ * 6364136223846793005 + 1442695040888963407;
    const auto us =
        static_cast<int64_t>((random_ >> 33) % (uint64_t{1} + delay_us));
    std::atomic<int64_t>& longest = GetCounts().longest_delay_us;
    for (int64_t known = longest;
         known < us && !longest.compare_exchange_weak(known, us);) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }

 private:
  static uint64_t NextSeed() {
    static std::atomic<uint64_t> streams{0};
    return (static_cast<uint64_t>(getpid()) + ++streams) * 2654435761;
  }

  Context* const context_;
  const StreamKind kind_;
  const std::shared_ptr<Queue> queue_;
  uint64_t random_ = NextSeed();
};

namespace {

void Queue::Enqueue(std::shared_ptr<Stream> stream, std::function<int()> task) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_full = [&] {
    const int depth = context_->device == 0 ? GetOptions().depth.load() : 0;
    return depth > 0 && tasks_.size() >= static_cast<size_t>(depth) &&
           context_->error == 0;
  };
  while (is_full()) changed_.wait_for(lock, std::chrono::milliseconds(1));
  if (tasks_.empty()) ++GetCounts().busy_queues;
  tasks_.push_back({std::move(stream), std::move(task)});
  changed_.notify_all();
}

void Queue::WaitUntilIdle(const Stream& stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] {
    return std::none_of(tasks_.begin(), tasks_.end(), [&](const Task& task) {
      return task.stream.get() == &stream;
    });
  });
}

void Queue::Run() {
  for (;;) {
    Task task;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !tasks_.empty() || users_ == 0; });
      if (tasks_.empty()) return;
      task.stream = tasks_.front().stream;
      task.run = std::move(tasks_.front().run);
    }
    task.stream->Delay();
    // Tasks after an error are skipped.
    const int result = context_->error == 0 ? task.run() : 0;
    if (int none = 0; result != 0) {
      context_->error.compare_exchange_strong(none, result);
    }
    task.run = nullptr;
    ++GetCounts().tasks;
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.pop_front();
    if (tasks_.empty()) --GetCounts().busy_queues;
    changed_.notify_all();
  }
}

std::mutex streams_mutex;
// Never destroyed, because a test may leave queues behind.
std::condition_variable& queue_has_gone = *new std::condition_variable;

// The queues that a context's streams share, by turns.
struct SharedQueues {
  std::vector<std::shared_ptr<Queue>> queues;
  size_t streams = 0;  // so far
};

struct Streams {
  // Queues with a running thread.
  std::map<Queue*, std::shared_ptr<Queue>> running;
  // Destroyed streams are not in this map; they are deleted after their last
  // task.
  std::map<Stream*, std::shared_ptr<Stream>> usable;
  std::map<Context*, Stream*> null_streams;
  std::map<Context*, SharedQueues> shared;
};
Streams& AllStreams() {
  static auto* const streams = new Streams();
  return *streams;
}

// Makes a queue with the caller as its user.  REQUIRES: streams_mutex is held.
std::shared_ptr<Queue> NewQueue(Context* context) {
  const auto made = std::make_shared<Queue>(context);
  Queue* const queue = made.get();
  AllStreams().running[queue] = made;
  queue->Enter();
  std::thread([queue] {
    queue->Run();
    const std::lock_guard<std::mutex> lock(streams_mutex);
    AllStreams().running.erase(queue);
    queue_has_gone.notify_all();
  }).detach();
  return made;
}

// REQUIRES: streams_mutex is held.
void EndShared(Context* context) {
  for (const auto& queue : AllStreams().shared[context].queues) queue->Leave();
  AllStreams().shared.erase(context);
}

// REQUIRES: streams_mutex is held.
Stream* NewStreamLocked(Context* context, StreamKind kind) {
  const auto count = static_cast<size_t>(GetOptions().queues);
  std::shared_ptr<Stream> stream;
  if (count == 0) {
    const std::shared_ptr<Queue> queue = NewQueue(context);
    stream = std::make_shared<Stream>(context, kind, queue);
    queue->Leave();
  } else {
    if (AllStreams().shared[context].queues.size() != count) {
      EndShared(context);
    }
    SharedQueues& shared = AllStreams().shared[context];
    while (shared.queues.size() < count) {
      shared.queues.push_back(NewQueue(context));
    }
    stream = std::make_shared<Stream>(context, kind,
                                      shared.queues[shared.streams++ % count]);
  }
  AllStreams().usable[stream.get()] = stream;
  return stream.get();
}

}  // namespace

Stream* NewStream(StreamKind kind) {
  const std::lock_guard<std::mutex> lock(streams_mutex);
  return NewStreamLocked(CurrentContext(), kind);
}

int FindStream(void* handle, Stream** stream) {
  ++GetCounts().stream_calls;
  const std::lock_guard<std::mutex> lock(streams_mutex);
  if (handle == nullptr) {
    Stream*& found = AllStreams().null_streams[CurrentContext()];
    if (found == nullptr) {
      found = NewStreamLocked(CurrentContext(), kNullStream);
    }
    *stream = found;
    return kSuccess;
  }
  *stream = static_cast<Stream*>(handle);
  const bool fits = AllStreams().usable.count(*stream) > 0 &&
                    (*stream)->context() == CurrentContext();
  return fits ? kSuccess : kInvalidHandle;
}

void Destroy(Stream* stream) {
  const std::lock_guard<std::mutex> lock(streams_mutex);
  AllStreams().usable.erase(stream);
}

void EndStreams(Context* context) {
  std::unique_lock<std::mutex> lock(streams_mutex);
  Streams& streams = AllStreams();
  streams.null_streams.erase(context);
  for (auto found = streams.usable.begin(); found != streams.usable.end();) {
    const bool is_its = found->second->context() == context;
    found = is_its ? streams.usable.erase(found) : std::next(found);
  }
  EndShared(context);
  queue_has_gone.wait(lock, [&] {
    for (const auto& [queue, owned] : streams.running) {
      if (queue->context() == context) return false;
    }
    return true;
  });
}

Context* ContextOf(const Stream* stream) { return stream->context(); }
StreamKind KindOf(const Stream* stream) { return stream->kind(); }

void Enqueue(Stream* stream, std::function<int()> task) {
  stream->Enqueue(std::move(task));
}

void WaitUntilIdle(Stream* stream) { stream->WaitUntilIdle(); }

void WaitUntilAllIdle() {
  std::vector<std::shared_ptr<Queue>> queues;
  {
    const std::lock_guard<std::mutex> lock(streams_mutex);
    for (const auto& [queue, owned] : AllStreams().running) {
      if (queue->context() == CurrentContext()) queues.push_back(owned);
    }
  }
  // Other threads go on meanwhile: a stream may wait for one of theirs.
  for (const auto& queue : queues) queue->WaitUntilIdle();
}

void MayWaitUntilAllIdle() {
  if (GetOptions().waits != 0) WaitUntilAllIdle();
}

}  // namespace tfring::fake_cuda
