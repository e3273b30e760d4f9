#include "tfring_ops/kernels/cuda_kernels.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/adasum.h"
#include "tfring_ops/kernels/cuda_cubins.h"
#include "tfring_ops/kernels/cuda_pieces.h"

// The PTX of the kernels, which the assembler includes from the file beside the
// source.
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

constexpr int64_t kBytesPerThread = 16;  // cuda_kernels.cu: Vector
// A tile has four vectors for each thread, of the larger type of element.
constexpr int64_t kTileBytes =
    int64_t{kCudaThreadsPerBlock} * kBytesPerThread * 4;

// The most blocks of a grid.  The bus between GPUs bounds the kernels, and 64
// blocks fill it (Note [Loads in flight] in cuda_kernels.cu).  More would help
// only on an idle GPU: backpropagation keeps the remaining multiprocessors, and
// half of the threads of these.
constexpr int64_t kMostBlocks = 64;

// Returns the name of `op` in cuda_kernels.cu.
const char* KernelName(ReduceOp op) {
  return op == ReduceOp::kAverage ? Name(ReduceOp::kSum) : Name(op);
}

int64_t Quotient(int64_t count, int64_t divisor) {
  return (count + divisor - 1) / divisor;  // rounded up
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaKernels>> CudaKernels::Load(
    const CudaDriver& driver, CUcontext context, CUstream stream,
    int capability) {
  std::unique_ptr<CudaKernels> kernels(
      new CudaKernels(driver, context, stream));
  TFRING_RETURN_IF_ERROR(kernels->LoadModule(capability));
  TFRING_RETURN_IF_ERROR(kernels->FindFunctions());
  return kernels;
}

absl::Status CudaKernels::LoadModule(int capability) {
  const CudaCubin* const cubin = CubinFor(capability, CudaCubins());
  if (cubin == nullptr) return CompileModule();
  const absl::Status loaded =
      driver_.cuModuleLoadDataEx(&module_, cubin->image, 0, nullptr, nullptr);
  if (loaded.ok()) return absl::OkStatus();
  // The driver is older than the built-in code.
  const absl::Status compiled = CompileModule();
  if (compiled.ok()) return absl::OkStatus();
  return absl::Status(
      compiled.code(),
      absl::StrCat(compiled.message(), "; and of what was compiled for ",
                   cubin->capability / 10, ".", cubin->capability % 10,
                   " before: ", loaded.message()));
}

absl::Status CudaKernels::CompileModule() {
  // CU_JIT_ERROR_LOG_BUFFER and its _SIZE_BYTES.
  std::array<int, 2> options = {5, 6};
  std::array<char, 1024> log{};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): so the driver wants a number.
  void* const log_bytes = reinterpret_cast<void*>(log.size() - 1);
  std::array<void*, 2> values = {log.data(), log_bytes};
  const absl::Status status = driver_.cuModuleLoadDataEx(
      &module_, tfring_cuda_ptx, options.size(), options.data(), values.data());
  if (status.ok()) return absl::OkStatus();
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), " ", log.data()));
}

CudaKernels::~CudaKernels() {
  const CudaScope scope(driver_, context_);
  if (module_ != nullptr) driver_.cuModuleUnload.Result(module_);
}

absl::Status CudaKernels::FindFunctions() {
  TFRING_RETURN_IF_ERROR(
      driver_.cuModuleGetFunction(&copy_, module_, "tfring_copy_uint8"));
  for (int type = 0; type < kDataTypeCount; ++type) {
    const auto dtype = static_cast<DataType>(type);
    for (int number = 0; number < kReductionCount; ++number) {
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
    for (int to_type = 0; to_type < kDataTypeCount; ++to_type) {
      const auto to = static_cast<DataType>(to_type);
      if (to == dtype || !(CanTravelAs(dtype, to) || CanTravelAs(to, dtype))) {
        continue;
      }
      TFRING_RETURN_IF_ERROR(driver_.cuModuleGetFunction(
          &convert_[type][to_type], module_,
          absl::StrCat("tfring_convert_", Name(dtype), "_", Name(to)).c_str()));
    }
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
absl::Status CudaKernels::Launch(CUfunction function, int64_t blocks,
                                 Parameters&... parameters) const {
  void* addresses[] = {static_cast<void*>(&parameters)...};
  return driver_.cuLaunchKernel(
      function, static_cast<unsigned>(std::min(blocks, kMostBlocks)), 1, 1,
      kCudaThreadsPerBlock, 1, 1, 0, stream_, addresses, nullptr);
}

void CudaKernels::Reduce(void* dst, const void* a, const void* b, int64_t count,
                         DataType dtype, ReduceOp op) const {
  if (count == 0) return;
  Do([&] {
    return Launch(reduce_[static_cast<int>(dtype)][static_cast<int>(op)],
                  Quotient(count * SizeInBytes(dtype),
                           kCudaThreadsPerBlock * kBytesPerThread),
                  dst, a, b, count);
  });
}

void CudaKernels::Scale(void* dst, const void* src, int64_t count,
                        DataType dtype, double factor) const {
  if (factor == 1.0 || dtype == DataType::kBool) {
    return Copy(dst, src, count * SizeInBytes(dtype));
  }
  const CopyPiece piece = {src, dst, count};
  CopyPieces(absl::MakeConstSpan(&piece, 1), dtype, dtype, factor);
}

CUfunction CudaKernels::CopyFunction(DataType from, DataType to,
                                     double factor) const {
  const auto type = static_cast<size_t>(from);
  if (from != to) return convert_[type][static_cast<size_t>(to)];
  const bool scales = factor != 1.0 && to != DataType::kBool;
  return scales ? scale_[type] : copy_;
}

void CudaKernels::CopyPieces(absl::Span<const CopyPiece> pieces, DataType from,
                             DataType to, double factor) const {
  Do([&] {
    const CUfunction function = CopyFunction(from, to, factor);
    const int64_t element_bytes = std::max(SizeInBytes(from), SizeInBytes(to));
    const int64_t units = function == copy_ ? element_bytes : 1;  // an element
    const int64_t tile_count = kTileBytes / element_bytes * units;
    size_t next = 0;
    while (next < pieces.size()) {
      // The driver copies the table when it launches the kernel.
      CudaPieces table = {};
      table.tile_count = tile_count;
      table.factor = factor;
      int64_t tiles = 0;
      for (; next < pieces.size() && table.count < CudaPieces::kMost; ++next) {
        const CopyPiece& piece = pieces[next];
        if (piece.count == 0) continue;
        tiles += Quotient(piece.count * units, tile_count);
        table.pieces[table.count++] = {piece.from, piece.to,
                                       piece.count * units, tiles};
      }
      if (tiles == 0) break;
      TFRING_RETURN_IF_ERROR(Launch(function, tiles, table));
    }
    return absl::OkStatus();
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
    TFRING_RETURN_IF_ERROR(AwaitWork());
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
  TFRING_RETURN_IF_ERROR(AwaitWork());
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

absl::Status CudaKernels::AwaitWork() const {
  return wait_ == nullptr ? absl::OkStatus() : wait_();
}

absl::StatusOr<void*> CudaKernels::Allocate(int64_t bytes) const {
  TFRING_ENTER_CONTEXT(driver_, context_);
  TFRING_RETURN_IF_ERROR(AwaitWork());
  CUdeviceptr address = 0;
  TFRING_RETURN_IF_ERROR(driver_.cuMemAlloc(&address, bytes));
  return DeviceMemory(address);
}

// Freeing memory waits for the work that still uses it.
void CudaKernels::Free(void* memory) const {
  const CudaScope scope(driver_, context_);
  AwaitWork().IgnoreError();  // After an error, nothing waits any more.
  if (is_abandoned_) return;
  driver_.cuMemFree.Result(DeviceAddress(memory));
}

}  // namespace tfring
