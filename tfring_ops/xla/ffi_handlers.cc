// What XLA calls at run time.  Conversion only: buffers to a TensorEntry and
// back.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/messages.h"
#include "tfring_ops/tf/handles.h"
#include "tfring_ops/xla/custom_calls.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// TensorFlow exports this, and not the XLA_FFI_GetApi of the public header.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tfring {
namespace {

namespace ffi = xla::ffi;

// The numbers of the codes are the same, gRPC's.
ffi::Error ToXla(const absl::Status& status) {
  return ffi::Error(static_cast<ffi::ErrorCode>(status.raw_code()),
                    std::string(status.message()));
}

template <typename T>
absl::StatusOr<T> FromXla(ffi::ErrorOr<T> value) {
  if (value.has_value()) return *value;
  return absl::InternalError(value.error().message());
}

absl::Status CheckInPlace(const void* before, const void* after) {
  if (before == after) return absl::OkStatus();
  return absl::InternalError(
      "XLA moved a tensor in the middle of a reduction. Please report it, with "
      "your version of TensorFlow; jit_compile=False avoids it.");
}

// The common end of every call: `count` buffers in place, and an int64.
struct InPlaceCall {
  static absl::StatusOr<InPlaceCall> Decode(const ffi::RemainingArgs& args,
                                            const ffi::RemainingRets& rets) {
    InPlaceCall call;
    const size_t count = rets.size() - 1;
    for (size_t i = 0; i < count; ++i) {
      TFRING_ASSIGN_OR_RETURN(auto input, FromXla(args.get<ffi::AnyBuffer>(i)));
      TFRING_ASSIGN_OR_RETURN(auto output,
                              FromXla(rets.get<ffi::AnyBuffer>(i)));
      TFRING_RETURN_IF_ERROR(
          CheckInPlace(input.untyped_data(), output->untyped_data()));
      call.buffers.push_back(input);
    }
    for (size_t i = count; i < args.size(); ++i) {
      TFRING_ASSIGN_OR_RETURN(auto handle,
                              FromXla(args.get<ffi::BufferR0<ffi::S64>>(i)));
      call.handles.push_back(*handle.typed_data());
    }
    TFRING_ASSIGN_OR_RETURN(auto result,
                            FromXla(rets.get<ffi::BufferR0<ffi::S64>>(count)));
    call.result = result->typed_data();
    return call;
  }

  std::vector<ffi::AnyBuffer> buffers;
  std::vector<Handle> handles;  // inputs
  Handle* result;
};

absl::Status Submit(CollectiveRequest request, ffi::RemainingArgs args,
                    ffi::RemainingRets rets) {
  TFRING_ASSIGN_OR_RETURN(InPlaceCall call, InPlaceCall::Decode(args, rets));
  if (call.buffers.size() != request.tensors.size()) {
    return absl::InternalError("Start of other tensors than were requested.");
  }
  TensorEntry entry;
  for (size_t i = 0; i < call.buffers.size(); ++i) {
    const ffi::AnyBuffer& buffer = call.buffers[i];
    const auto dims = buffer.dimensions();
    request.tensors[i].dims.assign(dims.begin(), dims.end());
    entry.buffers.push_back({buffer.untyped_data(), buffer.untyped_data()});
  }
  entry.request = std::move(request);
  TFRING_ASSIGN_OR_RETURN(
      *call.result, Handles::Global().Start(std::move(entry), call.handles[0],
                                            /*tensors=*/nullptr));
  return absl::OkStatus();
}

ffi::Error Start(ffi::RemainingArgs args, ffi::RemainingRets rets,
                 std::string_view request_bytes) {
  absl::StatusOr<CollectiveRequest> request =
      DecodeRequest(std::string(request_bytes));
  if (!request.ok()) return ToXla(request.status());
  return ToXla(Submit(*std::move(request), args, rets));
}

// What a Done becomes, once the engine wrote to `outcome.outputs` and XLA goes
// on with `buffers`.
absl::Status Check(const Outcome& outcome,
                   const std::vector<const void*>& buffers) {
  TFRING_RETURN_IF_ERROR(outcome.status);
  if (outcome.outputs.size() != buffers.size()) {
    return absl::InternalError("Done of other tensors than were started.");
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    TFRING_RETURN_IF_ERROR(CheckInPlace(outcome.outputs[i], buffers[i]));
  }
  return absl::OkStatus();
}

void Fulfil(ffi::Promise& promise, const absl::Status& status) {
  if (status.ok()) {
    promise.SetAvailable();
  } else {
    promise.SetError(ToXla(status));
  }
}

// XLA:CPU runs what follows a future, up to the rest of the program, on the
// thread that fulfils the promise.  That must not be the engine's, so it is one
// of these, as many as XLA has itself.
tensorflow::thread::ThreadPool& Continuations() {
  static auto* pool = new tensorflow::thread::ThreadPool(
      tensorflow::Env::Default(), tensorflow::ThreadOptions(), "tfring_xla",
      tensorflow::port::MaxParallelism(), /*low_latency_hint=*/false);
  return *pool;
}

// Returns a future, so that no thread of XLA is blocked meanwhile.
ffi::Future Done(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  // Shared: the first versions of a Promise cannot be copied.
  auto promise = std::make_shared<ffi::Promise>();
  ffi::Future future(*promise);
  absl::StatusOr<InPlaceCall> call = InPlaceCall::Decode(args, rets);
  if (!call.ok()) {
    Fulfil(*promise, call.status());
    return future;
  }
  *call->result = kNoHandle;
  std::vector<const void*> buffers;
  for (const ffi::AnyBuffer& buffer : call->buffers) {
    buffers.push_back(buffer.untyped_data());
  }
  auto callback = [promise, buffers](const Outcome& outcome) {
    Continuations().Schedule([promise, status = Check(outcome, buffers)] {
      Fulfil(*promise, status);
    });
  };
  std::optional<Outcome> outcome =
      Handles::Global().Take(call->handles[0], std::move(callback));
  if (outcome.has_value()) Fulfil(*promise, Check(*outcome, buffers));
  return future;
}

XLA_FFI_DEFINE_HANDLER(
    kStart, Start,
    ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<std::string_view>(
        "request"));
XLA_FFI_DEFINE_HANDLER(kDone, Done,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets());

XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kStartCall, "Host", kStart);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kDoneCall, "Host", kDone);

}  // namespace
}  // namespace tfring
