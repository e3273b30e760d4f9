#include "tfring_ops/engine/executor.h"

#include <numeric>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/fusion.h"
#include "tfring_ops/engine/timeline.h"
#include "tfring_ops/ring/adasum.h"
#include "tfring_ops/ring/allgather.h"
#include "tfring_ops/ring/allreduce.h"
#include "tfring_ops/ring/alltoall.h"
#include "tfring_ops/ring/broadcast.h"
#include "tfring_ops/ring/reduce_scatter.h"

namespace tfring {

Executor::Executor(const Options& options, Transport& transport,
                   const Kernels& kernels)
    : fusion_threshold_bytes_(options.fusion_threshold_bytes),
      scratch_(kernels),
      fusion_buffer_(kernels),
      ring_{transport, kernels, options.segment_bytes, scratch_} {}

absl::Status Executor::Allreduce(absl::Span<TensorEntry* const> entries) {
  std::vector<Piece> pieces;
  std::vector<int64_t> sizes;
  for (TensorEntry* entry : entries) {
    const CollectiveRequest& request = entry->request;
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorEntry::Buffer& buffer = entry->buffers[i];
      sizes.push_back(SizeInBytes(request.dtype, request.tensors[i]));
      pieces.push_back({buffer.input, buffer.output, sizes.back()});
    }
  }
  for (const std::vector<int>& pack :
       PlanPacks(sizes, fusion_threshold_bytes_)) {
    std::vector<Piece> chosen;
    for (const int index : pack) chosen.push_back(pieces[index]);
    TFRING_RETURN_IF_ERROR(AllreducePack(entries[0]->request, chosen));
  }
  return absl::OkStatus();
}

absl::Status Executor::AllreducePack(const CollectiveRequest& request,
                                     absl::Span<const Piece> pieces) {
  const Kernels& kernels = ring_.kernels;
  int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  TimelineSpan span(Timeline::Phase::kPack, request, bytes);

  RingBuffers buffers;
  buffers.count = bytes / SizeInBytes(request.dtype);
  buffers.dtype = request.dtype;
  buffers.op = request.op;
  buffers.scale = request.postscale_factor;
  if (pieces.size() == 1) {
    buffers.input = pieces[0].input;
    buffers.output = pieces[0].output;
    if (request.prescale_factor != 1.0) {
      kernels.Scale(buffers.output, buffers.input, buffers.count, request.dtype,
                    request.prescale_factor);
      buffers.input = buffers.output;
    }
  } else {
    TFRING_ASSIGN_OR_RETURN(std::byte * position, FusionBuffer(bytes));
    for (const Piece& piece : pieces) {
      kernels.Scale(position, piece.input,
                    piece.bytes / SizeInBytes(request.dtype), request.dtype,
                    request.prescale_factor);
      position += piece.bytes;
    }
    buffers.input = buffers.output = fusion_buffer_.data();
  }
  TFRING_RETURN_IF_ERROR(kernels.Synchronize());

  span.Next(Timeline::Phase::kRing);
  TFRING_RETURN_IF_ERROR(RingAllreduce(ring_, buffers));

  span.Next(Timeline::Phase::kUnpack);
  if (pieces.size() > 1) {
    const std::byte* position = fusion_buffer_.data();
    for (const Piece& piece : pieces) {
      kernels.Copy(piece.output, position, piece.bytes);
      position += piece.bytes;
    }
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
  }
  return absl::OkStatus();
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
    TFRING_RETURN_IF_ERROR(
        RingAllgather(ring_, entry.buffers[i].input, output, bytes_of_rank));
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
                  request.prescale_factor);
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
    TFRING_ASSIGN_OR_RETURN(std::byte* const received, FusionBuffer(bytes));
    TFRING_RETURN_IF_ERROR(
        RingAdasum(ring_, buffer.output, received, count, request.dtype));
    kernels.Scale(buffer.output, buffer.output, count, request.dtype,
                  request.postscale_factor);
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
  }
  TrimFusionBuffer();
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
    TFRING_RETURN_IF_ERROR(RingBroadcast(ring_, buffer.output, bytes, root));
  }
  return absl::OkStatus();
}

absl::Status Executor::ReduceScatter(TensorEntry& entry) {
  const Kernels& kernels = ring_.kernels;
  const CollectiveRequest& request = entry.request;
  const int size = ring_.transport.size();
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorInfo& tensor = request.tensors[i];
    const int64_t bytes = SizeInBytes(request.dtype, tensor);
    if (bytes == 0) continue;
    const int64_t element_bytes = SizeInBytes(request.dtype);
    const int64_t count = bytes / element_bytes;
    const int64_t row_count = count / tensor.dims[0];
    std::vector<Range> chunks;
    for (int rank = 0; rank < size; ++rank) {
      const Range rows = RowsOfRank(tensor, rank, size);
      chunks.push_back({rows.offset * row_count, rows.count * row_count});
    }

    TFRING_ASSIGN_OR_RETURN(std::byte* const sums, FusionBuffer(bytes));
    RingBuffers buffers{
        entry.buffers[i].input, sums,       count,
        request.dtype,          request.op, request.postscale_factor};
    if (request.prescale_factor != 1.0) {
      kernels.Scale(sums, buffers.input, count, request.dtype,
                    request.prescale_factor);
      TFRING_RETURN_IF_ERROR(kernels.Synchronize());
      buffers.input = sums;
    }
    TFRING_RETURN_IF_ERROR(RingReduceScatter(ring_, buffers, chunks));
    const Range own = chunks[ring_.transport.rank()];
    kernels.Copy(entry.buffers[i].output, sums + own.offset * element_bytes,
                 own.count * element_bytes);
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
  }
  TrimFusionBuffer();
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

void Executor::TrimFusionBuffer() {
  if (fusion_buffer_.bytes() > fusion_threshold_bytes_) fusion_buffer_.Clear();
}

absl::StatusOr<std::byte*> Executor::FusionBuffer(int64_t bytes) {
  return fusion_buffer_.AtLeast(bytes);
}

}  // namespace tfring
