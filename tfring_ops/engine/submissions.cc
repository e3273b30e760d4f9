#include "tfring_ops/engine/submissions.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/engine/error_messages.h"

namespace tfring {
namespace {

// Bounds the memory of a script that gives each collective a new name.
constexpr size_t kMostChains = 4096;

}  // namespace

absl::Status Submissions::Add(TensorEntry& entry) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_.ok()) return closed_;
  CollectiveRequest& request = entry.request;
  if (request.name.empty()) {
    request.is_nameless = true;
    request.name =
        absl::StrCat(Name(request.kind), " ", ++nameless_[request.kind]);
  }
  if (!in_flight_.insert(request.name).second) return NameInUse(request);
  // A request without a name has one execution.
  if (entry.chain != nullptr && !request.is_nameless) TakePlace(entry);
  added_.push_back(std::move(entry));
  return absl::OkStatus();
}

void Submissions::TakePlace(TensorEntry& entry) {
  CollectiveRequest& request = entry.request;
  Chain::Place& place = entry.chain->places[request.process_set_id];
  if (place.chain.empty()) {
    place.chain = request.name;
    // Executions of a chain that some rank does not count are not compared.
    if (executions_.size() < kMostChains ||
        executions_.count(request.name) > 0) {
      place.execution = ++executions_[request.name];
    }
  }
  request.chain = place.chain;
  request.execution = place.execution;
}

std::vector<TensorEntry> Submissions::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(added_, {});
}

void Submissions::RestartNames() {
  std::lock_guard<std::mutex> lock(mutex_);
  nameless_.clear();
  executions_.clear();
}

void Submissions::Remove(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  in_flight_.erase(name);
}

void Submissions::Close(const absl::Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_.ok()) closed_ = reason;
}

absl::Status Submissions::closed() {
  std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

void Submissions::RequestShutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    shutdown_requested_ = true;
  }
  Wake();
}

bool Submissions::ShutdownRequested() {
  std::lock_guard<std::mutex> lock(mutex_);
  return shutdown_requested_;
}

void Submissions::Wake() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    woken_ = true;
  }
  changed_.notify_one();
}

void Submissions::WaitFor(std::chrono::microseconds timeout,
                          const Clock& clock) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (added_.empty() && !woken_) clock.WaitFor(changed_, lock, timeout);
  woken_ = false;
}

}  // namespace tfring
