#include "tfring_ops/engine/silence_watch.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/log.h"
#include "tfring_ops/engine/error_messages.h"
#include "tfring_ops/engine/timeline.h"

namespace tfring {
namespace {

constexpr int kCoordinatorRank = 0;

double SecondsBetween(SilenceWatch::Time begin, SilenceWatch::Time end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

absl::Status SilenceWatch::CheckSilent(
    const std::vector<Heartbeats::Silent>& silent,
    const std::optional<Wait>& wait, Time now) {
  std::vector<int32_t> ranks;
  int turn = rank_;
  double seconds = 0;
  for (const Heartbeats::Silent& one : silent) {
    ranks.push_back(one.rank);
    turn -= one.rank < rank_;
    seconds = std::max(seconds, SecondsBetween(one.since, now));
  }
  ReportReturns(ranks);
  // The world's coordinator reports for all ranks.
  const bool reports = wait || (rank_ == kCoordinatorRank && members_.id == 0);
  if (ranks.empty() || !reports) return absl::OkStatus();

  const auto describe = [&] {
    return wait ? DescribeSilence(members_, wait->what,
                                  SecondsBetween(wait->since, now), ranks,
                                  seconds)
                : DescribeSilence(members_, ranks, seconds);
  };
  bool is_news = false;
  for (const int32_t rank : ranks) {
    const auto [warned, is_first] = warned_of_.emplace(rank, wait.has_value());
    is_news = is_news || is_first || (wait && !warned->second);
    warned->second = warned->second || wait;
  }
  if (is_news) {
    Timeline::Global().CountStall();
    Warn(describe());
  }

  const double limit = options_.stall_shutdown_seconds;
  // The first rank in turn gives up at the limit, the last one within the time
  // that Options::transport_timeout_seconds allows for all.
  const double grace = Options::kSilenceGraceSeconds * turn / members_.size();
  if (!wait || limit == 0 || seconds < limit + grace) return absl::OkStatus();
  return absl::DeadlineExceededError(describe() + kEndOfJob);
}

void SilenceWatch::ReportReturns(const std::vector<int32_t>& silent) {
  for (auto it = warned_of_.begin(); it != warned_of_.end();) {
    if (std::find(silent.begin(), silent.end(), it->first) != silent.end()) {
      ++it;
      continue;
    }
    Warn(absl::StrCat(Ranks(members_, {it->first}), members_.Suffix(),
                      " is heard again."));
    it = warned_of_.erase(it);
  }
}

void SilenceWatch::Warn(const std::string& text) const {
  if (options_.stall_check_seconds == 0) return;
  LogWarning(members_.world_ranks[rank_], text);
}

}  // namespace tfring
