// The messages of the negotiation, and their encoding.  The same encoding is
// used wherever a request has to be bytes.
//
// A rank sends the coordinator (rank 0 of the process set) its requests; the
// coordinator sends every rank the responses.  Under a cached schedule ranks
// tell each other of their progress; see cached_schedule.h.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_MESSAGES_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

struct RequestList {
  std::vector<CollectiveRequest> requests;
  // The sender has shut down, and this is its last message.
  bool shutdown = false;
  // How many cached schedules the sender has begun.
  int64_t schedules = 0;
};

// The progress of some ranks under a cached schedule.
struct Progress {
  // How many items each of these ranks has submitted at least.
  int64_t count = 0;
  // Whether one of these ranks, or all, have left and submit nothing more.
  bool some_left = false, all_left = false;

  // Adds the progress of more ranks.
  void Add(const Progress& others);
};
bool operator==(const Progress& a, const Progress& b);

// The sizes of a rank's request (Collective::Sizes), valid from this item of a
// cached schedule on.
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

// A rank of which the coordinator has heard nothing for a while.
struct SilentRank {
  int32_t rank = 0;
  double seconds = 0;
};

// Says that a rank is alive.  The coordinator's also says which ranks are
// silent.
struct Heartbeat {
  std::vector<SilentRank> silent;
};

// Requests of one kind that run together, as one message on the wire.
struct Response {
  std::vector<std::string> names;
  // The sizes of each rank's requests, in the order of the names; empty for
  // kinds without sizes.  See Collective::Sizes.
  std::vector<std::vector<int64_t>> sizes;
  // Set if ranks are missing because they have joined: the requests, by name,
  // and how many ranks have sent them; see neutral_contribution.h.
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

// The coordinator's decision.  Every rank gets the same bytes, so all ranks run
// the same buckets in the same order.  A rank skips errors and reports that do
// not name it.
struct ResponseList {
  std::vector<Response> responses;
  std::vector<ErrorResponse> errors;
  std::vector<StallReport> reports;
  // If not empty, the cached schedule that begins here; the list then has
  // responses alone.
  std::vector<CollectiveRequest> schedule;
  // If not OK, the engine of every rank ends with this error.  No list follows.
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
absl::StatusOr<ProgressUpdate> DecodeProgressUpdate(const std::string& bytes);
absl::StatusOr<Heartbeat> DecodeHeartbeat(const std::string& bytes);
absl::StatusOr<ResponseList> DecodeResponseList(const std::string& bytes);

// A request as the coordinator receives it, which may be one object for several
// ranks.
struct KnownRequest {
  CollectiveRequest request;
  // The coordinator's number of the waiting request that this one agrees with;
  // -1 if none is known.
  int64_t waiting_number = -1;
};

// Decodes the request lists of all ranks.
//
// Ranks send the same requests, most of them in the same order: if two ranks
// have sent the same request, their next ones are likely to be the same, too.
// So the bytes of a request are compared with those of the other rank's, and
// decoded only if they differ.
// Requests that the engine has named are not remembered, because no step has
// the name of another.
//
// Not thread-safe.
class RequestListDecoder {
 public:
  // All requests are forgotten once there are this many.
  static constexpr size_t kMostKnown = 4096;

  struct List {
    std::vector<KnownRequest*> requests;  // valid until the next Decode
    bool shutdown = false;
    int64_t schedules = 0;
  };

  // Makes a decoder for the lists of `size` ranks.
  explicit RequestListDecoder(int size) : next_(size) {}

  // Decodes the next list of each of `ranks`, which have all sent these bytes.
  // Internal if the bytes are not a RequestList.
  // REQUIRES: `ranks` is not empty.
  absl::StatusOr<List> Decode(const std::vector<int>& ranks,
                              const std::string& bytes);

 private:
  struct Place {
    size_t index;  // in order_
    KnownRequest known;
  };
  using Places = std::unordered_map<std::string, Place>;

  Places places_;                           // by the bytes of a request
  std::vector<Places::value_type*> order_;  // in the order of arrival
  std::vector<size_t> next_;  // by rank: the index behind its last request's
  std::deque<KnownRequest> nameless_;  // of the last list
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_MESSAGES_H_
