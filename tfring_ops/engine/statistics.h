// Sums over the work of this process's engines since they were asked for: for a
// monitor that looks now and then.  The timeline feeds it.
//
// Not thread-safe.
#ifndef TFRING_OPS_ENGINE_STATISTICS_H_
#define TFRING_OPS_ENGINE_STATISTICS_H_

#include <cstdint>

namespace tfring {

class Statistics {
 public:
  struct Totals {
    int64_t requests = 0;  // on which the ranks have agreed
    // From their submission until then.  The last rank waits least.
    int64_t negotiate_ns = 0;
    int64_t buckets = 0;
    int64_t bytes = 0;       // of this rank's tensors in buckets
    int64_t running_ns = 0;  // in which some bucket ran
    int64_t exposed_ns = 0;  // of these, while an operation waited
    int64_t waits = 0;       // of operations for their requests
    int64_t stalls = 0;      // reports of requests that some ranks lack
  };

  // Times are of std::chrono::steady_clock.
  void BeginBucket(int64_t now_ns);
  void EndBucket(int64_t now_ns, int64_t bytes);
  void BeginWait(int64_t now_ns);
  void EndWait(int64_t now_ns);
  void AddNegotiation(int64_t duration_ns);
  void AddStall() { ++totals_.stalls; }

  // Including the collectives that run at `now_ns`.
  Totals totals(int64_t now_ns);

 private:
  void AdvanceTo(int64_t now_ns);

  Totals totals_;
  int running_ = 0;
  int waiting_ = 0;
  int64_t since_ns_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_STATISTICS_H_
