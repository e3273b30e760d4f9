#include "tfring_ops/engine/negotiation/fusion.h"

#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {

bool Fusible(const CollectiveRequest& a, const CollectiveRequest& b) {
  return a.kind == b.kind && CollectiveOf(a.kind).is_fusible() &&
         a.dtype == b.dtype && WireType(a) == WireType(b) &&
         OnDevice(a) == OnDevice(b) && a.op == b.op &&
         a.prescale_factor == b.prescale_factor &&
         a.postscale_factor == b.postscale_factor;
}

}  // namespace tfring
