// The messages of the agreement, and their form on the wire, which serves
// wherever a request has to be bytes.
//
// A rank tells the coordinator (rank 0 of the process set) what it has become
// ready for; the coordinator tells every rank what is to be done.  Under a plan
// each rank announces to every other how far it is; see plan.h.
#ifndef TFRING_OPS_ENGINE_MESSAGES_H_
#define TFRING_OPS_ENGINE_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

struct ReadyList {
  std::vector<CollectiveRequest> requests;
  // The sender has shut down; its last message.
  bool goodbye = false;
};

// Under a plan, of which `count` items have been asked for by the sender.
struct Announcement {
  int64_t count = 0;
  // The sender's last word under this plan.
  bool leaves = false;
};

// The same bytes go to every rank, which is what makes the order of execution
// one.  A rank skips a failure or a report that does not name it.
struct Verdict {
  // Requests of one kind that run together, as one message on the wire.
  struct Bucket {
    std::vector<std::string> names;
    // Allgather alone: the first dimension of each tensor on each rank.
    std::vector<std::vector<int64_t>> first_dims;
    // Alltoall alone: the splits of each rank.
    std::vector<std::vector<int64_t>> splits;
    // Only where ranks are missing because they have joined, for which see
    // stand_in.h: what was asked for, by name, and by how many ranks.
    std::vector<CollectiveRequest> requests;
    int32_t contributors = 0;
    // Join alone.
    int32_t last_joined = 0;
  };
  struct Failure {
    std::vector<int32_t> ranks;
    std::string name;
    absl::Status status;
  };
  struct Report {
    std::vector<int32_t> ranks;
    std::string text;
  };

  std::vector<Bucket> buckets;
  std::vector<Failure> failures;
  std::vector<Report> reports;
  // Not empty: the plan that holds from here on, in a verdict of buckets alone.
  std::vector<CollectiveRequest> plan;
  // Not OK: the engine of every rank ends with this; the last verdict.
  absl::Status farewell;

  bool empty() const {
    return buckets.empty() && failures.empty() && reports.empty() &&
           farewell.ok();
  }
};

std::string Encode(const CollectiveRequest& request);
std::string Encode(const ReadyList& list);
std::string Encode(const Announcement& announcement);
std::string Encode(const Verdict& verdict);

// Whether the bytes, of one of the two, are a ReadyList or an Announcement.
bool IsReadyList(const std::string& bytes);

// Internal if the bytes are not such a message.
absl::StatusOr<CollectiveRequest> DecodeRequest(const std::string& bytes);
absl::StatusOr<ReadyList> DecodeReadyList(const std::string& bytes);
absl::StatusOr<Announcement> DecodeAnnouncement(const std::string& bytes);
absl::StatusOr<Verdict> DecodeVerdict(const std::string& bytes);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_MESSAGES_H_
