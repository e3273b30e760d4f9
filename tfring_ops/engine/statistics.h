// Sums over the work of this process's engines, for a monitor that looks from
// time to time.  The timeline feeds them.
//
// Not thread-safe.
#ifndef TFRING_OPS_ENGINE_STATISTICS_H_
#define TFRING_OPS_ENGINE_STATISTICS_H_

#include <cstdint>
#include <string>
#include <unordered_set>

namespace tfring {

class Statistics {
 public:
  struct Totals {
    int64_t requests = 0;  // Requests that the ranks have agreed on.
    // The time from submission to agreement.  The last rank to submit waits
    // least.
    int64_t negotiate_ns = 0;
    int64_t buckets = 0;
    int64_t bytes = 0;       // The size of this rank's tensors in buckets.
    int64_t running_ns = 0;  // The time during which a bucket ran.
    // The part of running_ns during which an operation waited.
    int64_t exposed_ns = 0;
    int64_t waits = 0;  // How often an operation waited for its request.
    // Reports of requests that some ranks have not submitted.
    int64_t stalls = 0;
    // How often a name has come again.  A training whose step reduces each
    // gradient once thereby counts its steps.
    int64_t steps = 0;
  };

  // Times are of std::chrono::steady_clock.
  void BeginBucket(int64_t now_ns);
  void EndBucket(int64_t now_ns, int64_t bytes);
  void BeginWait(int64_t now_ns);
  void EndWait(int64_t now_ns);
  void AddNegotiation(const std::string& name, int64_t duration_ns);
  void AddStall() { ++totals_.stalls; }

  // From now on nothing runs and nothing waits.
  void Forget(int64_t now_ns);

  // Includes the collectives that run at `now_ns`.
  Totals totals(int64_t now_ns);

 private:
  void AdvanceTo(int64_t now_ns);

  Totals totals_;
  int running_ = 0;
  int waiting_ = 0;
  int64_t since_ns_ = 0;
  std::unordered_set<std::string> names_;  // of requests of this step
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_STATISTICS_H_
