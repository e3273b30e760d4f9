// A negotiator of a rank of a simulated job, driven as an engine drives it,
// whose buckets take no time.
#ifndef TFRING_TESTS_CPP_SIMULATED_NEGOTIATOR_H_
#define TFRING_TESTS_CPP_SIMULATED_NEGOTIATOR_H_

#include <time.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/cpp/simulated_job.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/negotiation/negotiator.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

class SimulatedNegotiator {
 public:
  // Whether what a rank computes takes the time that this machine needs for it,
  // or none.
  enum class Computation { kIsFree, kTakesTime };

  SimulatedNegotiator(const Options& options, const Members& members,
                      Transport& transport, SimulatedJob& job,
                      Computation computation = Computation::kIsFree)
      : job_(job),
        computation_(computation),
        negotiator_(options, members, transport, job.clock()) {}

  // Submits `requests`, and with `shutdown` a shutdown request, and gives every
  // response list that comes to `take`, until that returns true.
  template <typename Take>
  absl::Status Run(std::vector<CollectiveRequest> requests, bool shutdown,
                   const Take& take) {
    for (bool is_done = false; !is_done;) {
      const double look = job_.now(), begin = ThreadSeconds();
      TFRING_ASSIGN_OR_RETURN(
          bool progressed,
          negotiator_.Progress(std::exchange(requests, {}), shutdown));
      while (!is_done) {
        TFRING_ASSIGN_OR_RETURN(const auto decision, negotiator_.Next());
        if (!decision) break;
        progressed = true;
        is_done = take(decision->response_list);
      }
      if (computation_ == Computation::kTakesTime) {
        job_.Sleep(ThreadSeconds() - begin);
      }
      if (!progressed) job_.Pause(look);
    }
    return absl::OkStatus();
  }

  // Returns once no rank sends anything more.  All ranks must have received a
  // shutdown response.
  absl::Status End() {
    while (!negotiator_.over()) {
      const double look = job_.now();
      TFRING_ASSIGN_OR_RETURN(const bool progressed,
                              negotiator_.Progress({}, /*shutdown=*/false));
      if (!progressed) job_.Pause(look);
    }
    return negotiator_.Flush();
  }

 private:
  static double ThreadSeconds() {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_nsec) * 1e-9;
  }

  SimulatedJob& job_;
  const Computation computation_;
  Negotiator negotiator_;
};

}  // namespace tfring

#endif  // TFRING_TESTS_CPP_SIMULATED_NEGOTIATOR_H_
