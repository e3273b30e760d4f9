#include "tfring_ops/ffi/in_place_call.h"

#include <cstddef>
#include <string>
#include <utility>

#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

namespace ffi = xla::ffi;

template <typename T>
absl::StatusOr<T> FromXla(ffi::ErrorOr<T> value) {
  if (value.has_value()) return *value;
  return absl::InternalError(value.error().message());
}

}  // namespace

absl::Status CheckInPlace(const void* operand, const void* result) {
  if (operand == result) return absl::OkStatus();
  return absl::InternalError(
      "XLA moved a tensor in the middle of a reduction. Please report it, with "
      "your version of TensorFlow; jit_compile=False avoids it.");
}

// The numbers of the codes are the same, gRPC's.
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
    TFRING_RETURN_IF_ERROR(
        CheckInPlace(input.untyped_data(), output->untyped_data()));
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
  if (buffers.size() != request.tensors.size()) {
    return absl::InternalError("Start of other tensors than were requested.");
  }
  TensorEntry entry;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const ffi::AnyBuffer& buffer = buffers[i];
    const auto dims = buffer.dimensions();
    request.tensors[i].dims.assign(dims.begin(), dims.end());
    entry.buffers.push_back({buffer.untyped_data(), buffer.untyped_data()});
  }
  entry.request = std::move(request);
  return entry;
}

absl::Status CheckInPlace(const Outcome& outcome,
                          const std::vector<const void*>& addresses) {
  TFRING_RETURN_IF_ERROR(outcome.status);
  if (outcome.outputs.size() != addresses.size()) {
    return absl::InternalError("Done of other tensors than were started.");
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    TFRING_RETURN_IF_ERROR(CheckInPlace(outcome.outputs[i], addresses[i]));
  }
  return absl::OkStatus();
}

std::vector<const void*> InPlaceCall::Addresses() const {
  std::vector<const void*> addresses;
  for (const ffi::AnyBuffer& buffer : buffers) {
    addresses.push_back(buffer.untyped_data());
  }
  return addresses;
}

}  // namespace tfring
