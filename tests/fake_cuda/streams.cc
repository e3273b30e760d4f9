// Streams, each a thread that does one task after the other, and the events
// that order them.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"

namespace tfring::fake_cuda {

class Stream {
 public:
  Stream(Context* context, StreamKind kind) : context_(context), kind_(kind) {}

  // Does what it has been asked for, and goes.
  void End() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }

  Context* context() const { return context_; }

  void Enqueue(std::function<int()> task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  void WaitUntilIdle() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty() && !busy_; });
  }

  // Its thread.
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !tasks_.empty() || ends_; });
      if (tasks_.empty()) break;
      const std::function<int()> task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      Delay();
      // What follows an error is not done.
      const int result = context_->error == 0 ? task() : 0;
      if (int none = 0; result != 0) {
        context_->error.compare_exchange_strong(none, result);
      }
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

 private:
  // Now long and now short, and otherwise in every stream.
  void Delay() {
    const Options& options = GetOptions();
    while ((options.held == kind_ || options.held_device == context_->device) &&
           context_->error == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    const int delay_us = options.delay_us;
    if (delay_us == 0) return;
    random_ = random_ * 6364136223846793005 + 1442695040888963407;
    std::this_thread::sleep_for(std::chrono::microseconds(
        static_cast<int64_t>((random_ >> 33) % (uint64_t{1} + delay_us))));
  }

  static uint64_t NextSeed() {
    static std::atomic<uint64_t> streams{0};
    return (static_cast<uint64_t>(getpid()) + ++streams) * 2654435761;
  }

  Context* const context_;
  const StreamKind kind_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<int()>> tasks_;
  bool busy_ = false;
  bool ends_ = false;
  uint64_t random_ = NextSeed();
};

namespace {

std::mutex streams_mutex;
// Lives for ever, as streams do that a test leaves.
std::condition_variable& stream_has_gone = *new std::condition_variable;

// Whose thread runs; the others have been destroyed and have work left.
struct Streams {
  std::map<Stream*, std::shared_ptr<Stream>> running;
  std::set<Stream*> usable;
  std::map<Context*, Stream*> null_streams;
};
Streams& AllStreams() {
  static auto* const streams = new Streams();
  return *streams;
}

std::mutex events_mutex;
std::set<Event*>& Events() {
  static auto* const events = new std::set<Event*>();
  return *events;
}

// REQUIRES: streams_mutex is held.
Stream* NewStreamLocked(Context* context, StreamKind kind) {
  const auto made = std::make_shared<Stream>(context, kind);
  Stream* const stream = made.get();
  AllStreams().running[stream] = made;
  AllStreams().usable.insert(stream);
  std::thread([stream] {
    stream->Run();
    const std::lock_guard<std::mutex> lock(streams_mutex);
    AllStreams().running.erase(stream);
    stream_has_gone.notify_all();
  }).detach();
  return stream;
}

// Numbers may wrap round.
bool HasCome(const std::atomic<uint32_t>& value, uint32_t number) {
  return static_cast<int32_t>(value - number) >= 0;
}

// The bug that tests must be able to see.
bool IsIgnored() {
  static std::atomic<int> waits{0};
  const int ignored = GetOptions().ignore_waits;
  return ignored > 0 && ++waits % ignored == 0;
}

// Ranks that are threads see a number of shared memory at addresses of their
// own.  The mutex tells ThreadSanitizer that it is one.
std::mutex numbers_mutex;

int WaitFor(const std::atomic<uint32_t>& value, uint32_t number,
            const Context& context) {
  const auto has_come = [&] {
    const std::lock_guard<std::mutex> lock(numbers_mutex);
    return HasCome(value, number);
  };
  while (!has_come() && context.error == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return kSuccess;
}

}  // namespace

Stream* NewStream() {
  const std::lock_guard<std::mutex> lock(streams_mutex);
  return NewStreamLocked(CurrentContext(), kOtherStream);
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
  stream->End();
}

void EndStreams(Context* context) {
  std::unique_lock<std::mutex> lock(streams_mutex);
  Streams& streams = AllStreams();
  streams.null_streams.erase(context);
  for (const auto& [stream, owned] : streams.running) {
    if (stream->context() != context) continue;
    streams.usable.erase(stream);
    stream->End();
  }
  stream_has_gone.wait(lock, [&] {
    for (const auto& [stream, owned] : streams.running) {
      if (stream->context() == context) return false;
    }
    return true;
  });
}

void Enqueue(Stream* stream, std::function<int()> task) {
  stream->Enqueue(std::move(task));
}

void WaitUntilIdle(Stream* stream) { stream->WaitUntilIdle(); }

void WaitUntilAllIdle() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard<std::mutex> lock(streams_mutex);
    for (const auto& [stream, owned] : AllStreams().running) {
      if (stream->context() == CurrentContext()) streams.push_back(owned);
    }
  }
  // Other threads go on meanwhile: a stream may wait for one of theirs.
  for (const auto& stream : streams) stream->WaitUntilIdle();
}

Event* NewEvent(bool timed) {
  auto* const event = new Event{CurrentContext(), timed};
  const std::lock_guard<std::mutex> lock(events_mutex);
  Events().insert(event);
  return event;
}

int FindEvent(void* handle, Event** event) {
  const std::lock_guard<std::mutex> lock(events_mutex);
  *event = static_cast<Event*>(handle);
  return Events().count(*event) > 0 ? kSuccess : kInvalidHandle;
}

void Destroy(Event* event) {
  const std::lock_guard<std::mutex> lock(events_mutex);
  Events().erase(event);
  delete event;
}

int Record(Event& event, Stream* stream) {
  if (event.context != stream->context()) return kInvalidHandle;
  const uint32_t ticket = ++event.state->recorded;
  stream->Enqueue([state = event.state, ticket] {
    if (HasCome(state->done, ticket)) return kSuccess;
    state->done_ns = std::chrono::nanoseconds(
                         std::chrono::steady_clock::now().time_since_epoch())
                         .count();
    state->done = ticket;
    return kSuccess;
  });
  return kSuccess;
}

void Await(const Event& event, Stream* stream) {
  if (IsIgnored()) return;
  const uint32_t ticket = event.state->recorded;
  const Context& context = *stream->context();
  stream->Enqueue([state = event.state, ticket, &context] {
    return WaitFor(state->done, ticket, context);
  });
}

void WaitUntilDone(const Event& event) {
  const std::shared_ptr<EventState> state = event.state;
  const Context& context = *event.context;
  WaitFor(state->done, state->recorded, context);
}

void Write(std::atomic<uint32_t>& value, uint32_t number, Stream* stream) {
  stream->Enqueue([&value, number] {
    const std::lock_guard<std::mutex> lock(numbers_mutex);
    if (static_cast<int32_t>(number - value.exchange(number)) < 0) {
      ++GetCounts().numbers_gone_back;
    }
    return kSuccess;
  });
}

void Await(const std::atomic<uint32_t>& value, uint32_t number,
           Stream* stream) {
  if (IsIgnored()) return;
  const Context& context = *stream->context();
  stream->Enqueue(
      [&value, number, &context] { return WaitFor(value, number, context); });
}

}  // namespace tfring::fake_cuda
