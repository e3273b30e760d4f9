// The handlers that XLA calls at run time on the CPU.  They only convert:
// buffers to a TensorEntry and back.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/ffi/continuations.h"
#include "tfring_ops/ffi/handlers.h"
#include "tfring_ops/ffi/in_place_call.h"
#include "tfring_ops/runtime/handles.h"
#include "xla/ffi/api/ffi.h"

namespace tfring {
namespace {

namespace ffi = xla::ffi;

absl::StatusOr<Handle> Submit(CollectiveRequest request,
                              const InPlaceCall& call) {
  TFRING_ASSIGN_OR_RETURN(TensorEntry entry, call.Entry(std::move(request)));
  return Handles::Global().Start(std::move(entry), *call.handles[0],
                                 /*memory=*/nullptr, /*order=*/nullptr);
}

ffi::Error Start(ffi::RemainingArgs args, ffi::RemainingRets rets,
                 std::string_view request_bytes) {
  absl::StatusOr<CollectiveRequest> request =
      DecodeRequest(std::string(request_bytes));
  if (!request.ok()) return ToXla(request.status());
  const absl::StatusOr<InPlaceCall> call = InPlaceCall::Decode(args, rets);
  if (!call.ok()) return ToXla(call.status());
  const absl::StatusOr<Handle> handle = Submit(*std::move(request), *call);
  if (!handle.ok()) {
    return ToXla(FailAfterChain(handle.status(), *call->handles[0],
                                /*stream=*/nullptr));
  }
  *call->result = *handle;
  return ffi::Error::Success();
}

void Fulfil(ffi::Promise& promise, const absl::Status& status) {
  if (status.ok()) {
    promise.SetAvailable();
  } else {
    promise.SetError(ToXla(status));
  }
}

// Returns a future, so that no thread of XLA is blocked meanwhile.
ffi::Future Done(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  // The promise is shared because the first versions of Promise cannot be
  // copied.
  auto promise = std::make_shared<ffi::Promise>();
  ffi::Future future(*promise);
  absl::StatusOr<InPlaceCall> call = InPlaceCall::Decode(args, rets);
  if (!call.ok()) {
    Fulfil(*promise, call.status());
    return future;
  }
  *call->result = kNoHandle;
  auto callback = [promise](const Outcome& outcome) {
    Continuations::Global().Schedule(
        [promise, status = outcome.status] { Fulfil(*promise, status); });
  };
  const std::optional<Outcome> outcome =
      call->Collect(*call->handles[0], /*stream=*/nullptr, std::move(callback));
  if (outcome.has_value()) Fulfil(*promise, outcome->status);
  return future;
}

// Returns the address of the elements of `share` in a buffer, from element
// `begin` on.
absl::StatusOr<std::byte*> Place(ffi::AnyBuffer whole, ffi::AnyBuffer share,
                                 int64_t begin) {
  const int64_t count = share.element_count();
  if (begin + count > static_cast<int64_t>(whole.element_count())) {
    return absl::InvalidArgumentError("The share ends behind the whole.");
  }
  const size_t element_bytes = count == 0 ? 0 : share.size_bytes() / count;
  return static_cast<std::byte*>(whole.untyped_data()) + begin * element_bytes;
}

ffi::Error Read(ffi::AnyBuffer whole, ffi::Result<ffi::AnyBuffer> share,
                int64_t begin) {
  const absl::StatusOr<std::byte*> place = Place(whole, *share, begin);
  if (!place.ok()) return ToXla(place.status());
  std::memcpy(share->untyped_data(), *place, share->size_bytes());
  return ffi::Error::Success();
}

// Nothing is in flight: XLA may move the buffer here.
ffi::Error Pin(ffi::AnyBuffer buffer, ffi::Result<ffi::AnyBuffer> result) {
  if (buffer.untyped_data() != result->untyped_data()) {
    std::memcpy(result->untyped_data(), buffer.untyped_data(),
                buffer.size_bytes());
  }
  return ffi::Error::Success();
}

// Copies nothing but the share, unless XLA has moved `whole`.
ffi::Error Write(ffi::AnyBuffer whole, ffi::AnyBuffer share,
                 ffi::Result<ffi::AnyBuffer> result, int64_t begin) {
  const absl::StatusOr<std::byte*> place = Place(*result, share, begin);
  if (!place.ok()) return ToXla(place.status());
  Pin(whole, result);
  std::memcpy(*place, share.untyped_data(), share.size_bytes());
  return ffi::Error::Success();
}

ffi::Error Put(ffi::AnyBuffer share, ffi::BufferR0<ffi::S64> /*handle*/,
               ffi::Result<ffi::AnyBuffer> whole, int64_t begin) {
  const absl::StatusOr<std::byte*> place = Place(*whole, share, begin);
  if (!place.ok()) return ToXla(place.status());
  std::memcpy(*place, share.untyped_data(), share.size_bytes());
  return ffi::Error::Success();
}

ffi::Error Computed(ffi::AnyBuffer /*x*/,
                    ffi::Result<ffi::BufferR0<ffi::S64>> token) {
  *token->typed_data() = kNoHandle;
  return ffi::Error::Success();
}

}  // namespace
}  // namespace tfring

XLA_FFI_DEFINE_HANDLER_SYMBOL(tfring_host_start, tfring::Start,
                              xla::ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("request"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    tfring_host_done, tfring::Done,
    xla::ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(tfring_host_read, tfring::Read,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<int64_t>("begin"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(tfring_host_write, tfring::Write,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<int64_t>("begin"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(tfring_host_place, tfring::Put,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::BufferR0<xla::ffi::S64>>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<int64_t>("begin"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(tfring_host_computed, tfring::Computed,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::BufferR0<xla::ffi::S64>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(tfring_host_pin, tfring::Pin,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>());
