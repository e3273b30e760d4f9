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

// The operands and results of a call: buffers, which are in place, and int64
// handles.
struct InPlaceCall {
  static absl::StatusOr<InPlaceCall> Decode(
      const xla::ffi::RemainingArgs& args, const xla::ffi::RemainingRets& rets);

  // Returns the entry of a Start.
  absl::StatusOr<TensorEntry> Entry(CollectiveRequest request) const;

  // Collects the `handle` of a Done; see Handles::Take.  The outcome is an
  // error if XLA has moved a buffer, now or since the Start.
  std::optional<Outcome> Collect(Handle handle, void* stream,
                                 Handles::Callback callback) const;

  // Returns the addresses of the buffers, and null for an empty one.
  std::vector<const void*> Addresses() const;

  // An error if XLA has put a result elsewhere than the operand that it
  // aliases.
  absl::Status moved;
  std::vector<xla::ffi::AnyBuffer> buffers;  // valid during the call
  // The handles are in the platform's memory.
  std::vector<const Handle*> handles;
  Handle* result;
};

// Waits until the chain of `handle` is complete, and returns `reason`, for
// which a call fails:  XLA then frees the program's buffers.  See Note [A
// failure waits for its chain] in runtime/handles.cc.
absl::Status FailAfterChain(const absl::Status& reason, Handle handle,
                            void* stream);

}  // namespace tfring

#endif  // TFRING_OPS_FFI_IN_PLACE_CALL_H_
