// The interface of a kind of collective to negotiation and execution; each kind
// has a file.
//
// A new kind is a line of TFRING_FOR_EACH_COLLECTIVE in tensor_entry.h and a
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

// A response on its way through this rank.
struct Bucket {
  // The entries of the response's names, in that order; several only of a
  // fusible kind.
  absl::Span<TensorEntry* const> entries;
  const Response& response;
  int contributors;  // the ranks that have not joined
  const Members& members;
};

// Stateless, and so thread-safe.
class Collective {
 public:
  virtual ~Collective() = default;

  // ---- Negotiation ----

  // Returns an error if this rank may not ask for `request`.
  virtual absl::Status Check(const Members& members,
                             const CollectiveRequest& request) const;
  // True if two ranks may have these dimensions of one tensor.
  virtual bool ShapesAgree(const TensorInfo& a, const TensorInfo& b) const {
    return a.dims == b.dims;
  }
  // True if all ranks must have tensors of the same role, "kernel" or "bias".
  virtual bool roles_agree() const { return true; }
  // True if a response follows from the ranks' requests alone, and so may
  // repeat without being sent.
  virtual bool is_cacheable() const { return true; }
  // True if requests that agree in dtype, op and factors may run as one bucket,
  // and such buckets beside one another.
  virtual bool is_fusible() const { return false; }
  // Returns the numbers of `request` that other ranks need, and that may differ
  // from rank to rank and from step to step: rows, or splits.
  virtual std::vector<int64_t> Sizes(const CollectiveRequest& request) const;
  // Returns why `request` cannot run without the ranks `joined` of the world;
  // empty if it can.
  virtual std::string CheckRunsWithoutJoined(
      const std::vector<int32_t>& joined,
      const CollectiveRequest& request) const;

  // ---- Execution ----

  // Returns true if all that Run asks of this rank is to launch work on a
  // device's stream, by the stream collectives of `context`: it waits for no
  // work there, nor allocates memory.
  virtual bool OnlyLaunches(const ExecutionContext& context,
                            const CollectiveRequest& request) const;

  // Makes `request` a joined rank's; see neutral_contribution.h.
  virtual void MakeNeutral(CollectiveRequest& request) const;
  // Fills an input of such a rank, if its contents matter.
  virtual void FillNeutral(const Kernels& kernels,
                           const CollectiveRequest& request, std::byte* memory,
                           int64_t bytes) const;
  // Collective.  After an error the transport must be aborted before the
  // entries' memory is touched.
  virtual absl::Status Run(ExecutionContext& context,
                           const Bucket& bucket) const = 0;
};

const Collective& CollectiveOf(CollectiveKind kind);

// One for each kind, each in its file.
#define TFRING_DECLARE(NAME, TEXT) const Collective& NAME##Collective();
TFRING_FOR_EACH_COLLECTIVE(TFRING_DECLARE)
#undef TFRING_DECLARE
// Defines that of a kind, in its file, as an object of the class NAME there.
#define TFRING_DEFINE_COLLECTIVE(NAME)   \
  const Collective& NAME##Collective() { \
    static const NAME collective;        \
    return collective;                   \
  }

// True if all but their first dimensions are the same.
bool SameButForRows(const TensorInfo& a, const TensorInfo& b);

// Returns why a kind whose result has a part for every rank cannot run without
// `joined`.
std::string PartWouldBeLost(const std::vector<int32_t>& joined);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_COLLECTIVES_COLLECTIVE_H_
