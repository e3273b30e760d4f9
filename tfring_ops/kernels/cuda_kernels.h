// The kernels on the memory of an NVIDIA GPU: cuda_kernels.cu, launched.
//
// Behaviour that kernels.h does not specify:
// - All work is enqueued in the order of the stream: Synchronize does not wait.
//   The first error is kept, and makes later calls do nothing.
// - Upload waits for the stream, and so do Allocate and Free: see
//   Note [Waits of the driver] in cuda.h.
// - Adasum is computed on the host, and waits: it needs two whole tensors, and
//   its bits must not depend on the shape of a grid.
#ifndef TFRING_OPS_KERNELS_CUDA_KERNELS_H_
#define TFRING_OPS_KERNELS_CUDA_KERNELS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {

// The text of cuda_kernels.ptx, zero-terminated.
extern "C" const char tfring_cuda_ptx[];

class CudaKernels final : public Kernels {
 public:
  // Loads the kernels for the calling thread's GPU, of this capability (80 is
  // 8.0).  It takes the code that is built in for it.  Without such code, or if
  // the driver refuses it, the driver compiles the PTX.
  // REQUIRES: `context` and `stream` outlive the kernels.
  static absl::StatusOr<std::unique_ptr<CudaKernels>> Load(
      const CudaDriver& driver, CUcontext context, CUstream stream,
      int capability);
  ~CudaKernels() override;

  void Reduce(void* dst, const void* a, const void* b, int64_t count,
              DataType dtype, ReduceOp op) const override;
  void Scale(void* dst, const void* src, int64_t count, DataType dtype,
             double factor) const override;
  void Copy(void* dst, const void* src, int64_t bytes) const override;
  void CopyPieces(absl::Span<const CopyPiece> pieces, DataType from,
                  DataType to, double factor) const override;
  void Upload(void* dst, const void* host, int64_t bytes) const override;
  void Adasum(void* dst, const void* a, const void* b, int64_t count,
              DataType dtype) const override;
  absl::Status Synchronize() const override { return status_; }
  absl::Status AwaitWork() const override;
  absl::StatusOr<void*> Allocate(int64_t bytes) const override;
  void Free(void* memory) const override;

  // See CudaDevice.
  void WaitBy(std::function<absl::Status()> wait) { wait_ = std::move(wait); }
  void Abandon() { is_abandoned_ = true; }
  bool is_abandoned() const { return is_abandoned_; }

 private:
  CudaKernels(const CudaDriver& driver, CUcontext context, CUstream stream)
      : driver_(driver), context_(context), stream_(stream) {}

  absl::Status LoadModule(int capability);
  absl::Status CompileModule();
  absl::Status FindFunctions();
  // Returns the function that copies pieces of these types.  copy_ counts
  // bytes, and the others count elements.
  CUfunction CopyFunction(DataType from, DataType to, double factor) const;
  // Launches a function with at most kMostBlocks blocks of threads.
  template <typename... Parameters>
  absl::Status Launch(CUfunction function, int64_t blocks,
                      Parameters&... parameters) const;
  absl::Status AdasumOnHost(void* dst, const void* a, const void* b,
                            int64_t count, DataType dtype) const;
  // Calls ask(), which returns a Status, with the context current.
  template <typename Ask>
  void Do(const Ask& ask) const;

  const CudaDriver& driver_;
  const CUcontext context_;
  const CUstream stream_;
  CUmodule module_ = nullptr;
  std::array<std::array<CUfunction, kReductionCount>, kDataTypeCount> reduce_{};
  CUfunction copy_ = nullptr;  // copies bytes
  std::array<CUfunction, kDataTypeCount> scale_{};
  // Conversions from one type to another, where supported.
  std::array<std::array<CUfunction, kDataTypeCount>, kDataTypeCount> convert_{};
  mutable absl::Status status_;
  std::function<absl::Status()> wait_;
  bool is_abandoned_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CUDA_KERNELS_H_
