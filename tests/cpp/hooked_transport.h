// A transport that tells a test of its use.
#ifndef TESTS_CPP_HOOKED_TRANSPORT_H_
#define TESTS_CPP_HOOKED_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "tfring_ops/transport/forwarding.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Called before the inner transport is; null is none.
struct Hooks {
  std::function<void(int peer, size_t bytes)> send, receive;
  std::function<void()> progress;
};

class HookedTransport final : public ForwardingTransport {
 public:
  HookedTransport(std::unique_ptr<Transport> inner, Hooks hooks)
      : ForwardingTransport(std::move(inner)), hooks_(std::move(hooks)) {}

  OperationId StartSend(int peer, ConstBytes data) override {
    if (hooks_.send) hooks_.send(peer, data.size());
    return ForwardingTransport::StartSend(peer, data);
  }
  OperationId StartRecv(int peer, Bytes data) override {
    if (hooks_.receive) hooks_.receive(peer, data.size());
    return ForwardingTransport::StartRecv(peer, data);
  }
  absl::Status Progress() override {
    if (hooks_.progress) hooks_.progress();
    return ForwardingTransport::Progress();
  }

 private:
  const Hooks hooks_;
};

inline std::unique_ptr<Transport> CountSends(std::unique_ptr<Transport> inner,
                                             std::atomic<int>& sends) {
  return std::make_unique<HookedTransport>(
      std::move(inner), Hooks{[&sends](int, size_t) { ++sends; }, {}, {}});
}

}  // namespace tfring

#endif  // TESTS_CPP_HOOKED_TRANSPORT_H_
