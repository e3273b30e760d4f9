// Warns of silent ranks while this rank waits for them, and gives up in the
// end.
//
// One rank gives up for all, so that all have the same error: the first rank
// that is not silent itself.  If it does not, the next ranks follow in turn.
//
// Not thread-safe.
#ifndef TFRING_OPS_ENGINE_SILENCE_WATCH_H_
#define TFRING_OPS_ENGINE_SILENCE_WATCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/negotiation/heartbeats.h"

namespace tfring {

class SilenceWatch {
 public:
  using Time = Heartbeats::Clock::time_point;

  // What this rank waits for, as messages call it, and since when.
  struct Wait {
    std::string what;
    Time since;
  };

  // REQUIRES: the references outlive this.
  SilenceWatch(const Options& options, const Members& members, int rank)
      : options_(options), members_(members), rank_(rank) {}

  // Warns of silent ranks, or returns DeadlineExceeded, which ends the job.
  // Calls `wait` only if a rank is silent.
  absl::Status Check(const std::vector<Heartbeats::Silent>& silent,
                     const std::function<std::optional<Wait>()>& wait,
                     Time now) {
    if (silent.empty() && warned_of_.empty()) return absl::OkStatus();
    return CheckSilent(silent, wait(), now);
  }

 private:
  absl::Status CheckSilent(const std::vector<Heartbeats::Silent>& silent,
                           const std::optional<Wait>& wait, Time now);
  void ReportReturns(const std::vector<int32_t>& silent);
  void Warn(const std::string& text) const;

  const Options& options_;
  const Members& members_;
  const int rank_;
  // The ranks that have been warned of, and whether this rank waited for them
  // then.
  std::map<int32_t, bool> warned_of_;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_SILENCE_WATCH_H_
