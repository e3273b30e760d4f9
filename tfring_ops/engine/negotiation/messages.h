// The messages of the negotiation, and their form on the wire, which is used
// wherever a request has to be bytes.
//
// A rank sends the coordinator (rank 0 of the process set) its requests; the
// coordinator sends every rank the responses.  Under a cached schedule ranks
// tell each other of their progress; see cached_schedule.h.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_MESSAGES_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

struct RequestList {
  std::vector<CollectiveRequest> requests;
  // The sender has shut down; its last message.
  bool shutdown = false;
  // How many cached schedules have begun for the sender.
  int64_t schedules = 0;
};

// The progress of some ranks under a cached schedule.
struct Progress {
  // How many items all of them have submitted.
  int64_t count = 0;
  // One of them, or all of them, have left: these submit no more.
  bool some_left = false, all_left = false;

  // Adds the progress of more ranks.
  void Add(const Progress& others);
};
bool operator==(const Progress& a, const Progress& b);

// The sizes of a rank's request, as Collective::Sizes has them, from that item
// of a cached schedule on.
struct RequestSizes {
  int64_t item = 0;
  int32_t rank = 0;
  std::vector<int64_t> sizes;
};

// A rank's message to a neighbor under a cached schedule: the progress of some
// ranks, and the news since its last update; see cached_schedule.h.
struct ProgressUpdate {
  Progress progress;
  std::vector<int64_t> borders;
  std::vector<RequestSizes> sizes;
};

// A rank that the coordinator has not heard of for a while.
struct SilentRank {
  int32_t rank = 0;
  double seconds = 0;
};

// A rank is alive.  The coordinator's also says which ranks are silent.
struct Heartbeat {
  std::vector<SilentRank> silent;
};

// Requests of one kind that run together, as one message on the wire.
struct Response {
  std::vector<std::string> names;
  // By rank: the sizes of its requests, in the order of the names; empty for
  // kinds that have none.  See Collective::Sizes.
  std::vector<std::vector<int64_t>> sizes;
  // Only where ranks are missing because they have joined: the requests, by
  // name, and how many ranks sent them; see neutral_contribution.h.
  std::vector<CollectiveRequest> requests;
  int32_t contributors = 0;
  // The rank that joined last, in the response to a join.
  int32_t last_joined = 0;
};

// A request that fails on `ranks`.
struct ErrorResponse {
  std::vector<int32_t> ranks;
  std::string name;
  absl::Status status;
};

// A warning for `ranks`: some ranks are late.
struct StallReport {
  std::vector<int32_t> ranks;
  std::string text;
};

// The coordinator's decision.  Every rank gets the same bytes: that makes the
// order of execution one.  A rank skips an error or a report that does not name
// it.
struct ResponseList {
  std::vector<Response> responses;
  std::vector<ErrorResponse> errors;
  std::vector<StallReport> reports;
  // Not empty: the cached schedule that holds from here on, in a list of
  // responses alone.
  std::vector<CollectiveRequest> schedule;
  // Not OK: the engine of every rank ends with this; the last list.
  absl::Status shutdown;

  bool empty() const {
    return responses.empty() && errors.empty() && reports.empty() &&
           shutdown.ok();
  }
};

std::string Encode(const CollectiveRequest& request);
std::string Encode(const RequestList& list);
std::string Encode(const ProgressUpdate& update);
std::string Encode(const Heartbeat& heartbeat);
std::string Encode(const ResponseList& response_list);

// Returns true if the bytes are a RequestList, false if a ProgressUpdate.
bool IsRequestList(const std::string& bytes);

// Internal if the bytes are not such a message.
absl::StatusOr<CollectiveRequest> DecodeRequest(const std::string& bytes);
absl::StatusOr<RequestList> DecodeRequestList(const std::string& bytes);
absl::StatusOr<ProgressUpdate> DecodeProgressUpdate(const std::string& bytes);
absl::StatusOr<Heartbeat> DecodeHeartbeat(const std::string& bytes);
absl::StatusOr<ResponseList> DecodeResponseList(const std::string& bytes);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_MESSAGES_H_
