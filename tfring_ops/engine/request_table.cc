#include "tfring_ops/engine/request_table.h"

#include <utility>

namespace tfring {

std::vector<CollectiveRequest> RequestTable::Add(
    std::vector<TensorEntry> entries, Clock::time_point now) {
  std::vector<CollectiveRequest> requests;
  for (TensorEntry& entry : entries) {
    const std::string name = entry.request.name;
    requests.push_back(entry.request);
    waiting_.emplace(name, Waiting{std::move(entry), now});
  }
  return requests;
}

std::optional<TensorEntry> RequestTable::Take(const std::string& name) {
  auto node = waiting_.extract(name);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped().entry);
}

std::vector<TensorEntry> RequestTable::TakeAll() {
  std::vector<TensorEntry> entries;
  for (auto& [name, waiting] : waiting_) {
    entries.push_back(std::move(waiting.entry));
  }
  waiting_.clear();
  return entries;
}

const RequestTable::Waiting* RequestTable::Oldest() const {
  const Waiting* oldest = nullptr;
  for (const auto& [name, waiting] : waiting_) {
    if (oldest == nullptr || waiting.since < oldest->since) oldest = &waiting;
  }
  return oldest;
}

}  // namespace tfring
