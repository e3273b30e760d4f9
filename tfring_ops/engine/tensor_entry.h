// What a framework submits to the engine: a request, the memory it works on,
// and functions to call on its way.
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

// Every kind of collective, and its name.  The folder collectives/ has a file
// for each.  Adasum is an allreduce whose operation is not element-wise.  In
// place, a reducescatter leaves this rank's share where it belongs in the whole
// tensor, and an allgather takes it from there.
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

// Returns the kind under which the bytes of a collective's messages are
// counted.
inline MessageKind MessagesOf(CollectiveKind kind) {
  static_assert(kCollectiveKindCount < kMostMessageKinds);
  return static_cast<MessageKind>(static_cast<int>(kind) + 1);
}

struct TensorInfo {
  std::string name;  // as the user knows it: "dense_3/kernel"; may be empty
  std::vector<int64_t> dims;
};

// The size of all elements; a scalar has one.
int64_t SizeInBytes(DataType dtype, const TensorInfo& tensor);

// The rows of `tensor` that a reducescatter gives to `rank`.  All ranks get
// equally many; if that is impossible, the first ranks get one more.
// REQUIRES:  `tensor` is no scalar.
Range RowsOfRank(const TensorInfo& tensor, int rank, int size);

// The elements that `rank` has of a `tensor` in place, whatever its shape.  All
// ranks have equally many, a multiple of kShareMultiple; the last ranks have
// what is left, or nothing.
// SYNC: Cut in tfring/_gradients/cuts.py.
inline constexpr int64_t kShareMultiple = 16;
Range ShareOfRank(const TensorInfo& tensor, int rank, int size);

// Where a request's tensors are: kHost, or the number of a GPU.
inline constexpr int32_t kHost = -1;

// The part of a submission that the ranks negotiate.  All tensors of a request
// have one dtype and travel together.
struct CollectiveRequest {
  // The name is the same on every rank, and unique among the requests in
  // flight.  If it is empty, the engine names the request by the order of
  // calls.
  std::string name;
  bool is_nameless = false;  // True if the engine has named it.
  CollectiveKind kind = CollectiveKind::kAllreduce;
  // The process set whose engine runs the request.
  int32_t process_set_id = 0;
  // A GPU's number in this process.  All ranks must have the tensors on a GPU,
  // or none.
  int32_t device = kHost;
  DataType dtype = DataType::kFloat32;
  // For allreduce: the dtype of the wire and of the reduction, if it is another
  // one; see CanTravelAs.
  std::optional<DataType> wire_dtype;
  int32_t root_rank = 0;  // For broadcast: a rank of the world.
  // For allreduce and reducescatters, with the factors of inputs and of
  // results.
  ReduceOp op = ReduceOp::kSum;
  double prescale_factor = 1.0;
  double postscale_factor = 1.0;
  std::vector<TensorInfo> tensors;  // Barrier and join have none.
  // For alltoall: how many rows go to each rank; together all rows.
  std::vector<int64_t> splits;
  // The engine sets these: the name of the first request of the chain, and the
  // number, from 1 on, of the chain's execution on this rank; 0 without a
  // chain.  See Note [Executions of a chain] in submissions.h.
  std::string chain;
  int64_t execution = 0;
};

// The starts of one execution of a graph, in their order.
struct Chain {
  struct Place {
    std::string chain;
    int64_t execution = 0;
  };

  // The places of the process sets, by their ids.
  std::map<int32_t, Place> places;
};

inline bool OnDevice(const CollectiveRequest& request) {
  return request.device != kHost;
}

inline DataType WireType(const CollectiveRequest& request) {
  return request.wire_dtype.value_or(request.dtype);
}

// The size of this rank's tensors, in the dtype of the wire.
int64_t SizeInBytes(const CollectiveRequest& request);

struct TensorEntry {
  // The factor of the inputs.
  double input_factor() const {
    return is_neutral ? 1.0 : request.prescale_factor;
  }

  struct Buffer {
    const void* input = nullptr;
    // May be `input`, except for a reducescatter that is not in place: its
    // output has this rank's rows alone.  In place, the other ranks' elements
    // of the output are undefined.  Unused by alltoall and by an allgather that
    // is not in place.
    void* output = nullptr;
  };

  CollectiveRequest request;
  // The chain that the entry belongs to, whose entries are submitted one after
  // another; may be null.
  std::shared_ptr<Chain> chain;
  // The engine sets this: the input changes no result, so the prescale factor
  // is not applied.
  bool is_neutral = false;
  // A buffer for each of request.tensors, which lives until `done`.
  std::vector<Buffer> buffers;
  // For an allgather in place: the inputs are this rank's shares alone, in
  // memory of their own, and not whole tensors.
  bool inputs_are_shares = false;
  // For alltoall.  The engine calls it before allocate_output, with the number
  // of rows that each rank sends to this one.
  std::function<void(const std::vector<int64_t>& splits)> on_received_splits;
  // For allgather; may be null.  The engine calls it before allocate_output,
  // with the number of ranks that have not joined.
  std::function<void(int count)> on_contributors;
  // For join.  The engine calls it before `done`, with the last rank that has
  // joined.
  std::function<void(int rank)> on_joined;
  // For allgather and alltoall.  The engine calls it before `done`, when the
  // first dimension of output `index` is known, and gets the memory for it.
  std::function<absl::StatusOr<void*>(int index,
                                      const std::vector<int64_t>& dims)>
      allocate_output;
  // For tensors on a GPU; may be null.  The engine calls it before it uses
  // `stream`, to make the stream wait until the inputs are whole and the
  // outputs free.
  std::function<absl::Status(void* stream)> on_start;
  // Called after all work is enqueued on `stream`, so that other streams can
  // wait for it: nothing has waited when `done` is called.  It is not called if
  // `done` comes only after the GPU's work.  May be null.
  std::function<absl::Status(void* stream)> on_finish;
  // Called before a `done` that leaves `buffers` to the wire: keeps their
  // memory alive for the rest of the process.  Null if nobody can do that, as
  // under XLA.
  std::function<void()> keep_memory;
  // The engine sets this, for the timeline; 0 while the timeline is off.
  int64_t submitted_ns = 0;
  // Called exactly once, usually on a thread of the engine's.  Must not block.
  std::function<void(const absl::Status&)> done;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_TENSOR_ENTRY_H_
