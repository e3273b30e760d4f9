#include "tests/cpp/fibers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tfring {
namespace {

constexpr size_t kStackBytes = 256 << 10;

}  // namespace

std::vector<int> Fibers::Run(const std::function<void(int)>& body) {
  body_ = &body;
  running_ = this;
  left_ = 0;
  for (size_t i = 0; i < fibers_.size(); ++i) {
    if (!fibers_[i].is_dead) Begin(static_cast<int>(i));
  }
  while (left_ > 0 && !events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    Handle(event);
  }
  std::vector<int> waiting;
  for (size_t i = 0; i < fibers_.size(); ++i) {
    if (!fibers_[i].is_over) waiting.push_back(static_cast<int>(i));
  }
  return waiting;
}

void Fibers::Wake(int fiber, double time) {
  events_.push(
      {std::max(time, now_), next_event_++, fiber, fibers_[fiber].turn});
}

void Fibers::WakeAll() {
  for (size_t i = 0; i < fibers_.size(); ++i) Wake(static_cast<int>(i), now_);
}

void Fibers::Sleep(double seconds) {
  for (const double end = now_ + seconds; now_ < end;) {
    Wake(current_, end);
    Yield();
  }
}

void Fibers::At(int fiber, double time, std::function<void()> call) {
  calls_[next_event_] = std::move(call);
  events_.push({time, next_event_++, fiber, kCall});
}

void Fibers::Kill(int fiber, double time) {
  events_.push({time, next_event_++, fiber, kDeath});
}

void Fibers::Main(int fiber) {
  (*running_->body_)(fiber);
  running_->fibers_[fiber].is_over = true;
  --running_->left_;
  running_->Yield();
}

void Fibers::Begin(int i) {
  Fiber& fiber = fibers_[i];
  if (fiber.stack == nullptr) fiber.stack.reset(new char[kStackBytes]);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, reinterpret_cast<void (*)()>(Main), 1, i);
  fiber.is_over = false;
  ++left_;
  Wake(i, now_);
}

void Fibers::Handle(const Event& event) {
  if (event.turn == kCall) {
    Call(event);
  } else if (event.turn == kDeath) {
    now_ = std::max(now_, event.time);
    Die(event.fiber);
  } else if (event.turn == fibers_[event.fiber].turn) {
    now_ = event.time;
    Resume(event.fiber);
  }
}

void Fibers::Resume(int i) {
  Fiber& fiber = fibers_[i];
  ++fiber.turn;
  if (fiber.is_over) return;
  current_ = i;
  swapcontext(&scheduler_, &fiber.context);
}

void Fibers::Call(const Event& event) {
  const auto call = calls_.extract(event.number);
  if (fibers_[event.fiber].is_over) return;
  now_ = std::max(now_, event.time);
  call.mapped()();
  Wake(event.fiber, now_);
}

void Fibers::Die(int i) {
  Fiber& fiber = fibers_[i];
  fiber.is_dead = true;
  if (!std::exchange(fiber.is_over, true)) --left_;
  WakeAll();
}

}  // namespace tfring
