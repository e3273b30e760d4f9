#include "tfring_ops/runtime/device_lane.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfring_ops/algorithms/adaptive/cost_measurement.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/kernels/workspace.h"
#include "tfring_ops/nccl/collectives.h"
#include "tfring_ops/transport/cuda/cuda.h"
#include "tfring_ops/transport/exchange.h"

namespace tfring {
namespace {

// Returns OK if `own` is OK on every rank.  Otherwise every rank gets the error
// of the first rank that has one.  Collective.
absl::Status FirstOfAllRanks(Transport& transport, const absl::Status& own) {
  TFRING_ASSIGN_OR_RETURN(const std::vector<StatusBlock> statuses,
                          ExchangeOne(transport, StatusBlock(own)));
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (statuses[rank].ok()) continue;
    return absl::Status(statuses[rank].code,
                        absl::StrCat("rank ", rank, ": ", statuses[rank].text));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int32_t device) {
  if (device == kHost) {  // This rank has joined, and has not named its GPU.
    TFRING_ASSIGN_OR_RETURN(device, CudaDeviceInUse());
  }
  return CudaDevice::ForOrdinal(device);
}

// Messages of this size consist of several segments, whose bytes take longer
// than the calls that enqueue them.
constexpr int64_t kMeasuredBytes = 16 << 20;

// Returns when the stream is idle, or an error if a rank is lost meanwhile.
absl::Status Await(const CudaDevice& cuda, Transport& transport,
                   double timeout_seconds) {
  TFRING_ASSIGN_OR_RETURN(const std::unique_ptr<CudaEvent> event,
                          CudaEvent::Create(cuda));
  TFRING_RETURN_IF_ERROR(event->Record(cuda.stream()));
  const auto begin = std::chrono::steady_clock::now();
  for (Backoff backoff;; backoff.Pause()) {
    TFRING_ASSIGN_OR_RETURN(const bool done, event->Done());
    if (done) return absl::OkStatus();
    TFRING_RETURN_IF_ERROR(transport.Progress());
    if (IsTooLong(std::chrono::steady_clock::now() - begin, timeout_seconds)) {
      return absl::DeadlineExceededError(
          absl::StrCat("no message between GPUs for ", timeout_seconds,
                       " s, when their links were measured"));
    }
  }
}

// Returns nothing if no choice depends on the costs.
absl::StatusOr<std::optional<Costs>> MeasureDevice(const Options& options,
                                                   const CudaDevice& cuda,
                                                   Transport& transport,
                                                   Transport& host) {
  const Layout layout = Layout::Of(transport);
  if (options.deterministic || Plans(layout, options.allreduce).size() == 1) {
    return std::nullopt;
  }
  Workspace scratch(cuda.kernels());
  const RingContext ring{transport, cuda.kernels(),
                         options.device_segment_bytes, scratch};
  const auto await = [&] {
    return Await(cuda, transport, options.transport_timeout_seconds());
  };
  const auto largest = [&](double own) -> absl::StatusOr<double> {
    TFRING_ASSIGN_OR_RETURN(const std::vector<double> values,
                            ExchangeOne(host, own));
    return *std::max_element(values.begin(), values.end());
  };
  return MeasureCosts(ring, kMeasuredBytes, await, largest);
}

}  // namespace

absl::StatusOr<Lane> MakeDeviceLane(const Options& options, int32_t device,
                                    Transport& data, LaunchPlace place) {
  absl::StatusOr<std::unique_ptr<CudaDevice>> made = Open(device);
  TFRING_RETURN_IF_ERROR(FirstOfAllRanks(data, made.status()));
  std::shared_ptr<CudaDevice> cuda = *std::move(made);

  Lane lane;
  if (options.gpu_backend != Options::GpuBackend::kRing) {
    lane.await_turn = TakesTurns(place, data, options.stall_shutdown_seconds);
  }
  // Checking and measuring the links takes a turn, too: see Note [Why the ring
  // takes turns] in nccl/launch_order.h.
  std::shared_ptr<void> turn;
  if (lane.await_turn) {
    absl::StatusOr<std::shared_ptr<void>> own = lane.await_turn();
    if (!own.ok()) {
      // Other ranks may have their turn, and be waiting for this rank.
      data.Abort(own.status());
      return own.status();
    }
    turn = *std::move(own);
  }
  absl::StatusOr<std::unique_ptr<Transport>> transport =
      MakeCudaTransport(*cuda, data, options);
  TFRING_RETURN_IF_ERROR(FirstOfAllRanks(data, transport.status()));
  TFRING_ASSIGN_OR_RETURN(
      lane.collectives,
      MakeNcclCollectives(*cuda, data, options, std::move(place)));
  lane.transport = *std::move(transport);
  if (lane.collectives == nullptr) {
    auto costs = MeasureDevice(options, *cuda, *lane.transport, data);
    if (!costs.ok()) {
      // The remaining ranks wait for messages that will not be sent.
      lane.transport->Abort(costs.status());
      return costs.status();
    }
    lane.costs = *costs;
  }
  lane.kernels = &cuda->kernels();
  lane.stream = cuda->stream();
  lane.finish = [cuda] { return cuda->Finish(); };
  return lane;
}

}  // namespace tfring
