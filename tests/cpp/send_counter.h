// A transport that says how much has been sent.
#ifndef TESTS_CPP_SEND_COUNTER_H_
#define TESTS_CPP_SEND_COUNTER_H_

#include <atomic>
#include <memory>
#include <utility>

#include "tfring_ops/transport/forwarding.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

class SendCounter final : public ForwardingTransport {
 public:
  SendCounter(std::unique_ptr<Transport> inner, std::atomic<int>& sends)
      : ForwardingTransport(std::move(inner)), sends_(sends) {}

  OperationId StartSend(int peer, ConstBytes data) override {
    ++sends_;
    return ForwardingTransport::StartSend(peer, data);
  }

 private:
  std::atomic<int>& sends_;
};

}  // namespace tfring

#endif  // TESTS_CPP_SEND_COUNTER_H_
