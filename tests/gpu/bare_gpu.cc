// A GPU without TensorFlow, for tests/gpu and benchmarks/gpu.py: its kernels
// one by one, and the engine on its memory.  tools/bare_gpu.py calls it.
//
// Functions that can fail return nullptr or an error message, as in capi.h.
// Addresses are the device's; dtypes and operations are numbers of
// base/types.h.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/capi/c_status.h"
#include "tfring_ops/capi/capi.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/runtime/engines.h"

namespace tfring {
namespace {

const CudaDevice& Gpu(const void* gpu) {
  return *static_cast<const CudaDevice*>(gpu);
}

absl::Status Wait(const CudaEvent& event) {
  for (;;) {
    TFRING_ASSIGN_OR_RETURN(const bool done, event.Done());
    if (done) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

absl::Status AllreduceAndWait(const CudaDevice& gpu, TensorEntry entry) {
  TFRING_ASSIGN_OR_RETURN(const std::unique_ptr<CudaEvent> finished,
                          CudaEvent::Create(gpu));
  std::promise<absl::Status> done;
  entry.request.device = gpu.ordinal();
  entry.on_finish = [&finished](void* stream) {
    return finished->Record(stream);
  };
  entry.done = [&done](const absl::Status& status) { done.set_value(status); };
  SubmitToEngine(std::move(entry));
  TFRING_RETURN_IF_ERROR(done.get_future().get());
  return Wait(*finished);
}

}  // namespace
}  // namespace tfring

// Opens GPU `ordinal` for good, with a stream of its own.  One thread at a
// time.
TFRING_EXPORT const char* tfring_gpu_open(int32_t ordinal, void** gpu) {
  *gpu = nullptr;
  return tfring::RunAsCStatus([=] {
    auto device = tfring::CudaDevice::ForOrdinal(ordinal);
    if (device.ok()) *gpu = device->release();
    return device.status();
  });
}

// Its CUcontext and CUstream, for calls of the driver itself.
TFRING_EXPORT void* tfring_gpu_context(const void* gpu) {
  return tfring::RunOr<void*>(nullptr,
                              [=] { return tfring::Gpu(gpu).context(); });
}

TFRING_EXPORT void* tfring_gpu_stream(const void* gpu) {
  return tfring::RunOr<void*>(nullptr,
                              [=] { return tfring::Gpu(gpu).stream(); });
}

// The kernels of kernels/kernels.h, in the order of the stream.  They return at
// once; tfring_gpu_finish waits for them all, and says what went wrong.
TFRING_EXPORT void tfring_gpu_reduce(const void* gpu, void* dst, const void* a,
                                     const void* b, int64_t count,
                                     int32_t dtype, int32_t op) {
  tfring::RunAnyway([=] {
    tfring::Gpu(gpu).kernels().Reduce(dst, a, b, count,
                                      static_cast<tfring::DataType>(dtype),
                                      static_cast<tfring::ReduceOp>(op));
  });
}

TFRING_EXPORT void tfring_gpu_scale(const void* gpu, void* dst, const void* src,
                                    int64_t count, int32_t dtype,
                                    double factor) {
  tfring::RunAnyway([=] {
    tfring::Gpu(gpu).kernels().Scale(
        dst, src, count, static_cast<tfring::DataType>(dtype), factor);
  });
}

TFRING_EXPORT void tfring_gpu_copy(const void* gpu, void* dst, const void* src,
                                   int64_t bytes) {
  tfring::RunAnyway([=] { tfring::Gpu(gpu).kernels().Copy(dst, src, bytes); });
}

// Copies as packing and unpacking a bucket do: `pieces` runs of counts[i]
// elements.
TFRING_EXPORT void tfring_gpu_copy_pieces(const void* gpu, int32_t pieces,
                                          void* const* to,
                                          const void* const* from,
                                          const int64_t* counts,
                                          int32_t from_dtype, int32_t to_dtype,
                                          double factor) {
  tfring::RunAnyway([=] {
    std::vector<tfring::CopyPiece> copies;
    for (int i = 0; i < pieces; ++i) {
      copies.push_back({from[i], to[i], counts[i]});
    }
    tfring::Gpu(gpu).kernels().CopyPieces(
        copies, static_cast<tfring::DataType>(from_dtype),
        static_cast<tfring::DataType>(to_dtype), factor);
  });
}

TFRING_EXPORT void tfring_gpu_adasum(const void* gpu, void* dst, const void* a,
                                     const void* b, int64_t count,
                                     int32_t dtype) {
  tfring::RunAnyway([=] {
    tfring::Gpu(gpu).kernels().Adasum(dst, a, b, count,
                                      static_cast<tfring::DataType>(dtype));
  });
}

TFRING_EXPORT const char* tfring_gpu_finish(const void* gpu) {
  return tfring::RunAsCStatus([=] { return tfring::Gpu(gpu).Finish(); });
}

// An allreduce by the world's engine, in place, of `tensors` tensors of
// counts[i] elements at buffers[i], and waits until the GPU has done it.
// Collective.  REQUIRES: nothing else uses the buffers meanwhile.
TFRING_EXPORT const char* tfring_gpu_allreduce(
    const void* gpu, const char* name, int32_t tensors, void* const* buffers,
    const int64_t* counts, int32_t dtype, int32_t op, double prescale_factor) {
  return tfring::RunAsCStatus([=] {
    tfring::TensorEntry entry;
    entry.request.name = name;
    entry.request.dtype = static_cast<tfring::DataType>(dtype);
    entry.request.op = static_cast<tfring::ReduceOp>(op);
    entry.request.prescale_factor = prescale_factor;
    for (int i = 0; i < tensors; ++i) {
      entry.request.tensors.push_back(
          {absl::StrCat(name, "/", i), {counts[i]}});
      entry.buffers.push_back({buffers[i], buffers[i]});
    }
    return tfring::AllreduceAndWait(tfring::Gpu(gpu), std::move(entry));
  });
}

// Encodes the attribute `request` of the start of an allreduce of `tensors`
// tensors in the world (ffi/handlers.h): writes its bytes to `request`, which
// has room for `room`, and returns how many they are, also where there is too
// little room.
TFRING_EXPORT int64_t tfring_encode_allreduce(const char* name, int32_t tensors,
                                              int32_t dtype, int32_t op,
                                              char* request, int64_t room) {
  return tfring::RunOr<int64_t>(0, [=] {
    tfring::CollectiveRequest allreduce;
    allreduce.name = name;
    allreduce.dtype = static_cast<tfring::DataType>(dtype);
    allreduce.op = static_cast<tfring::ReduceOp>(op);
    for (int i = 0; i < tensors; ++i) {
      allreduce.tensors.push_back({absl::StrCat(name, "/", i), {}});
    }
    const std::string bytes = tfring::Encode(allreduce);
    std::copy_n(bytes.data(), std::min<int64_t>(room, bytes.size()), request);
    return static_cast<int64_t>(bytes.size());
  });
}
