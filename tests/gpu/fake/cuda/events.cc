// Events and numbers that let streams wait for each other.
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "tests/gpu/fake/cuda/fake_cuda.h"

namespace tfring::fake_cuda {
namespace {

std::mutex events_mutex;
std::set<Event*>& Events() {
  static auto* const events = new std::set<Event*>();
  return *events;
}

// Numbers may wrap round.
bool HasCome(const std::atomic<uint32_t>& value, uint32_t number) {
  return static_cast<int32_t>(value - number) >= 0;
}

// The bug that tests must be able to see.
bool IsIgnored(const Stream* stream) {
  static std::atomic<int> waits{0};
  const int ignored = GetOptions().ignore_waits;
  return ignored > 0 && KindOf(stream) != kOrdinaryStream &&
         ++waits % ignored == 0;
}

// Ranks that are threads see a number of shared memory at addresses of their
// own.  The mutex tells ThreadSanitizer that it is one.
std::mutex numbers_mutex;

template <typename Waiting>
int WaitFor(const std::atomic<uint32_t>& value, uint32_t number,
            const Context& context) {
  const auto has_come = [&] {
    const std::lock_guard<std::mutex> lock(numbers_mutex);
    return HasCome(value, number);
  };
  if (has_come()) return kSuccess;
  const Waiting waiting;
  while (!has_come() && context.error == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return kSuccess;
}

}  // namespace

Event* NewEvent() {
  auto* const event = new Event{CurrentContext()};
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
  if (event.context != ContextOf(stream)) return kInvalidHandle;
  const uint32_t ticket = ++event.state->recorded;
  Enqueue(stream, [state = event.state, ticket] {
    if (HasCome(state->done, ticket)) return kSuccess;
    state->done = ticket;
    return kSuccess;
  });
  return kSuccess;
}

void Await(const Event& event, Stream* stream) {
  if (IsIgnored(stream)) return;
  const uint32_t ticket = event.state->recorded;
  const Context& context = *ContextOf(stream);
  Enqueue(stream, [state = event.state, ticket, &context] {
    return WaitFor<Resting>(state->done, ticket, context);
  });
}

void WaitUntilDone(const Event& event) {
  const std::shared_ptr<EventState> state = event.state;
  const Context& context = *event.context;
  WaitFor<WaitingHost>(state->done, state->recorded, context);
}

void Write(std::atomic<uint32_t>& value, uint32_t number, Stream* stream) {
  Enqueue(stream, [&value, number] {
    const std::lock_guard<std::mutex> lock(numbers_mutex);
    if (static_cast<int32_t>(number - value.exchange(number)) < 0) {
      ++GetCounts().numbers_gone_back;
    }
    return kSuccess;
  });
}

void Await(const std::atomic<uint32_t>& value, uint32_t number,
           Stream* stream) {
  if (IsIgnored(stream)) return;
  const Context& context = *ContextOf(stream);
  Enqueue(stream, [&value, number, &context] {
    return WaitFor<Resting>(value, number, context);
  });
}

}  // namespace tfring::fake_cuda
