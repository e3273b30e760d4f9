#include "tfring_ops/capi/capi.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/capi/c_status.h"
#include "tfring_ops/engine/statistics.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/engine/timeline.h"
#include "tfring_ops/runtime/engines.h"
#include "tfring_ops/runtime/pulse.h"
#include "tfring_ops/transport/counting.h"

namespace {

// The result of tfring_connect if there is no connection.
constexpr int32_t kCannotConnect = -2;

tfring::SocketRanks SocketRanksOf(int32_t rank, int32_t size,
                                  const int32_t* nodes,
                                  tfring_connect connect) {
  tfring::SocketRanks ranks;
  ranks.rank = rank;
  ranks.nodes.assign(nodes, nodes + size);
  ranks.connect = [=](int channel, int peer) -> absl::StatusOr<int> {
    const int32_t socket = connect(channel, peer);
    if (socket == kCannotConnect) {
      return absl::UnavailableError("it could not be connected");
    }
    return socket;
  };
  return ranks;
}

}  // namespace

const char* tfring_check_options() {
  return tfring::RunAsCStatus(
      [] { return tfring::Options::FromEnvironment().status(); });
}

const char* tfring_init(int32_t comm) {
  return tfring::RunAsCStatus([=] { return tfring::StartWorld(comm); });
}

const char* tfring_init_sockets(int64_t generation, int32_t rank, int32_t size,
                                const int32_t* nodes, tfring_connect connect,
                                int32_t replaces_ranks) {
  return tfring::RunAsCStatus([=] {
    return tfring::StartWorldOnSockets(
        generation, SocketRanksOf(rank, size, nodes, connect),
        replaces_ranks != 0);
  });
}

void tfring_abort(int64_t generation, const char* reason) {
  tfring::RunAnyway([=] { tfring::AbortGeneration(generation, reason); });
}

const char* tfring_pulse_start(int32_t socket, double seconds) {
  return tfring::RunAsCStatus(
      [=] { return tfring::StartPulse(socket, seconds); });
}

void tfring_shutdown() {
  tfring::RunAnyway([] { tfring::StopEngines(); });
}

const char* tfring_ended() {
  return tfring::RunAsCStatus([] {
    const auto world = tfring::EngineOf(tfring::kWorldId);
    return world.ok() ? (*world)->ended() : world.status();
  });
}

const char* tfring_add_process_set(int32_t id, const int32_t* ranks,
                                   int32_t count, int32_t comm) {
  return tfring::RunAsCStatus(
      [=] { return tfring::AddProcessSet(id, {ranks, ranks + count}, comm); });
}

const char* tfring_add_process_set_sockets(int32_t id, const int32_t* ranks,
                                           int32_t count, int32_t rank,
                                           const int32_t* nodes,
                                           tfring_connect connect) {
  return tfring::RunAsCStatus([=] {
    return tfring::AddProcessSetOnSockets(
        id, {ranks, ranks + count}, SocketRanksOf(rank, count, nodes, connect));
  });
}

void tfring_remove_process_set(int32_t id) {
  tfring::RunAnyway([=] { tfring::RemoveProcessSet(id); });
}

int64_t tfring_fusion_threshold_bytes() {
  return tfring::RunOr<int64_t>(-1, [] {
    const auto world = tfring::EngineOf(tfring::kWorldId);
    return world.ok() ? (*world)->options().fusion_threshold_bytes : -1;
  });
}

void tfring_timeline_start(int32_t mark_responses) {
  tfring::RunAnyway(
      [=] { tfring::Timeline::Global().Start(mark_responses != 0); });
}

const char* tfring_timeline_stop() {
  return tfring::RunAsText([] {
    const tfring::Timeline::Recording recording =
        tfring::Timeline::Global().Stop();
    std::string lines = absl::StrCat(recording.dropped, "\n");
    for (const tfring::Timeline::Event& event : recording.events) {
      absl::StrAppend(&lines, Name(event.phase), "\t", Name(event.kind), "\t",
                      event.process_set, "\t", event.thread, "\t");
      absl::StrAppend(&lines, event.begin_ns, "\t", event.end_ns, "\t",
                      event.bytes, "\t", event.sent_bytes, "\t",
                      absl::CEscape(event.name), "\n");
    }
    return lines;
  });
}

void tfring_statistics_start() {
  tfring::RunAnyway([] { tfring::Timeline::Global().StartCounting(); });
}

void tfring_statistics_stop() {
  tfring::RunAnyway([] { tfring::Timeline::Global().StopCounting(); });
}

const char* tfring_statistics() {
  return tfring::RunAsText([] {
    const tfring::Statistics::Totals t = tfring::Timeline::Global().totals();
    const int64_t totals[] = {t.requests, t.negotiate_ns, t.buckets,
                              t.bytes,    t.running_ns,   t.exposed_ns,
                              t.waits,    t.stalls,       t.steps};
    std::string lines = absl::StrJoin(totals, "\t");
    const auto add = [&](const char* name, tfring::MessageKind kind) {
      const tfring::SentBytes sent = tfring::SentBytesOf(kind);
      absl::StrAppend(&lines, "\n", name, "\t", sent.within_node, "\t",
                      sent.between_nodes);
    };
    add("control", tfring::kControlMessages);
    for (int i = 0; i < tfring::kCollectiveKindCount; ++i) {
      const auto kind = static_cast<tfring::CollectiveKind>(i);
      add(Name(kind), MessagesOf(kind));
    }
    return lines;
  });
}
