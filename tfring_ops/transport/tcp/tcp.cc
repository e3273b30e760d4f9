#include "tfring_ops/transport/tcp/tcp.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/tcp/sockets.h"

namespace tfring {
namespace {

// A wait first looks this many times, and yields the core each time.
constexpr int kLooks = 16;
// Then it sleeps for this long at a time, unless data arrives.
constexpr int kSleepMilliseconds = 1;
constexpr int kMaxEvents = 64;
// How often a missing connection to a peer is asked for.
constexpr std::chrono::milliseconds kAskPeriod{1};
constexpr size_t kMaxReasonBytes = 64 << 10;
// Linux usually acknowledges after 40 ms, and after 200 ms at the latest.
constexpr std::chrono::milliseconds kGoodbye{200};
// The most messages that one system call sends or receives.
constexpr size_t kMessagesOfCall = 8;

constexpr char kEnded[] = "it has ended";

// A message travels as its size and then its bytes.  The last message of a rank
// that aborts has this bit in its size, and the reason as its bytes.
constexpr uint64_t kAbort = uint64_t{1} << 63;
// A rank that is done sends this in place of a size.  If a connection ends
// without it, its rank is lost.
constexpr uint64_t kDone = uint64_t{1} << 62;

struct Operation {
  OperationId id;
  std::byte* data;
  uint64_t size;
  uint64_t announced;  // the size as it travels
  size_t moved = 0;    // bytes of the size and of the data

  size_t total() const { return sizeof(announced) + size; }
  bool complete() const { return moved == total(); }
};

// Appends the rest of `operation`.
void AppendRest(Operation& operation, std::vector<iovec>& parts) {
  constexpr size_t kHeader = sizeof(operation.announced);
  if (operation.moved < kHeader) {
    auto* const header = reinterpret_cast<std::byte*>(&operation.announced);
    parts.push_back({header + operation.moved, kHeader - operation.moved});
  }
  const size_t data_moved =
      operation.moved < kHeader ? 0 : operation.moved - kHeader;
  if (data_moved < operation.size) {
    parts.push_back({operation.data + data_moved, operation.size - data_moved});
  }
}

// A status as bytes, and back.
std::string Encode(const absl::Status& status) {
  return absl::StrCat(std::string(1, static_cast<char>(status.code())),
                      status.message());
}
absl::Status Decode(const std::string& bytes) {
  if (bytes.empty()) return absl::UnavailableError("a rank has aborted");
  return absl::Status(static_cast<absl::StatusCode>(bytes[0]), bytes.substr(1));
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(int rank, std::vector<int> nodes,
               const std::vector<int>& sockets, double timeout_seconds,
               const Clock& clock, ConnectPeer connect)
      : rank_(rank),
        nodes_(std::move(nodes)),
        timeout_seconds_(timeout_seconds),
        clock_(clock),
        connect_(std::move(connect)),
        peers_(sockets.size()) {
    for (size_t peer = 0; peer < sockets.size(); ++peer) {
      if (static_cast<int>(peer) != rank) peers_[peer].socket = sockets[peer];
    }
  }

  ~TcpTransport() override {
    for (const Peer& peer : peers_) {
      if (peer.socket < 0) continue;
      // If the peer has not read everything before this word, the word is lost,
      // and the peer takes this rank for lost.
      if (peer.sends.empty() || peer.sends.front().moved == 0) {
        send(peer.socket, &kDone, sizeof(kDone), MSG_NOSIGNAL | MSG_DONTWAIT);
      }
      // With unread data TCP would end the connection abruptly, as Break does.
      ReadAway(peer.socket, std::numeric_limits<uint64_t>::max());
      close(peer.socket);
    }
    if (epoll_ >= 0) close(epoll_);
  }

  absl::Status Open() {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ < 0) {
      return absl::InternalError(absl::StrCat("epoll: ", SystemError(errno)));
    }
    for (int peer = 0; peer < size(); ++peer) {
      if (IsConnected(peer)) TFRING_RETURN_IF_ERROR(SetUp(peer));
    }
    return absl::OkStatus();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  int node_of(int peer) const override { return nodes_[peer]; }
  bool TakesDeviceMemory(int /*peer*/) const override { return false; }

  OperationId StartSend(int peer, ConstBytes data) override {
    const OperationId id =
        Add(peer, peers_[peer].sends, const_cast<std::byte*>(data.data()),
            data.size());
    if (IsConnected(peer) && peers_[peer].sends.size() == 1) Send(peer);
    return id;
  }

  OperationId StartRecv(int peer, Bytes data) override {
    return Add(peer, peers_[peer].receives, data.data(), data.size());
  }

  absl::StatusOr<bool> Test(OperationId request) override {
    if (request == kNoOperation) return true;
    TFRING_RETURN_IF_ERROR(broken_);
    const auto found = in_flight_.find(request);
    if (found == in_flight_.end()) return true;
    Move(found->second);
    // An operation that has ended is complete even if a later one has failed.
    if (in_flight_.count(request) == 0) return true;
    TFRING_RETURN_IF_ERROR(broken_);
    return false;
  }

  absl::Status Wait(OperationId request) override {
    if (request == kNoOperation) return absl::OkStatus();
    TFRING_RETURN_IF_ERROR(broken_);
    const auto found = in_flight_.find(request);
    if (found == in_flight_.end()) return absl::OkStatus();
    const int peer = found->second;
    Clock::time_point last = clock_.Now();
    int64_t moved = peers_[peer].moved_bytes;
    for (int look = 0;; ++look) {
      Move(peer);
      if (in_flight_.count(request) == 0) return absl::OkStatus();
      TFRING_RETURN_IF_ERROR(broken_);
      if (look < kLooks) {
        sched_yield();
        continue;
      }
      MoveAll(kSleepMilliseconds);
      if (attend_) TFRING_RETURN_IF_ERROR(attend_());
      const Clock::time_point now = clock_.Now();
      if (std::exchange(moved, peers_[peer].moved_bytes) !=
          peers_[peer].moved_bytes) {
        last = now;
        look = 0;
      }
      if (IsTooLong(now - last, timeout_seconds_)) {
        return TimedOut(peer, timeout_seconds_);
      }
    }
  }

  void SetAttendant(std::function<absl::Status()> attend) override {
    attend_ = std::move(attend);
  }

  absl::Status Progress() override {
    if (broken_.ok()) MoveAll(/*milliseconds=*/0);
    return broken_;
  }

  void Abort(const absl::Status& reason) override {
    if (broken_.ok()) Break(reason);
  }

 private:
  struct Peer {
    int socket = -1;
    uint32_t events = EPOLLRDHUP;  // registered with epoll
    std::deque<Operation> sends, receives;
    int64_t moved_bytes = 0;
    bool has_ended = false;  // although there may be data to read
    // While there is no connection:
    bool is_wanted = false;
    Clock::time_point next_ask;
  };

  // Returns false after Break.
  bool IsConnected(int peer) const { return peers_[peer].socket >= 0; }

  // REQUIRES: IsConnected(index).
  absl::Status SetUp(int index) {
    const Peer& peer = peers_[index];
    TFRING_RETURN_IF_ERROR(SetUpSocket(peer.socket));
    if (Watch(EPOLL_CTL_ADD, index) != 0) {
      return absl::InternalError(absl::StrCat("epoll: ", SystemError(errno)));
    }
    return absl::OkStatus();
  }

  int Watch(int operation, int index) const {
    epoll_event event{};
    event.events = peers_[index].events;
    event.data.u32 = static_cast<uint32_t>(index);
    return epoll_ctl(epoll_, operation, peers_[index].socket, &event);
  }

  // Asks for a connection, if there is none and it is time.  Returns true if
  // there is one.
  bool Connect(int index) {
    Peer& peer = peers_[index];
    if (IsConnected(index)) return true;
    const Clock::time_point now = clock_.Now();
    if (!broken_.ok() || now < peer.next_ask) return false;
    peer.next_ask = now + kAskPeriod;
    const absl::StatusOr<int> socket = connect_(index);
    if (!socket.ok()) {
      Unreachable(index, std::string(socket.status().message()));
      return false;
    }
    if (*socket == kNotYet) return false;
    peer.socket = *socket;
    if (absl::Status status = SetUp(index); !status.ok()) Break(status);
    return IsConnected(index);
  }

  // Makes MoveAll look for the connection, unless there is one.
  void Want(int index) {
    if (Connect(index) || std::exchange(peers_[index].is_wanted, true)) return;
    wanted_.push_back(index);
  }

  OperationId Add(int peer, std::deque<Operation>& operations, std::byte* data,
                  size_t size) {
    ++last_id_;
    if (broken_.ok()) {
      in_flight_.emplace(last_id_, peer);
      operations.push_back({last_id_, data, size, size});
      if (!IsConnected(peer)) Want(peer);
    }
    return last_id_;
  }

  void Move(int peer) {
    if (!Connect(peer)) return;
    Send(peer);
    if (broken_.ok()) Receive(peer);
  }

  void Send(int peer) {
    std::deque<Operation>& sends = peers_[peer].sends;
    while (!sends.empty()) {
      parts_.clear();
      const size_t count = std::min(sends.size(), kMessagesOfCall);
      for (size_t i = 0; i < count; ++i) AppendRest(sends[i], parts_);
      msghdr message{};
      message.msg_iov = parts_.data();
      message.msg_iovlen = parts_.size();
      const ssize_t sent =
          sendmsg(peers_[peer].socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return Lose(peer, SystemError(errno));
        break;
      }
      Count(peer, sends, static_cast<size_t>(sent));
    }
    Listen(peer);
  }

  // Receives one message at a time, because the buffer of the next one may not
  // be known yet.
  void Receive(int peer) {
    std::deque<Operation>& receives = peers_[peer].receives;
    while (!receives.empty()) {
      Operation& next = receives.front();
      parts_.clear();
      AppendRest(next, parts_);
      const ssize_t received = readv(peers_[peer].socket, parts_.data(),
                                     static_cast<int>(parts_.size()));
      if (received == 0) return Lose(peer, kEnded);
      if (received < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return Lose(peer, SystemError(errno));
        break;
      }
      const size_t known = next.moved + static_cast<size_t>(received);
      const bool is_known = known >= sizeof(next.announced);
      if (is_known && (next.announced & kAbort) != 0) {
        const size_t read = known - sizeof(next.announced);
        return Break(ReadReason(peer, next.announced & ~kAbort,
                                {reinterpret_cast<char*>(next.data), read}));
      }
      if (is_known && next.announced == kDone) return Lose(peer, kEnded);
      if (is_known && next.announced != next.size) {
        return Break(absl::InternalError(
            absl::StrCat("a message of ", next.announced,
                         " bytes met a receive of ", next.size)));
      }
      Count(peer, receives, static_cast<size_t>(received));
    }
    if (peers_[peer].has_ended && receives.empty()) return CheckEnd(peer);
    Listen(peer);
  }

  // Checks a connection that the peer has ended while nothing is in flight.
  // That is no error if the peer is done, or if messages are still to be
  // received.
  void CheckEnd(int index) {
    Peer& peer = peers_[index];
    uint64_t next = 0;
    const ssize_t count = LookAt(index, next);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count < 0) return Lose(index, SystemError(errno));
    if (count != sizeof(next) || (next & kAbort) != 0) {
      return Lose(index, kEnded);
    }
    if (std::exchange(peer.has_ended, true)) return;
    // Epoll would report the end again and again.  Data that has arrived can be
    // received without epoll.
    epoll_ctl(epoll_, EPOLL_CTL_DEL, peer.socket, nullptr);
  }

  // Sets `next` to the next word of the peer without removing it; returns the
  // result of recv.
  ssize_t LookAt(int index, uint64_t& next) const {
    return recv(peers_[index].socket, &next, sizeof(next),
                MSG_PEEK | MSG_DONTWAIT);
  }

  // Notes that `bytes` of the first operations have moved.
  void Count(int peer, std::deque<Operation>& operations, size_t bytes) {
    peers_[peer].moved_bytes += static_cast<int64_t>(bytes);
    while (bytes > 0) {
      Operation& first = operations.front();
      const size_t part = std::min(bytes, first.total() - first.moved);
      first.moved += part;
      bytes -= part;
      if (!first.complete()) return;
      in_flight_.erase(first.id);
      operations.pop_front();
    }
  }

  // Registers the events of the operations in flight with epoll, which always
  // reports lost connections.
  void Listen(int index) {
    Peer& peer = peers_[index];
    if (peer.has_ended) return;
    uint32_t events = EPOLLRDHUP;
    if (!peer.sends.empty()) events |= EPOLLOUT;
    if (!peer.receives.empty()) events |= EPOLLIN;
    if (events == peer.events) return;
    peer.events = events;
    Watch(EPOLL_CTL_MOD, index);
  }

  // Makes all progress that is possible, after `milliseconds` at the latest.
  void MoveAll(int milliseconds) {
    const auto is_here = [this](int peer) {
      Move(peer);
      return !broken_.ok() || IsConnected(peer);
    };
    wanted_.erase(std::remove_if(wanted_.begin(), wanted_.end(), is_here),
                  wanted_.end());
    if (!broken_.ok()) return;
    std::array<epoll_event, kMaxEvents> events;
    const int count =
        epoll_wait(epoll_, events.data(), kMaxEvents, milliseconds);
    for (int i = 0; i < count && broken_.ok(); ++i) {
      const int peer = static_cast<int>(events[i].data.u32);
      const bool is_idle =
          peers_[peer].sends.empty() && peers_[peer].receives.empty();
      if ((events[i].events & EPOLLERR) != 0) {
        const int error = TakeError(peers_[peer].socket);
        uint64_t next = 0;
        LookAt(peer, next);
        if (!is_idle || next != kDone) {
          Lose(peer, error == 0 ? kEnded : SystemError(error));
          continue;
        }
      }
      if (!is_idle) Move(peer);
      if (broken_.ok() && peers_[peer].receives.empty() &&
          (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        CheckEnd(peer);
      }
    }
  }

  // Handles the end of a connection.  The peer may have sent the reason behind
  // messages for which no receive has been posted yet.
  void Lose(int peer, const std::string& reason) {
    const int socket = peers_[peer].socket;
    if (!peers_[peer].receives.empty()) {
      Operation& next = peers_[peer].receives.front();
      if (next.moved >= sizeof(next.announced)) {
        ReadAway(socket, next.total() - next.moved);
      } else if (next.moved > 0) {
        return Unreachable(peer, reason);
      }
    }
    uint64_t size = 0;
    while (ReadSome(socket, reinterpret_cast<char*>(&size), sizeof(size)) ==
           sizeof(size)) {
      if ((size & kAbort) != 0) {
        return Break(ReadReason(peer, size & ~kAbort, {}));
      }
      ReadAway(socket, size);
    }
    Unreachable(peer, reason);
  }

  void Unreachable(int peer, const std::string& reason) {
    Break(absl::UnavailableError(
        absl::StrCat("rank ", peer, " cannot be reached: ", reason)));
  }

  // Returns the reason that `peer` has sent, of `size` bytes that begin with
  // `begin`.
  absl::Status ReadReason(int peer, uint64_t size, std::string begin) {
    const size_t known = begin.size();
    begin.resize(std::min<uint64_t>(size, kMaxReasonBytes));
    ReadSome(peers_[peer].socket, begin.data() + known, begin.size() - known);
    return Decode(begin);
  }

  // Closes every connection abruptly, which makes every peer fail, too.  A peer
  // gets the reason, unless a message to it is stuck half-way or the system has
  // not sent the reason within kGoodbye: TCP may send it only when the peer has
  // acknowledged earlier messages, and an abrupt end drops unsent data.
  void Break(const absl::Status& reason) {
    broken_ = reason;
    std::string words = Encode(reason);
    words.resize(std::min(words.size(), kMaxReasonBytes));
    const uint64_t size = words.size() | kAbort;
    words.insert(0, reinterpret_cast<const char*>(&size), sizeof(size));
    std::vector<int> told;
    for (const Peer& peer : peers_) {
      if (peer.socket < 0) continue;
      if (!peer.sends.empty() && peer.sends.front().moved > 0) continue;
      if (send(peer.socket, words.data(), words.size(),
               MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
        told.push_back(peer.socket);
      }
    }
    const Clock::time_point deadline =
        std::chrono::steady_clock::now() + kGoodbye;
    for (const int socket : told) WaitUntilSent(socket, deadline);
    for (Peer& peer : peers_) {
      if (peer.socket >= 0) {
        const linger at_once{1, 0};
        setsockopt(peer.socket, SOL_SOCKET, SO_LINGER, &at_once,
                   sizeof(at_once));
        close(peer.socket);
        peer.socket = -1;
      }
      peer.sends.clear();
      peer.receives.clear();
    }
  }

  const int rank_;
  const std::vector<int> nodes_;  // by rank
  const double timeout_seconds_;
  const Clock& clock_;
  const ConnectPeer connect_;
  std::vector<Peer> peers_;
  std::vector<int> wanted_;  // peers whose operations wait for a connection
  int epoll_ = -1;
  std::function<absl::Status()> attend_;
  OperationId last_id_ = kNoOperation;
  std::unordered_map<OperationId, int> in_flight_;  // the peer
  std::vector<iovec> parts_;                        // kept between calls
  absl::Status broken_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(
    int rank, std::vector<int> nodes, const std::vector<int>& sockets,
    double timeout_seconds, const Clock& clock, ConnectPeer connect) {
  auto transport = std::make_unique<TcpTransport>(rank, std::move(nodes),
                                                  sockets, timeout_seconds,
                                                  clock, std::move(connect));
  TFRING_RETURN_IF_ERROR(transport->Open());
  return transport;
}

}  // namespace tfring
