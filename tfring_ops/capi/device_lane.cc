#include "tfring_ops/capi/device_lane.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/transport/cuda.h"

namespace tfring {
namespace {

// A status on its way.
struct Word {
  absl::StatusCode code = absl::StatusCode::kOk;
  char text[500] = "";
};

}  // namespace

absl::Status Agree(Transport& transport, const absl::Status& own) {
  std::vector<Word> words(transport.size());
  Word& mine = words[transport.rank()];
  mine.code = own.code();
  const auto length = std::min(own.message().size(), sizeof(mine.text) - 1);
  std::memcpy(mine.text, own.message().data(), length);

  std::vector<Request> requests;
  const auto with_peers = [&](const auto& start) {
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer != transport.rank()) requests.push_back(start(peer));
    }
  };
  with_peers([&](int peer) {
    auto* const to = reinterpret_cast<std::byte*>(&words[peer]);
    return transport.StartRecv(peer, Bytes(to, sizeof(Word)));
  });
  with_peers([&](int peer) {
    const auto* const from = reinterpret_cast<const std::byte*>(&mine);
    return transport.StartSend(peer, ConstBytes(from, sizeof(Word)));
  });
  for (const Request request : requests) {
    TFRING_RETURN_IF_ERROR(transport.Wait(request));
  }
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (words[rank].code == absl::StatusCode::kOk) continue;
    return absl::Status(words[rank].code,
                        absl::StrCat("rank ", rank, ": ", words[rank].text));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> CudaDeviceNames() {
  std::vector<std::string> names;
  TFRING_ASSIGN_OR_RETURN(const int count, CudaDeviceCount());
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    TFRING_ASSIGN_OR_RETURN(const std::unique_ptr<CudaDevice> device,
                            CudaDevice::ForOrdinal(ordinal));
    names.push_back(device->name());
  }
  return names;
}

absl::StatusOr<Lane> MakeDeviceLane(const Options& options, int32_t device,
                                    Transport& data) {
  absl::StatusOr<std::unique_ptr<CudaDevice>> made =
      CudaDevice::ForOrdinal(device);
  TFRING_RETURN_IF_ERROR(Agree(data, made.status()));
  std::shared_ptr<CudaDevice> cuda = *std::move(made);
  absl::StatusOr<std::unique_ptr<Transport>> transport =
      MakeCudaTransport(*cuda, data, options);
  TFRING_RETURN_IF_ERROR(Agree(data, transport.status()));

  Lane lane;
  lane.transport = *std::move(transport);
  lane.kernels = &cuda->kernels();
  lane.stream = cuda->stream();
  lane.finish = [cuda] { return cuda->Finish(); };
  return lane;
}

}  // namespace tfring
