// The parts that the handlers of XLA's custom calls share on every platform.
#ifndef TFRING_OPS_FFI_IN_PLACE_CALL_H_
#define TFRING_OPS_FFI_IN_PLACE_CALL_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/runtime/handles.h"
#include "xla/ffi/api/ffi.h"

namespace tfring {

xla::ffi::Error ToXla(const absl::Status& status);

// The operands and results of a call: buffers in place; int64s.
struct InPlaceCall {
  static absl::StatusOr<InPlaceCall> Decode(
      const xla::ffi::RemainingArgs& args, const xla::ffi::RemainingRets& rets);

  // The entry of a Start.
  absl::StatusOr<TensorEntry> Entry(CollectiveRequest request) const;

  // Where the buffers lie.
  std::vector<const void*> Addresses() const;

  std::vector<xla::ffi::AnyBuffer> buffers;  // valid in the call alone
  // In the platform's memory.
  std::vector<const Handle*> handles;
  Handle* result;
};

// An error if XLA gave a result another place than the operand that it aliases.
absl::Status CheckInPlace(const void* operand, const void* result);

// The status of a Done, once the engine has written to `outcome.outputs` and
// XLA goes on with the data at `addresses`.
absl::Status CheckInPlace(const Outcome& outcome,
                          const std::vector<const void*>& addresses);

}  // namespace tfring

#endif  // TFRING_OPS_FFI_IN_PLACE_CALL_H_
