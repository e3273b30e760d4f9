#include "tfring_ops/engine/statistics.h"

#include <algorithm>
#include <cstddef>

namespace tfring {
namespace {

constexpr size_t kMostNames = 10'000;

}  // namespace

void Statistics::BeginBucket(int64_t now_ns) {
  AdvanceTo(now_ns);
  ++running_;
}

void Statistics::EndBucket(int64_t now_ns, int64_t bytes) {
  AdvanceTo(now_ns);
  // The bucket may have begun before anything was counted.
  running_ = std::max(running_ - 1, 0);
  ++totals_.buckets;
  totals_.bytes += bytes;
}

void Statistics::BeginWait(int64_t now_ns) {
  AdvanceTo(now_ns);
  ++waiting_;
}

void Statistics::EndWait(int64_t now_ns) {
  AdvanceTo(now_ns);
  waiting_ = std::max(waiting_ - 1, 0);
  ++totals_.waits;
}

void Statistics::AddNegotiation(const std::string& name, int64_t duration_ns) {
  ++totals_.requests;
  totals_.negotiate_ns += duration_ns;
  // Bound the memory of names that never come again.
  if (names_.size() >= kMostNames) names_.clear();
  if (names_.insert(name).second) return;
  ++totals_.steps;
  names_ = {name};
}

void Statistics::Forget(int64_t now_ns) {
  AdvanceTo(now_ns);
  running_ = waiting_ = 0;
}

Statistics::Totals Statistics::totals(int64_t now_ns) {
  AdvanceTo(now_ns);
  return totals_;
}

void Statistics::AdvanceTo(int64_t now_ns) {
  const int64_t passed_ns = std::max<int64_t>(now_ns - since_ns_, 0);
  if (running_ > 0) {
    totals_.running_ns += passed_ns;
    if (waiting_ > 0) totals_.exposed_ns += passed_ns;
  }
  // Threads may get here in another order than that in which they read the
  // clock.
  since_ns_ = std::max(since_ns_, now_ns);
}

}  // namespace tfring
