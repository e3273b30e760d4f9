#include "tfring_ops/transport/cuda/ipc_check.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout{60};
// The most bytes from each peer that kernels reduce.
constexpr size_t kMostReducedBytes = 8 << 20;

class IpcCheck {
 public:
  IpcCheck(CudaLinks& links, const std::vector<int>& peers)
      : links_(links), context_(links.context()), peers_(peers) {}

  // Checks copies, of one number for each peer.
  absl::StatusOr<absl::Status> Copies() {
    const size_t count = peers_.size();
    const auto number = [&](int from, int to) {
      return static_cast<int32_t>(from * context_.host.size() + to + 1);
    };
    std::vector<int32_t> numbers;  // to each peer, then from each
    for (const int peer : peers_) {
      numbers.push_back(number(context_.host.rank(), peer));
    }
    numbers.resize(2 * count);
    TFRING_RETURN_IF_ERROR(OnDevice(
        numbers, [&](std::byte* memory) { return CopyFromPeers(memory); }));
    for (size_t i = 0; i < count; ++i) {
      if (numbers[count + i] == number(peers_[i], context_.host.rank())) {
        continue;
      }
      return absl::Status(absl::InternalError(absl::StrCat(
          "what rank ", peers_[i], " wrote on its GPU reads otherwise here")));
    }
    return absl::OkStatus();
  }

  // Checks reductions of more bytes than the slots of a peer hold, unless those
  // are very large.
  absl::StatusOr<absl::Status> Reductions(const Kernels& kernels) {
    const size_t bytes =
        std::min((kIpcSlots + 1) * context_.part_bytes, kMostReducedBytes);
    const auto count = static_cast<int64_t>(bytes / sizeof(float));
    // The numbers are whole, so that sums are exact.
    const auto number = [](int64_t rank, int64_t i) {
      return static_cast<float>((7 * i + 13 * rank) % 251 + 1);
    };
    std::vector<float> numbers(2 * count);  // to all peers, then their sum
    for (int64_t i = 0; i < count; ++i) {
      numbers[i] = number(context_.host.rank(), i);
    }
    TFRING_RETURN_IF_ERROR(OnDevice(numbers, [&](std::byte* memory) {
      return ReduceFromPeers(kernels, memory, bytes);
    }));
    for (int64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (const int peer : peers_) sum += number(peer, i);
      if (numbers[count + i] == sum) continue;
      return absl::Status(absl::InternalError(
          absl::StrCat("kernels read otherwise what others wrote on their "
                       "GPUs, from byte ",
                       i * sizeof(float), " on")));
    }
    return absl::OkStatus();
  }

 private:
  // Calls work() with `numbers` on the device, and returns with the result in
  // `numbers`.
  template <typename T, typename Work>
  absl::Status OnDevice(std::vector<T>& numbers, const Work& work) {
    const CudaDriver& driver = context_.driver;
    const size_t bytes = numbers.size() * sizeof(T);
    CUdeviceptr memory = 0;
    TFRING_RETURN_IF_ERROR(driver.cuMemAlloc(&memory, bytes));
    absl::Status status = driver.cuMemcpyHtoDAsync(memory, numbers.data(),
                                                   bytes, context_.stream);
    if (status.ok()) {
      status = work(static_cast<std::byte*>(DeviceMemory(memory)));
    }
    // The stream may still be copying sent data.  See Note [Waits of the
    // driver] in kernels/cuda.h.
    if (status.ok()) status = WaitForStreams(context_);
    if (status.ok()) {
      status = driver.cuMemcpyDtoHAsync(numbers.data(), memory, bytes,
                                        context_.stream);
    }
    if (status.ok()) status = WaitForStreams(context_);
    if (status.ok() || links_.StopWaiting()) driver.cuMemFree.Result(memory);
    return status;
  }

  absl::Status CopyFromPeers(std::byte* memory) {
    const size_t count = peers_.size();
    std::vector<CudaMessage> messages(2 * count);
    for (size_t i = 0; i < messages.size(); ++i) {
      messages[i].data = memory + i * sizeof(int32_t);
      messages[i].bytes = sizeof(int32_t);
    }
    for (size_t i = 0; i < count; ++i) {
      links_.link(peers_[i]).Receive(messages[count + i]);
      links_.link(peers_[i]).Send(messages[i]);
    }
    return MoveUntil([&]() -> absl::StatusOr<bool> {
      return std::all_of(
          messages.begin(), messages.end(),
          [](const CudaMessage& message) { return message.complete; });
    });
  }

  absl::Status ReduceFromPeers(const Kernels& kernels, std::byte* memory,
                               size_t bytes) {
    std::byte* const sum = memory + bytes;
    std::vector<CudaMessage> messages(peers_.size());
    for (size_t i = 0; i < peers_.size(); ++i) {
      messages[i].data = memory;
      messages[i].bytes = bytes;
      links_.link(peers_[i]).Send(messages[i]);
    }
    std::vector<size_t> reduced(peers_.size());  // bytes
    return MoveUntil([&]() -> absl::StatusOr<bool> {
      bool complete = true;
      for (size_t i = 0; i < peers_.size(); ++i) {
        complete = complete && messages[i].complete;
        if (reduced[i] == bytes) continue;
        complete = false;
        CudaLink& link = links_.link(peers_[i]);
        TFRING_ASSIGN_OR_RETURN(const ConstBytes part, link.Peek(bytes));
        if (part.empty()) continue;
        TFRING_RETURN_IF_ERROR(links_.Flush());
        kernels.Reduce(sum + reduced[i], sum + reduced[i], part.data(),
                       static_cast<int64_t>(part.size() / sizeof(float)),
                       DataType::kFloat32, ReduceOp::kSum);
        TFRING_RETURN_IF_ERROR(kernels.Synchronize());
        TFRING_RETURN_IF_ERROR(link.Release());
        TFRING_RETURN_IF_ERROR(links_.Flush());
        reduced[i] += part.size();
      }
      return complete;
    });
  }

  // Makes progress until complete(), and leaves no tokens over.
  template <typename Complete>
  absl::Status MoveUntil(const Complete& complete) {
    const Clock::time_point deadline = Clock::now() + kTimeout;
    for (Backoff backoff; Clock::now() < deadline; backoff.Pause()) {
      for (const int peer : peers_) {
        TFRING_RETURN_IF_ERROR(links_.link(peer).Move());
        TFRING_RETURN_IF_ERROR(links_.Flush());
      }
      TFRING_RETURN_IF_ERROR(context_.host.Progress());
      TFRING_ASSIGN_OR_RETURN(const bool is_complete, complete());
      if (!is_complete) continue;
      for (const int peer : peers_) {
        TFRING_RETURN_IF_ERROR(links_.link(peer).LetTokensGo());
      }
      return absl::OkStatus();
    }
    return absl::DeadlineExceededError("a GPU of this node does not answer");
  }

  CudaLinks& links_;
  const CudaLinkContext& context_;
  const std::vector<int>& peers_;
};

// Adds a hint to an error of the driver, which may have ended the GPU's
// context, also for the framework.
absl::Status Explained(const absl::Status& status) {
  if (!absl::IsInternal(status)) return status;
  return absl::InternalError(absl::StrCat(
      "to read other ranks' memory on the GPUs of this node failed, "
      "and this process may have lost its GPU by it. "
      "TFRING_CUDA_IPC=0 goes through host memory: ",
      status.message()));
}

}  // namespace

absl::StatusOr<absl::Status> CheckIpc(CudaLinks& links,
                                      const std::vector<int>& peers,
                                      const Kernels& kernels) {
  if (peers.empty()) return absl::OkStatus();
  IpcCheck check(links, peers);
  const absl::StatusOr<absl::Status> copies = check.Copies();
  if (!copies.ok()) return Explained(copies.status());
  // Run this after a failure, too: the peers wait for this rank.
  const absl::StatusOr<absl::Status> reductions = check.Reductions(kernels);
  if (!reductions.ok()) return Explained(reductions.status());
  return copies->ok() ? reductions : copies;
}

}  // namespace tfring
