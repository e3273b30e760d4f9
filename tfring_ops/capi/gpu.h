// A GPU without TensorFlow, for tests/gpu and benchmarks/gpu.py: its kernels
// one by one, and the engine on its memory.
//
// Functions that can fail return nullptr or an error message, as in capi.h.
// Addresses are the device's; dtypes and operations are numbers of
// base/types.h.
#ifndef TFRING_OPS_CAPI_GPU_H_
#define TFRING_OPS_CAPI_GPU_H_

#include <cstdint>

#include "tfring_ops/capi/capi.h"

// Opens GPU `ordinal` for good, with a stream of its own.  One thread at a
// time.
TFRING_EXPORT const char* tfring_gpu_open(int32_t ordinal, void** gpu);

// Its CUcontext and CUstream, for calls of the driver itself.
TFRING_EXPORT void* tfring_gpu_context(const void* gpu);
TFRING_EXPORT void* tfring_gpu_stream(const void* gpu);

// The kernels of kernels/kernels.h, in the order of the stream.  They return at
// once; tfring_gpu_finish waits for them all, and says what went wrong.
TFRING_EXPORT void tfring_gpu_reduce(const void* gpu, void* dst, const void* a,
                                     const void* b, int64_t count,
                                     int32_t dtype, int32_t op);
TFRING_EXPORT void tfring_gpu_scale(const void* gpu, void* dst, const void* src,
                                    int64_t count, int32_t dtype,
                                    double factor);
TFRING_EXPORT void tfring_gpu_copy(const void* gpu, void* dst, const void* src,
                                   int64_t bytes);
// Copies as packing and unpacking a bucket do: `pieces` runs of counts[i]
// elements.
TFRING_EXPORT void tfring_gpu_copy_pieces(
    const void* gpu, int32_t pieces, void* const* to, const void* const* from,
    const int64_t* counts, int32_t from_dtype, int32_t to_dtype, double factor);
TFRING_EXPORT void tfring_gpu_adasum(const void* gpu, void* dst, const void* a,
                                     const void* b, int64_t count,
                                     int32_t dtype);
TFRING_EXPORT const char* tfring_gpu_finish(const void* gpu);

// An allreduce by the world's engine, in place, of `tensors` tensors of
// counts[i] elements at buffers[i], and waits until the GPU has done it.
// Collective.  REQUIRES: nothing else uses the buffers meanwhile.
TFRING_EXPORT const char* tfring_gpu_allreduce(
    const void* gpu, const char* name, int32_t tensors, void* const* buffers,
    const int64_t* counts, int32_t dtype, int32_t op, double prescale_factor);

#endif  // TFRING_OPS_CAPI_GPU_H_
