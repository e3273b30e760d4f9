#include "tfring_ops/engine/execution/executor.h"

#include <algorithm>
#include <numeric>

#include "tfring_ops/algorithms/pairwise/adasum.h"
#include "tfring_ops/algorithms/pairwise/alltoall.h"
#include "tfring_ops/algorithms/ring/allgather.h"
#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/broadcast.h"
#include "tfring_ops/algorithms/ring/reduce_scatter.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/execution/packing.h"
#include "tfring_ops/engine/negotiation/fusion.h"
#include "tfring_ops/engine/timeline.h"

namespace tfring {
namespace {

// For a tensor that is scaled or cast where the threshold forbids all fusion.
constexpr int64_t kScaledBytes = 16 << 20;

RingBuffers BuffersOf(const CollectiveRequest& request,
                      absl::Span<const RingPiece> pieces) {
  RingBuffers buffers;
  for (const RingPiece& piece : pieces) buffers.count += piece.count;
  buffers.dtype = WireType(request);
  buffers.op = request.op;
  buffers.scale = request.postscale_factor;
  return buffers;
}

// The same on every rank.
int64_t SegmentBytes(const Options& options, const Transport& transport,
                     Memory memory) {
  if (memory == Memory::kDevice) return options.device_segment_bytes;
  return Layout::Of(transport).nodes > 1 ? options.network_segment_bytes
                                         : options.segment_bytes;
}

}  // namespace

Executor::Executor(const Options& options, Transport& transport,
                   const Kernels& kernels, CostSource cost_source,
                   Memory memory, StreamCollectives* collectives)
    : fusion_threshold_bytes_(options.fusion_threshold_bytes),
      scratch_(kernels),
      fusion_buffer_(kernels),
      ring_{transport, kernels, SegmentBytes(options, transport, memory),
            scratch_},
      allreduce_(ring_, options, cost_source),
      collectives_(collectives) {}

bool Executor::Delegates(const CollectiveRequest& request) const {
  return collectives_ != nullptr && collectives_->Reduces(WireType(request));
}

absl::Status Executor::Allreduce(absl::Span<TensorEntry* const> entries) {
  const CollectiveRequest& first = entries[0]->request;
  std::vector<RingPiece> pieces;
  std::vector<int64_t> sizes;
  std::vector<double> factors;  // of the pieces
  for (TensorEntry* entry : entries) {
    const CollectiveRequest& request = entry->request;
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorEntry::Buffer& buffer = entry->buffers[i];
      sizes.push_back(SizeInBytes(WireType(request), request.tensors[i]));
      pieces.push_back({buffer.input, buffer.output,
                        sizes.back() / SizeInBytes(WireType(request))});
      factors.push_back(entry->input_factor());
    }
  }
  // By what the ranks have agreed on, so that it is the same on all, whichever
  // of the entries are a rank's own.
  const bool travels_as_it_is =
      first.prescale_factor == 1.0 && WireType(first) == first.dtype;
  for (const Pack& pack : PlanPacks(sizes, fusion_threshold_bytes_)) {
    std::vector<RingPiece> chosen;
    std::vector<double> chosen_factors;
    for (const int index : pack.tensors) {
      chosen.push_back(pieces[index]);
      chosen_factors.push_back(factors[index]);
    }
    const bool is_staged =
        pack.place == Pack::Place::kStage || !travels_as_it_is;
    TFRING_RETURN_IF_ERROR(is_staged
                               ? AllreduceStaged(first, chosen, chosen_factors)
                               : AllreduceInPlace(first, chosen));
  }
  return absl::OkStatus();
}

absl::Status Executor::AllreduceInPlace(const CollectiveRequest& request,
                                        absl::Span<const RingPiece> pieces) {
  RingBuffers buffers = BuffersOf(request, pieces);
  buffers.pieces = pieces;
  const TimelineSpan span(Timeline::Phase::kRing, request,
                          buffers.count * SizeInBytes(request.dtype));
  return Delegates(request) ? collectives_->Allreduce(buffers)
                            : allreduce_.Run(buffers);
}

absl::Status Executor::AllreduceStaged(const CollectiveRequest& request,
                                       absl::Span<const RingPiece> pieces,
                                       absl::Span<const double> factors) {
  const RingBuffers buffers = BuffersOf(request, pieces);
  const int64_t bytes = buffers.count * SizeInBytes(buffers.dtype);
  const int64_t stage_bytes =
      std::min({bytes, StageBytes(ring_, buffers.dtype), MostFusedBytes()});
  TFRING_ASSIGN_OR_RETURN(std::byte* const stage, FusionBuffer(stage_bytes));
  Packing packing(ring_.kernels, request, pieces, factors);
  const TimelineSpan span(Timeline::Phase::kRing, request, bytes);
  const absl::Span<std::byte> block = absl::MakeSpan(stage, stage_bytes);
  return Delegates(request)
             ? collectives_->StagedAllreduce(buffers, block, packing)
             : allreduce_.RunStaged(buffers, block, packing);
}

absl::Status Executor::Allgather(
    TensorEntry& entry, absl::Span<const std::vector<int64_t>> first_dims) {
  const CollectiveRequest& request = entry.request;
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    TensorInfo part = request.tensors[i];
    std::vector<int64_t> dims = part.dims;
    dims[0] = 0;
    std::vector<int64_t> bytes_of_rank;
    for (const int64_t first_dim : first_dims[i]) {
      dims[0] += first_dim;
      part.dims[0] = first_dim;
      bytes_of_rank.push_back(SizeInBytes(request.dtype, part));
    }
    TFRING_ASSIGN_OR_RETURN(void* const output,
                            entry.allocate_output(static_cast<int>(i), dims));
    const void* const input = entry.buffers[i].input;
    TFRING_RETURN_IF_ERROR(
        collectives_ != nullptr
            ? collectives_->Allgather(input, output, bytes_of_rank)
            : RingAllgather(ring_, input, output, bytes_of_rank));
  }
  return absl::OkStatus();
}

absl::Status Executor::Adasum(TensorEntry& entry) {
  const Kernels& kernels = ring_.kernels;
  const CollectiveRequest& request = entry.request;
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorEntry::Buffer& buffer = entry.buffers[i];
    const int64_t bytes = SizeInBytes(request.dtype, request.tensors[i]);
    const int64_t count = bytes / SizeInBytes(request.dtype);
    kernels.Scale(buffer.output, buffer.input, count, request.dtype,
                  entry.input_factor());
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
    TFRING_ASSIGN_OR_RETURN(std::byte* const received, scratch_.AtLeast(bytes));
    TFRING_RETURN_IF_ERROR(
        RingAdasum(ring_, buffer.output, received, count, request.dtype));
    kernels.Scale(buffer.output, buffer.output, count, request.dtype,
                  request.postscale_factor);
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
  }
  // It was as much as the tensor has.
  if (scratch_.bytes() > fusion_threshold_bytes_) scratch_.Clear();
  return absl::OkStatus();
}

absl::Status Executor::Broadcast(TensorEntry& entry, int root) {
  const CollectiveRequest& request = entry.request;
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorEntry::Buffer& buffer = entry.buffers[i];
    const int64_t bytes = SizeInBytes(request.dtype, request.tensors[i]);
    if (ring_.transport.rank() == root) {
      ring_.kernels.Copy(buffer.output, buffer.input, bytes);
      TFRING_RETURN_IF_ERROR(ring_.kernels.Synchronize());
    }
    TFRING_RETURN_IF_ERROR(
        collectives_ != nullptr
            ? collectives_->Broadcast(buffer.output, bytes, root)
            : RingBroadcast(ring_, buffer.output, bytes, root));
  }
  return absl::OkStatus();
}

absl::Status Executor::ReduceScatter(TensorEntry& entry) {
  const CollectiveRequest& request = entry.request;
  const int size = ring_.transport.size();
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorInfo& tensor = request.tensors[i];
    const TensorEntry::Buffer& buffer = entry.buffers[i];
    const int64_t bytes = SizeInBytes(request.dtype, tensor);
    if (bytes == 0) continue;
    const int64_t count = bytes / SizeInBytes(request.dtype);
    const int64_t row_count = count / tensor.dims[0];
    std::vector<Range> chunks;
    for (int rank = 0; rank < size; ++rank) {
      const Range rows = RowsOfRank(tensor, rank, size);
      chunks.push_back({rows.offset * row_count, rows.count * row_count});
    }
    TFRING_RETURN_IF_ERROR(
        request.prescale_factor == 1.0
            ? ReduceScatterOwn(
                  request,
                  {buffer.input, buffer.output, count, request.dtype,
                   request.op, request.postscale_factor},
                  chunks)
            : ScaledReduceScatter(request, buffer, chunks));
  }
  return absl::OkStatus();
}

absl::Status Executor::ReduceScatterOwn(const CollectiveRequest& request,
                                        const RingBuffers& buffers,
                                        absl::Span<const Range> chunks) {
  return Delegates(request) ? collectives_->ReduceScatterOwn(buffers, chunks)
                            : RingReduceScatterOwn(ring_, buffers, chunks);
}

absl::Status Executor::ScaledReduceScatter(const CollectiveRequest& request,
                                           const TensorEntry::Buffer& buffer,
                                           absl::Span<const Range> chunks) {
  const int size = ring_.transport.size();
  const int64_t element_bytes = SizeInBytes(request.dtype);
  const auto* const input = static_cast<const std::byte*>(buffer.input);
  auto* const output = static_cast<std::byte*>(buffer.output);
  int64_t longest = 0;
  for (const Range& chunk : chunks) longest = std::max(longest, chunk.count);
  const int64_t part_count =
      std::clamp<int64_t>(MostFusedBytes() / element_bytes / size, 1, longest);
  TFRING_ASSIGN_OR_RETURN(std::byte* const scaled,
                          FusionBuffer(part_count * size * element_bytes));
  for (int64_t first = 0; first < longest; first += part_count) {
    std::vector<Range> parts;
    int64_t total = 0;
    for (const Range& chunk : chunks) {
      const int64_t begin = std::min(first, chunk.count);
      const int64_t count = std::min(part_count, chunk.count - begin);
      ring_.kernels.Scale(scaled + total * element_bytes,
                          input + (chunk.offset + begin) * element_bytes, count,
                          request.dtype, request.prescale_factor);
      parts.push_back({total, count});
      total += count;
    }
    TFRING_RETURN_IF_ERROR(ring_.kernels.Synchronize());
    // An empty part has no place, and needs none.
    const int64_t own = std::min(first, chunks[ring_.transport.rank()].count);
    TFRING_RETURN_IF_ERROR(
        ReduceScatterOwn(request,
                         {scaled, output + own * element_bytes, total,
                          request.dtype, request.op, request.postscale_factor},
                         parts));
  }
  return absl::OkStatus();
}

absl::Status Executor::Alltoall(TensorEntry& entry,
                                absl::Span<const std::vector<int64_t>> splits) {
  const CollectiveRequest& request = entry.request;
  const int rank = ring_.transport.rank();
  std::vector<int64_t> received_splits;
  for (const std::vector<int64_t>& of_rank : splits) {
    received_splits.push_back(of_rank[rank]);
  }
  entry.on_received_splits(received_splits);
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    TensorInfo rows = request.tensors[i];
    const auto bytes_of = [&](const std::vector<int64_t>& rows_of_rank) {
      std::vector<int64_t> bytes;
      for (const int64_t count : rows_of_rank) {
        rows.dims[0] = count;
        bytes.push_back(SizeInBytes(request.dtype, rows));
      }
      return bytes;
    };
    const std::vector<int64_t> sent_bytes = bytes_of(splits[rank]);
    const std::vector<int64_t> received_bytes = bytes_of(received_splits);
    rows.dims[0] = std::accumulate(received_splits.begin(),
                                   received_splits.end(), int64_t{0});
    TFRING_ASSIGN_OR_RETURN(
        void* const output,
        entry.allocate_output(static_cast<int>(i), rows.dims));
    TFRING_RETURN_IF_ERROR(RingAlltoall(ring_, entry.buffers[i].input, output,
                                        sent_bytes, received_bytes));
  }
  return absl::OkStatus();
}

int64_t Executor::MostFusedBytes() const {
  return std::max(fusion_threshold_bytes_, kScaledBytes);
}

absl::StatusOr<std::byte*> Executor::FusionBuffer(int64_t bytes) {
  if (bytes <= fusion_buffer_.bytes()) return fusion_buffer_.data();
  Transport& transport = ring_.transport;
  TFRING_RETURN_IF_ERROR(transport.Export({}));
  bytes = (bytes + kExportedBytes - 1) / kExportedBytes * kExportedBytes;
  TFRING_ASSIGN_OR_RETURN(std::byte* const data, fusion_buffer_.AtLeast(bytes));
  TFRING_RETURN_IF_ERROR(transport.Export(Bytes(data, bytes)));
  return data;
}

Executor::~Executor() { ring_.transport.Export({}).IgnoreError(); }

}  // namespace tfring
