// A framework's submission to the engine: a request, the memory it works on,
// and whom to tell.
#ifndef TFRING_OPS_ENGINE_TENSOR_ENTRY_H_
#define TFRING_OPS_ENGINE_TENSOR_ENTRY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Every kind of collective, and its name; collectives/ has a file for each.
// Adasum is an allreduce that is no element-wise operation.  In place, a
// reducescatter leaves this rank's share in its place in the whole tensor, and
// an allgather takes it from there.
#define TFRING_FOR_EACH_COLLECTIVE(M) \
  M(Allreduce, "allreduce")           \
  M(Allgather, "allgather")           \
  M(Broadcast, "broadcast")           \
  M(ReduceScatter, "reducescatter")   \
  M(Barrier, "barrier")               \
  M(Alltoall, "alltoall")             \
  M(Join, "join")                     \
  M(Adasum, "adasum")                 \
  M(ScatterInPlace, "reducescatter")  \
  M(GatherInPlace, "allgather")

#define TFRING_ENUMERATOR(NAME, TEXT) k##NAME,
enum class CollectiveKind : uint8_t {
  TFRING_FOR_EACH_COLLECTIVE(TFRING_ENUMERATOR)
};
#undef TFRING_ENUMERATOR
#define TFRING_COUNT(NAME, TEXT) +1
inline constexpr int kCollectiveKindCount =
    TFRING_FOR_EACH_COLLECTIVE(TFRING_COUNT);
#undef TFRING_COUNT

const char* Name(CollectiveKind kind);

// The kind that its messages are counted as.
inline MessageKind MessagesOf(CollectiveKind kind) {
  static_assert(kCollectiveKindCount < kMostMessageKinds);
  return static_cast<MessageKind>(static_cast<int>(kind) + 1);
}

struct TensorInfo {
  std::string name;  // as the user knows it: "dense_3/kernel"; may be empty
  std::vector<int64_t> dims;
};

// The size of all its elements; a scalar has one.
int64_t SizeInBytes(DataType dtype, const TensorInfo& tensor);

// The rows of `tensor` that a reducescatter gives to `rank`: equally many for
// each, and one more for the first ranks if they cannot be.
// REQUIRES: it is no scalar.
Range RowsOfRank(const TensorInfo& tensor, int rank, int size);

// The elements of `tensor` that are `rank`'s in place, whatever its shape:
// equally many for each, a multiple of kShareMultiple; the last ranks have what
// is left, or nothing.
// SYNC: _Cut in tfring/_gradients/shares.py.
inline constexpr int64_t kShareMultiple = 16;
Range ShareOfRank(const TensorInfo& tensor, int rank, int size);

// The memory of a request's tensors: the host's, or the GPU of this number.
inline constexpr int32_t kHost = -1;

// The part of a submission that the ranks negotiate.  All tensors of a request
// have one dtype and travel together.
struct CollectiveRequest {
  // The same on every rank, unique among those in flight.  Empty: named by the
  // order of entries without a name.
  std::string name;
  bool is_nameless = false;  // the engine's: it has given the name
  CollectiveKind kind = CollectiveKind::kAllreduce;
  // Whose engine gets it.
  int32_t process_set_id = 0;
  // Counted as this process counts its GPUs; all ranks must have it on a GPU,
  // or none.
  int32_t device = kHost;
  DataType dtype = DataType::kFloat32;
  // Allreduce alone: the type on the wire and of the reduction, if it is
  // another type; see CanTravelAs.
  std::optional<DataType> wire_dtype;
  int32_t root_rank = 0;  // broadcast; in the world
  // Allreduce and reducescatters; the factors for before and after it.
  ReduceOp op = ReduceOp::kSum;
  double prescale_factor = 1.0;
  double postscale_factor = 1.0;
  std::vector<TensorInfo> tensors;  // at least one; barrier and join: none
  // Alltoall alone: how many of its rows go to each rank, which are all rows.
  std::vector<int64_t> splits;
  // The engine's: the name of the first request of its chain, and which
  // execution of that chain on this rank it belongs to, from 1 on; 0 if it has
  // none.  See Note [Executions of a chain] in submissions.h.
  std::string chain;
  int64_t execution = 0;
};

// The starts of one execution of a graph, each after the one before it.
struct Chain {
  struct Place {
    std::string chain;
    int64_t execution = 0;
  };

  // By process set.
  std::map<int32_t, Place> places;
};

inline bool OnDevice(const CollectiveRequest& request) {
  return request.device != kHost;
}

inline DataType WireType(const CollectiveRequest& request) {
  return request.wire_dtype.value_or(request.dtype);
}

// The size of all its tensors, as this rank has them and as they travel.
int64_t SizeInBytes(const CollectiveRequest& request);

struct TensorEntry {
  // By which its inputs are to be multiplied.
  double input_factor() const {
    return is_neutral ? 1.0 : request.prescale_factor;
  }

  struct Buffer {
    const void* input = nullptr;
    // May be `input`, but for reducescatter, where it is this rank's rows alone
    // and apart from `input`, unless in place, where the rest of it is
    // undefined.  Unused for allgather, unless in place, and alltoall.
    void* output = nullptr;
  };

  CollectiveRequest request;
  // The chain of the entries before it and after it, which are submitted in
  // turn; may be null.
  std::shared_ptr<Chain> chain;
  // The engine's: its input changes no result, and so the prescale factor is
  // not applied.
  bool is_neutral = false;
  // One for each of request.tensors.  Alive until `done`.
  std::vector<Buffer> buffers;
  // Alltoall alone, on the engine's thread, before allocate_output: how many
  // rows each rank sends.
  std::function<void(const std::vector<int64_t>& splits)> on_received_splits;
  // Allgather alone, on the engine's thread, before allocate_output: how many
  // ranks take part: all that have not joined.  May be null.
  std::function<void(int count)> on_contributors;
  // Join alone, on the engine's thread, before `done`: who was the last.
  std::function<void(int rank)> on_joined;
  // Allgather and alltoall, on the engine's thread, before `done`: memory for
  // the output of tensor `index`; its first dimension is known only now.
  std::function<absl::StatusOr<void*>(int index,
                                      const std::vector<int64_t>& dims)>
      allocate_output;
  // On a device alone, on the engine's thread, with the engine's stream there:
  // before anything is asked of it, makes it wait until the inputs are whole
  // and the outputs free.  May be null.
  std::function<absl::Status(void* stream)> on_start;
  // Called after all work is enqueued, for streams to wait for: nothing has
  // waited when `done` is called.  Not called if `done` is called only when the
  // device has done all.  May be null.
  std::function<absl::Status(void* stream)> on_finish;
  // Before `done` gives up the memory of `buffers`, which the wire may still
  // use then: makes it live for ever.  Null where nobody can, as under XLA.
  std::function<void()> keep_memory;
  // The engine's, for the timeline; 0 while that does not record.
  int64_t submitted_ns = 0;
  // Called exactly once, usually on a thread of the engine's.  Must not block.
  std::function<void(const absl::Status&)> done;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_TENSOR_ENTRY_H_
