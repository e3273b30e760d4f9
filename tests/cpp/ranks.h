// Ranks as threads of the test's process.
#ifndef TESTS_CPP_RANKS_H_
#define TESTS_CPP_RANKS_H_

#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/in_process_transport.h"
#include "tests/cpp/tcp_sockets.h"
#include "tfring_ops/transport/shared_memory/node_memory.h"
#include "tfring_ops/transport/shared_memory/shared_channel.h"
#include "tfring_ops/transport/shared_memory/shared_memory.h"
#include "tfring_ops/transport/tcp/tcp.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Calls body(rank) for ranks 0 to size - 1, each on a thread of its own, and
// returns when all have returned.
template <typename Body>
void OnThreads(int size, const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&body, rank] { body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

// The transports of a job.
enum class Medium {
  kInProcess,
  kSharedMemory,
  // Shared memory within a node, else in process.
  kNodesOfTwo,  // ranks 2k and 2k + 1 are a node
  kTwoNodes,    // even ranks are a node, odd ranks another
  // TCP on the loopback interface, each rank on a node of its own.
  kTcp,
  // TCP that connects on first use, as data channels do.
  kTcpLater,
  // Shared memory within a node, else TCP.
  kTcpOneNode,
  kTcpNodesOfTwo,
};

inline int NodeOf(Medium medium, int rank) {
  switch (medium) {
    case Medium::kNodesOfTwo:
    case Medium::kTcpNodesOfTwo:
      return rank / 2;
    case Medium::kTwoNodes:
      return rank % 2;
    case Medium::kTcp:
    case Medium::kTcpLater:
      return rank;
    default:
      return 0;
  }
}

// Returns the medium of the control channel, given the medium of the data
// channels.
inline Medium ControlBeside(Medium data) {
  return data == Medium::kTcpLater ? Medium::kTcp : data;
}

// The ring of a channel is so small that messages are cut and wrap round.
inline constexpr size_t kSmallRingBytes = 4096;

inline std::vector<std::unique_ptr<Transport>> MakeTcpTransports(
    const std::vector<int>& nodes, double timeout_seconds) {
  const int size = static_cast<int>(nodes.size());
  const auto sockets = ConnectedSockets(size);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(
        MakeTcpTransport(rank, nodes, sockets[rank], timeout_seconds).value());
  }
  return transports;
}

inline std::vector<std::unique_ptr<Transport>> MakeLateTcpTransports(
    const std::vector<int>& nodes, double timeout_seconds) {
  const int size = static_cast<int>(nodes.size());
  const auto sockets = std::make_shared<LateSockets>();
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(
        MakeTcpTransport(rank, nodes, std::vector<int>(size, kNotYet),
                         timeout_seconds, SteadyClock(),
                         [=](int peer) { return sockets->Connect(rank, peer); })
            .value());
  }
  return transports;
}

// Makes TCP transports with shared memory within nodes; the ranks agree on it.
inline std::vector<std::unique_ptr<Transport>> MakeTcpNodeTransports(
    const std::vector<int>& nodes, double timeout_seconds) {
  auto transports = MakeTcpTransports(nodes, timeout_seconds);
  OnThreads(static_cast<int>(nodes.size()), [&](int rank) {
    transports[rank] =
        ShareWithinNodes(std::move(transports[rank]), timeout_seconds,
                         SharedMemory::kWithinNodes)
            .value();
  });
  return transports;
}

inline std::vector<std::unique_ptr<Transport>> MakeTransports(
    Medium medium, int size, size_t ring_bytes = kSmallRingBytes,
    double timeout_seconds = 20) {
  std::vector<int> nodes;
  for (int rank = 0; rank < size; ++rank) {
    nodes.push_back(NodeOf(medium, rank));
  }
  if (medium == Medium::kTcp) {
    return MakeTcpTransports(nodes, timeout_seconds);
  }
  if (medium == Medium::kTcpLater) {
    return MakeLateTcpTransports(nodes, timeout_seconds);
  }
  if (medium == Medium::kTcpOneNode || medium == Medium::kTcpNodesOfTwo) {
    return MakeTcpNodeTransports(nodes, timeout_seconds);
  }
  auto transports = MakeInProcessTransports(nodes);
  if (medium == Medium::kInProcess) return transports;

  const size_t channel_bytes = SharedChannel::Bytes(ring_bytes);
  const std::shared_ptr<void> memory(
      std::aligned_alloc(alignof(SharedChannel), size * size * channel_bytes),
      std::free);
  std::memset(memory.get(), 0, size * size * channel_bytes);
  const auto channel = [&](int from, int to) {
    return reinterpret_cast<SharedChannel*>(
        static_cast<std::byte*>(memory.get()) +
        (from * size + to) * channel_bytes);
  };
  for (int rank = 0; rank < size; ++rank) {
    std::vector<SharedLink> links(size);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank || nodes[peer] != nodes[rank]) continue;
      links[peer] = {channel(rank, peer), channel(peer, rank)};
    }
    transports[rank] =
        MakeSharedMemoryTransport(std::move(transports[rank]), links,
                                  ring_bytes, memory, timeout_seconds);
  }
  return transports;
}

// Calls body(transport) on every rank of a job.
template <typename Body>
void OnRanks(int size, const Body& body, Medium medium = Medium::kInProcess) {
  const auto transports = MakeTransports(medium, size);
  OnThreads(size, [&](int rank) { body(*transports[rank]); });
}

}  // namespace tfring

#endif  // TESTS_CPP_RANKS_H_
