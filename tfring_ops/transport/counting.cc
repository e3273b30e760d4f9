#include "tfring_ops/transport/counting.h"

#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "tfring_ops/transport/forwarding.h"

namespace tfring {
namespace {

// A cache line for each kind: threads count different kinds at the same time.
struct alignas(64) Counter {
  std::atomic<int64_t> within_node{0}, between_nodes{0};
};
std::array<Counter, kMostMessageKinds> counters;

class CountingTransport final : public ForwardingTransport {
 public:
  explicit CountingTransport(std::unique_ptr<Transport> inner)
      : ForwardingTransport(std::move(inner)) {
    for (int peer = 0; peer < size(); ++peer) {
      is_near_.push_back(node_of(peer) == node_of(rank()));
    }
  }

  OperationId StartSend(int peer, ConstBytes data) override {
    const auto bytes = static_cast<int64_t>(data.size());
    Counter& counter = counters[kind_];
    (is_near_[peer] ? counter.within_node : counter.between_nodes)
        .fetch_add(bytes, std::memory_order_relaxed);
    if (kind_ != kControlMessages) counted_bytes_ += bytes;
    return ForwardingTransport::StartSend(peer, data);
  }

  MessageKind CountAs(MessageKind kind) override {
    return std::exchange(kind_, kind);
  }
  int64_t counted_bytes() const override { return counted_bytes_; }

 private:
  std::vector<bool> is_near_;  // by peer
  MessageKind kind_ = kControlMessages;
  int64_t counted_bytes_ = 0;
};

}  // namespace

SentBytes SentBytesOf(MessageKind kind) {
  const Counter& counter = counters[kind];
  return {counter.within_node.load(std::memory_order_relaxed),
          counter.between_nodes.load(std::memory_order_relaxed)};
}

std::unique_ptr<Transport> MakeCountingTransport(
    std::unique_ptr<Transport> inner) {
  return std::make_unique<CountingTransport>(std::move(inner));
}

}  // namespace tfring
