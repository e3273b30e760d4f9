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
#include "tfring_ops/tf/handles.h"
#include "tfring_ops/tf/request.h"
#include "tfring_ops/xla/custom_calls.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// TensorFlow exports this, and not the XLA_FFI_GetApi of the public header.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tfring {
namespace {

namespace ffi = xla::ffi;

absl::StatusOr<DataType> FromXla(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::F16:
      return DataType::kFloat16;
    case ffi::BF16:
      return DataType::kBfloat16;
    case ffi::F32:
      return DataType::kFloat32;
    case ffi::F64:
      return DataType::kFloat64;
    case ffi::S8:
      return DataType::kInt8;
    case ffi::S16:
      return DataType::kInt16;
    case ffi::S32:
      return DataType::kInt32;
    case ffi::S64:
      return DataType::kInt64;
    case ffi::U8:
      return DataType::kUint8;
    case ffi::U16:
      return DataType::kUint16;
    case ffi::U32:
      return DataType::kUint32;
    case ffi::U64:
      return DataType::kUint64;
    case ffi::PRED:
      return DataType::kBool;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "XLA's dtype ", static_cast<int>(dtype), " is not supported."));
  }
}

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

absl::Status Start(CollectiveRequest request, ffi::RemainingArgs args,
                   ffi::RemainingRets rets, ffi::Dictionary tensor_names) {
  TFRING_ASSIGN_OR_RETURN(InPlaceCall call, InPlaceCall::Decode(args, rets));
  TensorEntry entry;
  for (size_t i = 0; i < call.buffers.size(); ++i) {
    const ffi::AnyBuffer& buffer = call.buffers[i];
    TFRING_ASSIGN_OR_RETURN(request.dtype, FromXla(buffer.element_type()));
    TFRING_ASSIGN_OR_RETURN(
        auto name,
        FromXla(tensor_names.get<std::string_view>(absl::StrCat(i))));
    const auto dims = buffer.dimensions();
    request.tensors.push_back(
        TensorInfo{std::string(name), {dims.begin(), dims.end()}});
    entry.buffers.push_back({buffer.untyped_data(), buffer.untyped_data()});
  }
  entry.request = std::move(request);
  TFRING_ASSIGN_OR_RETURN(
      *call.result, Handles::Global().Start(std::move(entry), call.handles[0],
                                            /*tensors=*/nullptr));
  return absl::OkStatus();
}

ffi::Error AllreduceStart(ffi::RemainingArgs args, ffi::RemainingRets rets,
                          std::string_view request_name, int32_t process_set_id,
                          ffi::Dictionary tensor_names,
                          std::string_view reduce_op, double prescale_factor,
                          double postscale_factor) {
  absl::StatusOr<ReduceOp> op = ParseReduceOp(reduce_op);
  if (!op.ok()) return ToXla(op.status());
  CollectiveRequest request;
  request.name = std::string(request_name);
  request.process_set_id = process_set_id;
  request.kind = CollectiveKind::kAllreduce;
  request.op = *op;
  request.prescale_factor = prescale_factor;
  request.postscale_factor = postscale_factor;
  return ToXla(Start(std::move(request), args, rets, tensor_names));
}

ffi::Error BroadcastStart(ffi::RemainingArgs args, ffi::RemainingRets rets,
                          std::string_view request_name, int32_t process_set_id,
                          ffi::Dictionary tensor_names, int32_t root_rank) {
  CollectiveRequest request;
  request.name = std::string(request_name);
  request.process_set_id = process_set_id;
  request.kind = CollectiveKind::kBroadcast;
  request.root_rank = root_rank;
  return ToXla(Start(std::move(request), args, rets, tensor_names));
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

void Fulfil(ffi::Promise promise, const absl::Status& status) {
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
  ffi::Promise promise;
  ffi::Future future(promise);
  absl::StatusOr<InPlaceCall> call = InPlaceCall::Decode(args, rets);
  if (!call.ok()) {
    Fulfil(promise, call.status());
    return future;
  }
  *call->result = kNoHandle;
  std::vector<const void*> buffers;
  for (const ffi::AnyBuffer& buffer : call->buffers) {
    buffers.push_back(buffer.untyped_data());
  }
  auto callback = [promise, buffers](const Outcome& outcome) {
    Continuations().Schedule([promise, status = Check(outcome, buffers)] {
      Fulfil(promise, status);
    });
  };
  std::optional<Outcome> outcome =
      Handles::Global().Take(call->handles[0], std::move(callback));
  if (outcome.has_value()) Fulfil(promise, Check(*outcome, buffers));
  return future;
}

XLA_FFI_DEFINE_HANDLER(kAllreduceStart, AllreduceStart,
                       ffi::Ffi::Bind()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("request_name")
                           .Attr<int32_t>("process_set_id")
                           .Attr<ffi::Dictionary>("tensor_names")
                           .Attr<std::string_view>("reduce_op")
                           .Attr<double>("prescale_factor")
                           .Attr<double>("postscale_factor"));
XLA_FFI_DEFINE_HANDLER(kBroadcastStart, BroadcastStart,
                       ffi::Ffi::Bind()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("request_name")
                           .Attr<int32_t>("process_set_id")
                           .Attr<ffi::Dictionary>("tensor_names")
                           .Attr<int32_t>("root_rank"));
XLA_FFI_DEFINE_HANDLER(kDone, Done,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets());

XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kAllreduceStartCall, "Host",
                         kAllreduceStart);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kBroadcastStartCall, "Host",
                         kBroadcastStart);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kDoneCall, "Host", kDone);

}  // namespace
}  // namespace tfring
