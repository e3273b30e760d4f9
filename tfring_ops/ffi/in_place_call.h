// The parts that the handlers of XLA's custom calls share on every platform.
#ifndef TFRING_OPS_FFI_IN_PLACE_CALL_H_
#define TFRING_OPS_FFI_IN_PLACE_CALL_H_

#include <optional>
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

  // Collects a Done's `handle`; see Handles::Take.  An error if XLA has moved a
  // buffer, now or since the Start.
  std::optional<Outcome> Collect(Handle handle, void* stream,
                                 Handles::Callback callback) const;

  // The addresses of the buffers; null for an empty one.
  std::vector<const void*> Addresses() const;

  // An error if XLA gave a result another place than the operand that it
  // aliases.
  absl::Status moved;
  std::vector<xla::ffi::AnyBuffer> buffers;  // valid in the call alone
  // In the platform's memory.
  std::vector<const Handle*> handles;
  Handle* result;
};

// Returns `reason`, for which a call fails, when the chain of `handle` is over:
// XLA then frees the program's buffers.  See Note [A failure waits for its
// chain] in runtime/handles.cc.
absl::Status FailAfterChain(const absl::Status& reason, Handle handle,
                            void* stream);

}  // namespace tfring

#endif  // TFRING_OPS_FFI_IN_PLACE_CALL_H_
