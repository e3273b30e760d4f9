#include "tfring_ops/engine/negotiation/fusion.h"

#include <utility>

#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {

bool Fusible(const CollectiveRequest& a, const CollectiveRequest& b) {
  return a.kind == b.kind && CollectiveOf(a.kind).is_fusible() &&
         a.dtype == b.dtype && WireType(a) == WireType(b) &&
         OnDevice(a) == OnDevice(b) && a.op == b.op &&
         a.prescale_factor == b.prescale_factor &&
         a.postscale_factor == b.postscale_factor;
}

bool Fusion::Joins(const CollectiveRequest& request) {
  const int64_t bytes = SizeInBytes(request);
  const bool joins = previous_ != nullptr && !options_.deterministic &&
                     Fusible(*previous_, request) &&
                     bytes_ + bytes <= options_.fusion_threshold_bytes;
  bytes_ = joins ? bytes_ + bytes : bytes;
  previous_ = &request;
  return joins;
}

bool Fusion::MayFuse(const Options& options, const CollectiveRequest& request) {
  return !options.deterministic && CollectiveOf(request.kind).is_fusible() &&
         SizeInBytes(request) < options.fusion_threshold_bytes;
}

void AddSizes(std::vector<std::vector<int64_t>> of_request, Response& bucket) {
  if (bucket.sizes.empty()) {
    bucket.sizes = std::move(of_request);
    return;
  }
  for (size_t rank = 0; rank < of_request.size(); ++rank) {
    bucket.sizes[rank].insert(bucket.sizes[rank].end(),
                              of_request[rank].begin(), of_request[rank].end());
  }
}

}  // namespace tfring
