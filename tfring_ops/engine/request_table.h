// The requests that were submitted on this rank, and that the ranks have not
// agreed on yet.
//
// Not thread-safe: only the driver uses it (driver_lock.h).
#ifndef TFRING_OPS_ENGINE_REQUEST_TABLE_H_
#define TFRING_OPS_ENGINE_REQUEST_TABLE_H_

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tfring_ops/base/clock.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

class RequestTable {
 public:
  struct Waiting {
    TensorEntry entry;
    Clock::time_point since;
  };

  // Returns the requests of `entries`, which wait from now on.
  // REQUIRES: no request in the table has the name of one of them.
  std::vector<CollectiveRequest> Add(std::vector<TensorEntry> entries,
                                     Clock::time_point now);

  // Removes the request `name`, if it is there, and returns its entry.
  std::optional<TensorEntry> Take(const std::string& name);

  // Removes all requests.
  std::vector<TensorEntry> TakeAll();

  bool empty() const { return waiting_.empty(); }

  template <typename Predicate>
  bool All(const Predicate& holds) const {
    for (const auto& [name, waiting] : waiting_) {
      if (!holds(waiting.entry.request)) return false;
    }
    return true;
  }

  // Returns the request that has waited longest; null if none waits.
  const Waiting* Oldest() const;

 private:
  std::unordered_map<std::string, Waiting> waiting_;  // by name
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_REQUEST_TABLE_H_
