// Exchanges one message between every two ranks.
#ifndef TFRING_OPS_TRANSPORT_EXCHANGE_H_
#define TFRING_OPS_TRANSPORT_EXCHANGE_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/forever.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// A status as a plain block of bytes, for messages.  A long text is cut.
struct StatusBlock {
  StatusBlock() = default;
  explicit StatusBlock(const absl::Status& status) : code(status.code()) {
    status.message().copy(text, sizeof(text) - 1);
  }

  bool ok() const { return code == absl::StatusCode::kOk; }

  absl::StatusCode code = absl::StatusCode::kOk;
  char text[500] = "";
};

// Waits for all `operations`.  An error aborts the transport, so that none of
// them uses its memory any more.
inline absl::Status WaitOrAbort(Transport& transport,
                                const std::vector<OperationId>& operations) {
  for (const OperationId operation : operations) {
    if (absl::Status status = transport.Wait(operation); !status.ok()) {
      transport.Abort(status);
      return status;
    }
  }
  return absl::OkStatus();
}

// Sends `sent[r]` to rank r, and returns the blocks of all ranks for this one,
// by rank, including its own.  An error aborts `host`.  T is a plain block of
// bytes.
template <typename T>
absl::StatusOr<std::vector<T>> Exchange(Transport& host,
                                        const std::vector<T>& sent) {
  std::vector<T> received(host.size());
  received[host.rank()] = sent[host.rank()];
  std::vector<OperationId> requests;
  for (int peer = 0; peer < host.size(); ++peer) {
    if (peer == host.rank()) continue;
    requests.push_back(host.StartRecv(peer, BytesOf(received[peer])));
  }
  for (int peer = 0; peer < host.size(); ++peer) {
    if (peer == host.rank()) continue;
    requests.push_back(host.StartSend(peer, BytesOf(sent[peer])));
  }
  if (absl::Status status = WaitOrAbort(host, requests); !status.ok()) {
    if (host.HasAbandoned()) KeepForever(std::move(received));
    return status;
  }
  return received;
}

// Sends the same block to every rank.
template <typename T>
absl::StatusOr<std::vector<T>> ExchangeOne(Transport& host, const T& sent) {
  return Exchange(host, std::vector<T>(host.size(), sent));
}

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_EXCHANGE_H_
