#include "tfring_ops/ffi/in_place_call.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

namespace ffi = xla::ffi;

// Returns an error if XLA has put a result elsewhere than the operand that it
// aliases.
absl::Status CheckInPlace(const void* operand, const void* result) {
  if (operand == result) return absl::OkStatus();
  return absl::InternalError(
      "XLA moved a tensor in the middle of a reduction. Please report it, with "
      "your version of TensorFlow; jit_compile=False avoids it.");
}

// Returns null for an empty buffer:  XLA may exchange one empty value for
// another, and no memory is written.
void* AddressOf(const ffi::AnyBuffer& buffer) {
  return buffer.element_count() == 0 ? nullptr : buffer.untyped_data();
}

template <typename T>
absl::StatusOr<T> FromXla(ffi::ErrorOr<T> value) {
  if (value.has_value()) return *value;
  return absl::InternalError(value.error().message());
}

// Compares the addresses of a Done: the engine writes to `outputs`, and XLA
// continues with the data at `addresses`.
absl::Status CheckAllInPlace(const std::vector<const void*>& outputs,
                             const std::vector<const void*>& addresses) {
  if (outputs.size() != addresses.size()) {
    return absl::InternalError("Done of other tensors than were started.");
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    TFRING_RETURN_IF_ERROR(CheckInPlace(outputs[i], addresses[i]));
  }
  return absl::OkStatus();
}

}  // namespace

// Abseil and XLA's FFI both use the numbers of gRPC's codes.
ffi::Error ToXla(const absl::Status& status) {
  return ffi::Error(static_cast<ffi::ErrorCode>(status.raw_code()),
                    std::string(status.message()));
}

absl::StatusOr<InPlaceCall> InPlaceCall::Decode(
    const ffi::RemainingArgs& args, const ffi::RemainingRets& rets) {
  InPlaceCall call;
  const size_t count = rets.size() - 1;
  for (size_t i = 0; i < count; ++i) {
    TFRING_ASSIGN_OR_RETURN(auto input, FromXla(args.get<ffi::AnyBuffer>(i)));
    TFRING_ASSIGN_OR_RETURN(auto output, FromXla(rets.get<ffi::AnyBuffer>(i)));
    call.moved.Update(CheckInPlace(AddressOf(input), AddressOf(*output)));
    call.buffers.push_back(input);
  }
  for (size_t i = count; i < args.size(); ++i) {
    TFRING_ASSIGN_OR_RETURN(auto handle,
                            FromXla(args.get<ffi::BufferR0<ffi::S64>>(i)));
    call.handles.push_back(handle.typed_data());
  }
  TFRING_ASSIGN_OR_RETURN(auto result,
                          FromXla(rets.get<ffi::BufferR0<ffi::S64>>(count)));
  call.result = result->typed_data();
  return call;
}

absl::StatusOr<TensorEntry> InPlaceCall::Entry(
    CollectiveRequest request) const {
  TFRING_RETURN_IF_ERROR(moved);
  if (buffers.size() != request.tensors.size()) {
    return absl::InternalError("Start of other tensors than were requested.");
  }
  TensorEntry entry;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const ffi::AnyBuffer& buffer = buffers[i];
    const auto dims = buffer.dimensions();
    request.tensors[i].dims.assign(dims.begin(), dims.end());
    entry.buffers.push_back({AddressOf(buffer), AddressOf(buffer)});
  }
  entry.request = std::move(request);
  return entry;
}

std::optional<Outcome> InPlaceCall::Collect(Handle handle, void* stream,
                                            Handles::Callback callback) const {
  return Handles::Global().Take(
      handle, stream, std::move(callback),
      [this](const std::vector<const void*>& outputs) {
        TFRING_RETURN_IF_ERROR(moved);
        return CheckAllInPlace(outputs, Addresses());
      });
}

absl::Status FailAfterChain(const absl::Status& reason, Handle handle,
                            void* stream) {
  if (handle == kNoHandle) return reason;
  absl::Notification over;
  const std::optional<Outcome> outcome = Handles::Global().Take(
      handle, stream, [&](const Outcome& /*outcome*/) { over.Notify(); },
      [&](const std::vector<const void*>& /*outputs*/) { return reason; });
  if (!outcome.has_value()) over.WaitForNotification();
  return reason;
}

std::vector<const void*> InPlaceCall::Addresses() const {
  std::vector<const void*> addresses;
  for (const ffi::AnyBuffer& buffer : buffers) {
    addresses.push_back(AddressOf(buffer));
  }
  return addresses;
}

}  // namespace tfring
