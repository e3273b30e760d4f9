#include "tfring_ops/kernels/cuda_kernels.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/adasum.h"

// The text of the kernels, as the assembler finds it beside their source.
asm(R"(
    .section .rodata
    .globl tfring_cuda_ptx
    .hidden tfring_cuda_ptx
    .balign 16
tfring_cuda_ptx:
    .incbin "tfring_ops/kernels/cuda_kernels.ptx"
    .byte 0
    .previous
)");

namespace tfring {
namespace {

constexpr unsigned kThreadsPerBlock = 256;
constexpr int64_t kBytesPerThread = 16;  // cuda_kernels.cu: Vector

// cuda_kernels.cu's word for it.
const char* KernelName(ReduceOp op) {
  return op == ReduceOp::kAverage ? Name(ReduceOp::kSum) : Name(op);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaKernels>> CudaKernels::Load(
    const CudaDriver& driver, CUcontext context, CUstream stream,
    int multiprocessors) {
  std::unique_ptr<CudaKernels> kernels(
      new CudaKernels(driver, context, stream, multiprocessors));
  // CU_JIT_ERROR_LOG_BUFFER and its _SIZE_BYTES.
  std::array<int, 2> options = {5, 6};
  std::array<char, 1024> log{};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): so the driver wants a number.
  void* const log_bytes = reinterpret_cast<void*>(log.size() - 1);
  std::array<void*, 2> values = {log.data(), log_bytes};
  const absl::Status status =
      driver.cuModuleLoadDataEx(&kernels->module_, tfring_cuda_ptx,
                                options.size(), options.data(), values.data());
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), " ", log.data()));
  }
  TFRING_RETURN_IF_ERROR(kernels->FindFunctions());
  return kernels;
}

CudaKernels::~CudaKernels() {
  const CudaScope scope(driver_, context_);
  if (module_ != nullptr) driver_.cuModuleUnload.Result(module_);
}

absl::Status CudaKernels::FindFunctions() {
  for (int type = 0; type < kDataTypes; ++type) {
    const auto dtype = static_cast<DataType>(type);
    for (int number = 0; number < kReduceOps; ++number) {
      const std::string name =
          absl::StrCat("tfring_", KernelName(static_cast<ReduceOp>(number)),
                       "_", Name(dtype));
      TFRING_RETURN_IF_ERROR(driver_.cuModuleGetFunction(
          &reduce_[type][number], module_, name.c_str()));
    }
    if (dtype == DataType::kBool) continue;
    TFRING_RETURN_IF_ERROR(driver_.cuModuleGetFunction(
        &scale_[type], module_,
        absl::StrCat("tfring_scale_", Name(dtype)).c_str()));
  }
  return absl::OkStatus();
}

template <typename Ask>
void CudaKernels::Do(const Ask& ask) const {
  if (!status_.ok()) return;
  const CudaScope scope(driver_, context_);
  status_ = scope.status();
  if (status_.ok()) status_ = ask();
}

template <typename... Parameters>
absl::Status CudaKernels::Launch(CUfunction function, int64_t bytes,
                                 Parameters&... parameters) const {
  const int64_t bytes_per_block = kThreadsPerBlock * kBytesPerThread;
  const int64_t blocks = std::min<int64_t>(
      (bytes + bytes_per_block - 1) / bytes_per_block, most_blocks_);
  void* addresses[] = {static_cast<void*>(&parameters)...};
  return driver_.cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1,
                                kThreadsPerBlock, 1, 1, 0, stream_, addresses,
                                nullptr);
}

void CudaKernels::Reduce(void* dst, const void* a, const void* b, int64_t count,
                         DataType dtype, ReduceOp op) const {
  if (count == 0) return;
  Do([&] {
    return Launch(reduce_[static_cast<int>(dtype)][static_cast<int>(op)],
                  count * SizeInBytes(dtype), dst, a, b, count);
  });
}

void CudaKernels::Scale(void* dst, const void* src, int64_t count,
                        DataType dtype, double factor) const {
  if (factor == 1.0 || dtype == DataType::kBool) {
    return Copy(dst, src, count * SizeInBytes(dtype));
  }
  if (count == 0) return;
  Do([&] {
    return Launch(scale_[static_cast<int>(dtype)], count * SizeInBytes(dtype),
                  dst, src, count, factor);
  });
}

void CudaKernels::Copy(void* dst, const void* src, int64_t bytes) const {
  if (bytes == 0 || dst == src) return;
  Do([&] {
    return driver_.cuMemcpyDtoDAsync(DeviceAddress(dst), DeviceAddress(src),
                                     bytes, stream_);
  });
}

void CudaKernels::Upload(void* dst, const void* host, int64_t bytes) const {
  if (bytes == 0) return;
  Do([&] {
    TFRING_RETURN_IF_ERROR(
        driver_.cuMemcpyHtoDAsync(DeviceAddress(dst), host, bytes, stream_));
    return driver_.cuStreamSynchronize(stream_);
  });
}

void CudaKernels::Adasum(void* dst, const void* a, const void* b, int64_t count,
                         DataType dtype) const {
  if (count == 0) return;
  Do([&] { return AdasumOnHost(dst, a, b, count, dtype); });
}

absl::Status CudaKernels::AdasumOnHost(void* dst, const void* a, const void* b,
                                       int64_t count, DataType dtype) const {
  const int64_t bytes = count * SizeInBytes(dtype);
  std::vector<std::byte> host_a(bytes), host_b(bytes);
  TFRING_RETURN_IF_ERROR(driver_.cuMemcpyDtoHAsync(
      host_a.data(), DeviceAddress(a), bytes, stream_));
  TFRING_RETURN_IF_ERROR(driver_.cuMemcpyDtoHAsync(
      host_b.data(), DeviceAddress(b), bytes, stream_));
  TFRING_RETURN_IF_ERROR(driver_.cuStreamSynchronize(stream_));
  tfring::Adasum(host_a.data(), host_a.data(), host_b.data(), count, dtype);
  TFRING_RETURN_IF_ERROR(driver_.cuMemcpyHtoDAsync(
      DeviceAddress(dst), host_a.data(), bytes, stream_));
  return driver_.cuStreamSynchronize(stream_);
}

absl::StatusOr<void*> CudaKernels::Allocate(int64_t bytes) const {
  const CudaScope scope(driver_, context_);
  TFRING_RETURN_IF_ERROR(scope.status());
  CUdeviceptr address = 0;
  TFRING_RETURN_IF_ERROR(driver_.cuMemAlloc(&address, bytes));
  return DeviceMemory(address);
}

// The driver waits for what still uses it.
void CudaKernels::Free(void* memory) const {
  const CudaScope scope(driver_, context_);
  driver_.cuMemFree.Result(DeviceAddress(memory));
}

}  // namespace tfring
