// The one global: the engines of this process, one for each process set.
//
// Thread-safe.
#ifndef TFRING_OPS_CAPI_ENGINES_H_
#define TFRING_OPS_CAPI_ENGINES_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tfring_ops/engine/engine.h"

namespace tfring {

// FailedPrecondition before `tfring_init` and after `tfring_shutdown`,
// InvalidArgument if there is no such set or this rank is not in it.
absl::StatusOr<std::shared_ptr<Engine>> EngineOf(int32_t process_set_id);

// Submits to the engine of its process set; without one, `entry.done` gets
// the error.
void SubmitToEngine(TensorEntry entry);

}  // namespace tfring

#endif  // TFRING_OPS_CAPI_ENGINES_H_
