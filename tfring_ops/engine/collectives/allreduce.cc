#include <algorithm>
#include <vector>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/collectives/reduction.h"
#include "tfring_ops/engine/execution/packing.h"
#include "tfring_ops/engine/timeline.h"

namespace tfring {
namespace {

RingBuffers BuffersOf(const CollectiveRequest& request,
                      absl::Span<const RingPiece> pieces) {
  RingBuffers buffers;
  buffers.dtype = WireType(request);
  buffers.count = CountOf(pieces, buffers.dtype);
  buffers.op = request.op;
  buffers.scale = request.postscale_factor;
  return buffers;
}

// Reduces the tensors where they are.
absl::Status AllreduceInPlace(ExecutionContext& context,
                              const CollectiveRequest& request,
                              absl::Span<const RingPiece> pieces) {
  RingBuffers buffers = BuffersOf(request, pieces);
  buffers.pieces = pieces;
  const TimelineSpan span(Timeline::Phase::kRing, request,
                          buffers.count * SizeInBytes(request.dtype));
  return context.Delegates(request)
             ? context.stream_collectives()->Allreduce(buffers)
             : context.allreduce().Run(buffers);
}

// Reduces the tensors in the fusion buffer, and scales and casts them on the
// way.
absl::Status AllreduceStaged(ExecutionContext& context,
                             const CollectiveRequest& request,
                             absl::Span<const RingPiece> pieces,
                             absl::Span<const double> factors) {
  const RingBuffers buffers = BuffersOf(request, pieces);
  const int64_t bytes = buffers.count * SizeInBytes(buffers.dtype);
  const int64_t stage_bytes =
      std::min({bytes, StageBytes(context.ring(), buffers.dtype),
                context.MostFusedBytes()});
  TFRING_ASSIGN_OR_RETURN(std::byte* const stage,
                          context.FusionBuffer(stage_bytes));
  Packing packing(context.ring().kernels, request, pieces, factors);
  const TimelineSpan span(Timeline::Phase::kRing, request, bytes);
  const absl::Span<std::byte> block = absl::MakeSpan(stage, stage_bytes);
  return context.Delegates(request)
             ? context.stream_collectives()->StagedAllreduce(buffers, block,
                                                             packing)
             : context.allreduce().RunStaged(buffers, block, packing);
}

class Allreduce final : public Collective {
 public:
  bool is_fusible() const override { return true; }

  bool OnlyLaunches(const ExecutionContext& context,
                    const CollectiveRequest& request) const override {
    return context.Delegates(request);
  }

  void FillNeutral(const Kernels& kernels, const CollectiveRequest& request,
                   std::byte* memory, int64_t bytes) const override {
    FillWithIdentity(kernels, request.dtype, request.op, memory, bytes);
  }

  absl::Status Run(ExecutionContext& context,
                   const Bucket& bucket) const override {
    for (TensorEntry* const entry : bucket.entries) {
      AverageOver(bucket.contributors, entry->request);
    }
    const CollectiveRequest& first = bucket.entries[0]->request;
    std::vector<RingPiece> pieces;
    std::vector<int64_t> sizes;
    std::vector<double> factors;  // of the pieces
    for (const TensorEntry* const entry : bucket.entries) {
      const CollectiveRequest& request = entry->request;
      for (size_t i = 0; i < request.tensors.size(); ++i) {
        const TensorEntry::Buffer& buffer = entry->buffers[i];
        sizes.push_back(SizeInBytes(WireType(request), request.tensors[i]));
        pieces.push_back({buffer.input, buffer.output,
                          sizes.back() / SizeInBytes(WireType(request))});
        factors.push_back(entry->input_factor());
      }
    }
    // Decide from the agreed request, not from this rank's entries: all ranks
    // must reach the same decision.
    const bool travels_as_it_is =
        first.prescale_factor == 1.0 && WireType(first) == first.dtype;
    for (const Pack& pack :
         PlanPacks(sizes, context.fusion_threshold_bytes())) {
      std::vector<RingPiece> chosen;
      std::vector<double> chosen_factors;
      for (const int index : pack.tensors) {
        chosen.push_back(pieces[index]);
        chosen_factors.push_back(factors[index]);
      }
      const bool is_staged =
          pack.place == Pack::Place::kStage || !travels_as_it_is;
      TFRING_RETURN_IF_ERROR(
          is_staged ? AllreduceStaged(context, first, chosen, chosen_factors)
                    : AllreduceInPlace(context, first, chosen));
    }
    return absl::OkStatus();
  }
};

}  // namespace

TFRING_DEFINE_COLLECTIVE(Allreduce)

}  // namespace tfring
