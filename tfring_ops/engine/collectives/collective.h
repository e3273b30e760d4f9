// The interface between one kind of collective and negotiation and execution.
// Each kind has a file.
//
// A new kind needs a line of TFRING_FOR_EACH_COLLECTIVE in tensor_entry.h and a
// file here; CONTRIBUTING.md has the rest.
#ifndef TFRING_OPS_ENGINE_COLLECTIVES_COLLECTIVE_H_
#define TFRING_OPS_ENGINE_COLLECTIVES_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tfring_ops/engine/execution/execution_context.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {

// The argument of Run: a response of the negotiation, and this rank's entries.
struct Bucket {
  // The entries of the response's names, in that order.  There are several only
  // if the kind is fusible.
  absl::Span<TensorEntry* const> entries;
  const Response& response;
  int contributors;  // The number of ranks that have not joined.
  const Members& members;
};

// Thread-safe, because it has no state.
class Collective {
 public:
  virtual ~Collective() = default;

  // ---- Negotiation ----

  // Returns an error if this rank must not submit `request`.
  virtual absl::Status Check(const Members& /*members*/,
                             const CollectiveRequest& /*request*/) const {
    return absl::OkStatus();
  }
  // Returns true if two ranks may submit one tensor with these dimensions.
  virtual bool ShapesAgree(const TensorInfo& a, const TensorInfo& b) const {
    return a.dims == b.dims;
  }
  // Returns true if the tensors of all ranks must have one role, such as
  // "kernel" or "bias".
  virtual bool roles_agree() const { return true; }
  // Returns true if the response depends on the ranks' requests alone.  It may
  // then be repeated without being sent.
  virtual bool is_cacheable() const { return true; }
  // Returns true if requests of one dtype, op and factors may run as one
  // bucket, and several such buckets at the same time.
  virtual bool is_fusible() const { return false; }
  // Returns what other ranks need to know of `request` and what may differ
  // between ranks and steps: its rows, or its splits.
  virtual std::vector<int64_t> Sizes(
      const CollectiveRequest& /*request*/) const {
    return {};
  }
  // Returns why `request` cannot run without the world's ranks `joined`; empty
  // if it can.
  virtual std::string CheckRunsWithoutJoined(
      const std::vector<int32_t>& /*joined*/,
      const CollectiveRequest& /*request*/) const {
    return "";
  }

  // ---- Execution ----

  // Returns true if Run only launches work on a GPU's stream, by the stream
  // collectives of `context`, without waiting for work there or allocating
  // memory.
  virtual bool OnlyLaunches(const ExecutionContext& /*context*/,
                            const CollectiveRequest& /*request*/) const {
    return false;
  }

  // Turns `request` into that of a rank that has joined; see
  // neutral_contribution.h.
  virtual void MakeNeutral(CollectiveRequest& /*request*/) const {}
  // Fills an input of a rank that has joined, if its contents matter.
  virtual void FillNeutral(const Kernels& /*kernels*/,
                           const CollectiveRequest& /*request*/,
                           std::byte* /*memory*/, int64_t /*bytes*/) const {}
  // Collective.  After an error the transport must be aborted before the
  // entries' memory is touched.
  virtual absl::Status Run(ExecutionContext& context,
                           const Bucket& bucket) const = 0;
};

const Collective& CollectiveOf(CollectiveKind kind);

// A function for each kind, which the kind's file defines.
#define TFRING_DECLARE(NAME, TEXT) const Collective& NAME##Collective();
TFRING_FOR_EACH_COLLECTIVE(TFRING_DECLARE)
#undef TFRING_DECLARE
// Defines the function of a kind, whose class NAME is in the same file.
#define TFRING_DEFINE_COLLECTIVE(NAME)   \
  const Collective& NAME##Collective() { \
    static const NAME collective;        \
    return collective;                   \
  }

// Returns true if all dimensions but the first are the same.
bool SameButForRows(const TensorInfo& a, const TensorInfo& b);

// Returns why a kind whose result has a part for each rank cannot run without
// `joined`.
std::string PartWouldBeLost(const std::vector<int32_t>& joined);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_COLLECTIVES_COLLECTIVE_H_
