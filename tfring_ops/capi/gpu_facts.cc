// The facts about GPUs that `tfringrun --check-build` prints.
#include <cmath>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tfring_ops/capi/c_status.h"
#include "tfring_ops/capi/capi.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/nccl/library.h"
#include "tfring_ops/transport/mpi/mpi.h"

namespace tfring {
namespace {

void Say(std::string& lines, absl::string_view what, absl::string_view text) {
  absl::StrAppend(&lines, what, "\t", text, "\n");
}

// Describes one GPU, and says if its memory can be exported to other processes.
void DescribeGpu(std::string& lines, int ordinal) {
  const std::string name = absl::StrCat("GPU ", ordinal);
  const absl::StatusOr<std::unique_ptr<CudaDevice>> opened =
      CudaDevice::ForOrdinal(ordinal);
  if (!opened.ok()) {
    Say(lines, name,
        absl::StrCat("not to be used: ", opened.status().message()));
    return;
  }
  const CudaDevice& device = **opened;
  const double gibibytes =
      static_cast<double>(device.memory_bytes()) / (1 << 30);
  const absl::Status exported = device.TryExport();
  Say(lines, name,
      absl::StrCat(device.name(), ", ", std::round(gibibytes * 10) / 10,
                   " GiB"));
  Say(lines, "CUDA IPC",
      exported.ok()
          ? absl::StrCat("yes, on GPU ", ordinal)
          : absl::StrCat("no, on GPU ", ordinal, ": ", exported.message()));
}

std::string DescribeNccl() {
  const absl::StatusOr<const NcclLibrary*> found = NcclLibrary::Get();
  if (!found.ok()) return std::string(found.status().message());
  const NcclLibrary& nccl = **found;
  const int version = nccl.version();
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".",
                      version % 100, ", ", nccl.path(),
                      "; used unless TFRING_GPU_BACKEND=ring");
}

std::string DescribeGpus() {
  std::string lines;
  const absl::StatusOr<std::string> driver = CudaDriverVersion();
  const absl::StatusOr<int> count = CudaDeviceCount();
  Say(lines, "GPU driver",
      driver.ok() ? absl::StrCat("for CUDA ", *driver)
                  : std::string(driver.status().message()));
  if (count.ok()) {
    if (*count == 0) Say(lines, "GPUs", "none that this process may use");
    for (int i = 0; i < *count; ++i) DescribeGpu(lines, i);
  } else if (driver.ok()) {
    Say(lines, "GPUs", count.status().message());
  }
  Say(lines, "CUDA MPI",
      MpiIsCudaAware() ? "yes: the library says that it takes GPUs' memory"
                       : "no: what MPI sends goes through host memory");
  Say(lines, "NCCL", DescribeNccl());
  return lines;
}

}  // namespace
}  // namespace tfring

const char* tfring_describe_gpus() {
  return tfring::RunAsText([] { return tfring::DescribeGpus(); });
}

int32_t tfring_nccl_version() {
  return tfring::RunOr<int32_t>(0, [] {
    const auto found = tfring::NcclLibrary::Get();
    return found.ok() ? (*found)->version() : 0;
  });
}
