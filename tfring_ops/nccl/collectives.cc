#include "tfring_ops/nccl/collectives.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/base/log.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/nccl/communicator.h"
#include "tfring_ops/nccl/library.h"
#include "tfring_ops/transport/exchange.h"

namespace tfring {
namespace {

constexpr int kNcclUint8 = 1;

// The types and reductions of NCCL, in the order of ncclDataType_t and
// ncclRedOp_t.  The ring reduces all others.  ncclAvg is not among them,
// because it divides integers differently from the ring.
constexpr DataType kTypes[] = {DataType::kInt8,    DataType::kUint8,
                               DataType::kInt32,   DataType::kUint32,
                               DataType::kInt64,   DataType::kUint64,
                               DataType::kFloat16, DataType::kFloat32,
                               DataType::kFloat64, DataType::kBfloat16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax,
                             ReduceOp::kMin};

template <typename T, size_t N>
std::optional<int> IndexIn(const T (&all)[N], T wanted) {
  const auto* const found = std::find(std::begin(all), std::end(all), wanted);
  if (found == std::end(all)) return std::nullopt;
  return static_cast<int>(found - all);
}

// Returns nothing for a type that NCCL does not reduce.
std::optional<int> NcclType(DataType dtype) { return IndexIn(kTypes, dtype); }

std::optional<int> NcclOp(ReduceOp op) {
  return IndexIn(kOps, op == ReduceOp::kAverage ? ReduceOp::kSum : op);
}

class NcclCollectives final : public StreamCollectives {
 public:
  NcclCollectives(std::unique_ptr<NcclCommunicator> communicator,
                  const Kernels& kernels, int rank, int size)
      : communicator_(std::move(communicator)),
        kernels_(kernels),
        rank_(rank),
        size_(size) {}

  bool Reduces(DataType dtype, ReduceOp op) const override {
    return NcclType(dtype).has_value() && NcclOp(op).has_value();
  }

  absl::Status Allreduce(const RingBuffers& buffers) override {
    const RingPiece whole{buffers.input, buffers.output, buffers.count};
    const absl::Span<const RingPiece> pieces =
        buffers.pieces.empty() ? absl::MakeConstSpan(&whole, 1)
                               : buffers.pieces;
    TFRING_RETURN_IF_ERROR(communicator_->Group(
        [&](const NcclLibrary& nccl, auto comm, auto* stream) -> absl::Status {
          for (const RingPiece& piece : pieces) {
            TFRING_RETURN_IF_ERROR(nccl.ncclAllReduce(
                piece.input, piece.output, piece.count,
                *NcclType(buffers.dtype), *NcclOp(buffers.op), comm, stream));
          }
          return absl::OkStatus();
        }));
    for (const RingPiece& piece : pieces) {
      Scale(buffers, piece.output, piece.count);
    }
    return kernels_.Synchronize();
  }

  absl::Status StagedAllreduce(const RingBuffers& buffers,
                               absl::Span<std::byte> stage,
                               Staging& staging) override {
    const int64_t stage_count = DownToBorder(
        static_cast<int64_t>(stage.size()) / SizeInBytes(buffers.dtype),
        buffers.dtype);
    RingBuffers block = buffers;
    block.input = block.output = stage.data();
    block.pieces = {};
    for (int64_t first = 0; first < buffers.count; first += block.count) {
      block.count = std::min(stage_count, buffers.count - first);
      staging.Load({first, block.count}, stage.data());
      TFRING_RETURN_IF_ERROR(Allreduce(block));
      staging.Store({first, block.count}, stage.data());
    }
    return kernels_.Synchronize();
  }

  absl::Status ReduceScatterOwn(const RingBuffers& buffers,
                                absl::Span<const Range> chunks) override {
    const int type = *NcclType(buffers.dtype);
    const int op = *NcclOp(buffers.op);
    const auto* const input = static_cast<const std::byte*>(buffers.input);
    TFRING_RETURN_IF_ERROR(communicator_->Group(
        [&](const NcclLibrary& nccl, auto comm, auto* stream) -> absl::Status {
          if (AreEqual(chunks)) {
            return nccl.ncclReduceScatter(
                input, buffers.output, chunks[0].count, type, op, comm, stream);
          }
          for (int rank = 0; rank < size_; ++rank) {
            if (chunks[rank].count == 0) continue;
            TFRING_RETURN_IF_ERROR(nccl.ncclReduce(
                input + chunks[rank].offset * SizeInBytes(buffers.dtype),
                buffers.output, chunks[rank].count, type, op, rank, comm,
                stream));
          }
          return absl::OkStatus();
        }));
    Scale(buffers, buffers.output, chunks[rank_].count);
    return kernels_.Synchronize();
  }

  absl::Status Allgather(const void* input, void* output,
                         absl::Span<const int64_t> bytes_of_rank) override {
    return communicator_->Group([&](const NcclLibrary& nccl, auto comm,
                                    auto* stream) -> absl::Status {
      const int64_t first = bytes_of_rank[0];
      if (std::count(bytes_of_rank.begin(), bytes_of_rank.end(), first) ==
          size_) {
        return nccl.ncclAllGather(input, output, first, kNcclUint8, comm,
                                  stream);
      }
      auto* part = static_cast<std::byte*>(output);
      for (int rank = 0; rank < size_; ++rank) {
        const int64_t bytes = bytes_of_rank[rank];
        if (bytes == 0) continue;
        TFRING_RETURN_IF_ERROR(nccl.ncclBroadcast(rank == rank_ ? input : part,
                                                  part, bytes, kNcclUint8, rank,
                                                  comm, stream));
        part += bytes;
      }
      return absl::OkStatus();
    });
  }

  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    return communicator_->Group(
        [&](const NcclLibrary& nccl, auto comm, auto* stream) {
          return nccl.ncclBroadcast(data, data, bytes, kNcclUint8, root, comm,
                                    stream);
        });
  }

  absl::Status Then(std::function<void()> done) override {
    return communicator_->Then(std::move(done));
  }
  int left() const override { return communicator_->left(); }
  absl::StatusOr<bool> Poll() override { return communicator_->Poll(); }
  absl::Status Finish() override { return communicator_->Finish(); }

  void Abort(const absl::Status& reason) override {
    communicator_->Abort(reason);
  }

 private:
  // Returns true if the chunks are contiguous and of equal length.
  static bool AreEqual(absl::Span<const Range> chunks) {
    int64_t offset = 0;
    for (const Range& chunk : chunks) {
      if (chunk.count != chunks[0].count || chunk.offset != offset) {
        return false;
      }
      offset += chunk.count;
    }
    return true;
  }

  // Scales each element once, as the ring does.
  void Scale(const RingBuffers& buffers, void* output, int64_t count) const {
    const double scale = buffers.op == ReduceOp::kAverage
                             ? buffers.scale / size_
                             : buffers.scale;
    if (scale != 1.0) kernels_.Scale(output, count, buffers.dtype, scale);
  }

  const std::unique_ptr<NcclCommunicator> communicator_;
  const Kernels& kernels_;
  const int rank_, size_;
};

// A rank's message to all ranks before the decision.
struct Introduction {
  StatusBlock status;  // an error if the rank cannot use NCCL
  std::array<char, 16> gpu;
  NcclUniqueId id;  // all ranks take that of rank 0
};

Introduction Introduce(const CudaDevice& device, int rank,
                       const NcclLibrary** nccl) {
  Introduction own{};
  const absl::StatusOr<const NcclLibrary*> found = NcclLibrary::Get();
  absl::Status status = found.status();
  if (status.ok()) {
    *nccl = *found;
    if (rank == 0) status = (*nccl)->ncclGetUniqueId(&own.id);
  }
  own.status = StatusBlock(status);
  own.gpu = device.uuid();
  return own;
}

// Returns OK if NCCL can serve these ranks, or the first rank's reason why not.
absl::Status Suits(const std::vector<Introduction>& ranks,
                   const Transport& host) {
  for (int rank = 0; rank < host.size(); ++rank) {
    if (ranks[rank].status.ok()) continue;
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, ": ", ranks[rank].status.text));
  }
  for (int rank = 0; rank < host.size(); ++rank) {
    for (int other = 0; other < rank; ++other) {
      if (ranks[rank].gpu != ranks[other].gpu ||
          host.node_of(rank) != host.node_of(other)) {
        continue;
      }
      return absl::UnavailableError(
          absl::StrCat("ranks ", other, " and ", rank,
                       " share a GPU, and NCCL wants one for each"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamCollectives>> MakeNcclCollectives(
    const CudaDevice& device, Transport& host, const Options& options,
    LaunchPlace place) {
  using GpuBackend = Options::GpuBackend;
  const bool is_auto = options.gpu_backend == GpuBackend::kAuto;
  if (options.gpu_backend == GpuBackend::kRing ||
      (is_auto && (host.size() == 1 || options.deterministic))) {
    return nullptr;
  }
  const auto say = [&](absl::string_view text) {
    if (options.verbose && host.rank() == 0) LogInfo(0, text);
  };
  const NcclLibrary* nccl = nullptr;
  TFRING_ASSIGN_OR_RETURN(
      const std::vector<Introduction> ranks,
      ExchangeOne(host, Introduce(device, host.rank(), &nccl)));
  absl::Status status = Suits(ranks, host);
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<NcclCommunicator>> made =
        NcclCommunicator::Create(*nccl, device, host, ranks[0].id,
                                 std::move(place),
                                 options.stall_shutdown_seconds);
    if (made.ok()) {
      say(absl::StrCat("tensors on GPUs: by NCCL ", nccl->version(), ", ",
                       nccl->path()));
      return std::make_unique<NcclCollectives>(
          *std::move(made), device.kernels(), host.rank(), host.size());
    }
    status = made.status();
  }
  if (is_auto) {
    say(
        absl::StrCat("tensors on GPUs: by tfring's ring, as NCCL does not "
                     "serve: ",
                     status.message()));
    return nullptr;
  }
  return absl::UnavailableError(
      absl::StrCat("TFRING_GPU_BACKEND=nccl: NCCL does not serve these ranks: ",
                   status.message(),
                   ". TFRING_GPU_BACKEND=auto goes round tfring's ring "
                   "then."));
}

}  // namespace tfring
