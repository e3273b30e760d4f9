#include "tfring_ops/runtime/device_lane.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/nccl/collectives.h"
#include "tfring_ops/transport/cuda/cuda.h"
#include "tfring_ops/transport/exchange.h"

namespace tfring {
namespace {

// A status as a message to the other ranks.
struct Word {
  absl::StatusCode code = absl::StatusCode::kOk;
  char text[500] = "";
};

absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int32_t device) {
  if (device == kHost) {  // This rank has joined, and has not named its GPU.
    TFRING_ASSIGN_OR_RETURN(device, CudaDeviceInUse());
  }
  return CudaDevice::ForOrdinal(device);
}

}  // namespace

absl::Status FirstError(Transport& transport, const absl::Status& own) {
  Word mine;
  mine.code = own.code();
  const auto length = std::min(own.message().size(), sizeof(mine.text) - 1);
  std::memcpy(mine.text, own.message().data(), length);
  TFRING_ASSIGN_OR_RETURN(const std::vector<Word> words,
                          ExchangeOne(transport, mine));
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (words[rank].code == absl::StatusCode::kOk) continue;
    return absl::Status(words[rank].code,
                        absl::StrCat("rank ", rank, ": ", words[rank].text));
  }
  return absl::OkStatus();
}

absl::StatusOr<Lane> MakeDeviceLane(const Options& options, int32_t device,
                                    Transport& data) {
  absl::StatusOr<std::unique_ptr<CudaDevice>> made = Open(device);
  TFRING_RETURN_IF_ERROR(FirstError(data, made.status()));
  std::shared_ptr<CudaDevice> cuda = *std::move(made);
  absl::StatusOr<std::unique_ptr<Transport>> transport =
      MakeCudaTransport(*cuda, data, options);
  TFRING_RETURN_IF_ERROR(FirstError(data, transport.status()));

  Lane lane;
  TFRING_ASSIGN_OR_RETURN(lane.collectives,
                          MakeNcclCollectives(*cuda, data, options));
  lane.transport = *std::move(transport);
  lane.kernels = &cuda->kernels();
  lane.stream = cuda->stream();
  lane.finish = [cuda] { return cuda->Finish(); };
  return lane;
}

}  // namespace tfring
