// Which requests run as one bucket.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_FUSION_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_FUSION_H_

#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// Returns true if the two may be reduced as one message: both of a fusible
// kind, of one dtype, on the wire too, with the same op and factors.
bool Fusible(const CollectiveRequest& a, const CollectiveRequest& b);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_FUSION_H_
