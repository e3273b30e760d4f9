// The one global: the engine that `tfring_init` started.
#ifndef TFRING_OPS_CAPI_GLOBAL_ENGINE_H_
#define TFRING_OPS_CAPI_GLOBAL_ENGINE_H_

#include <memory>

#include "tfring_ops/engine/engine.h"

namespace tfring {

// nullptr before `tfring_init` and after `tfring_shutdown`.  Thread-safe.
std::shared_ptr<Engine> GlobalEngine();

// Submits to it; without one, `entry.done` gets FailedPrecondition.
void SubmitToGlobalEngine(TensorEntry entry);

}  // namespace tfring

#endif  // TFRING_OPS_CAPI_GLOBAL_ENGINE_H_
