#include "tfring_ops/transport/cuda/cuda_links.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/forever.h"
#include "tfring_ops/base/log.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/cuda/ipc_check.h"
#include "tfring_ops/transport/cuda/progress_context.h"
#include "tfring_ops/transport/cuda/staged.h"
#include "tfring_ops/transport/exchange.h"

namespace tfring {
namespace {

using Clock = std::chrono::steady_clock;

// How long the GPU may take for enqueued work when the transport ends.
constexpr std::chrono::seconds kStopGrace{5};

// Calls of StreamNumbers between two marks.  A segment takes one or two of
// them, and some other calls.
constexpr int64_t kCallsBetweenMarks = 32;

// The size of all slots of a rank on its GPU, however many ranks there are.
constexpr size_t kSlotsBytes = 128 << 20;
// The largest slot in the host's memory: a container may have 64 MiB in all.
constexpr size_t kMostHostPartBytes = 4 << 20;

constexpr absl::string_view kWithoutIpc =
    "the GPUs of a node talk through host memory";
constexpr absl::string_view kWithoutExport =
    "the GPUs of a node copy what they have packed to other memory";

// Returns true if `status` is OK on every rank; if not, rank 0 warns, and says
// what follows.
absl::StatusOr<bool> Agree(const absl::Status& status, Transport& host,
                           absl::string_view what_follows) {
  TFRING_ASSIGN_OR_RETURN(const std::vector<StatusBlock> outcomes,
                          ExchangeOne(host, StatusBlock(status)));
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].ok()) continue;
    if (host.rank() == 0) {
      LogWarning(0,
                 absl::StrCat(what_follows, ", as rank ", rank,
                              " cannot share its GPU's: ", outcomes[rank].text,
                              ". Slower, but right; TFRING_CUDA_IPC=0 asks for "
                              "host memory without this warning."));
    }
    return false;
  }
  return true;
}

size_t PartBytes(int64_t segment_bytes, int size) {
  const size_t limit = kSlotsBytes / kIpcSlots / std::max(1, size - 1);
  const size_t bytes = std::min<size_t>(segment_bytes, limit);
  return std::max(bytes / kPartAlignment, size_t{1}) * kPartAlignment;
}

}  // namespace

absl::Status WaitForMark(const CudaLinkContext& context, const CudaMark& mark) {
  const Clock::time_point begin = Clock::now();
  for (Backoff backoff;; backoff.Pause()) {
    TFRING_ASSIGN_OR_RETURN(const bool done, mark.Done());
    if (done) return absl::OkStatus();
    TFRING_RETURN_IF_ERROR(context.host.Progress());
    if (IsTooLong(Clock::now() - begin, context.timeout_seconds)) {
      return absl::DeadlineExceededError(
          absl::StrCat("the GPU has not done what was asked for in ",
                       context.timeout_seconds, " s"));
    }
  }
}

absl::Status WaitForStream(const CudaLinkContext& context, CUstream stream) {
  CudaMark asked(context);
  TFRING_RETURN_IF_ERROR(asked.Record(stream));
  return WaitForMark(context, asked);
}

absl::Status WaitForStreams(const CudaLinkContext& context) {
  for (const CUstream stream :
       {context.stream, context.outgoing, context.incoming}) {
    TFRING_RETURN_IF_ERROR(WaitForStream(context, stream));
  }
  return absl::OkStatus();
}

CudaLinks::CudaLinks(const CudaDriver& driver, const CudaDevice& device,
                     Transport& host, const Options& options)
    : context_{driver,
               device.context(),
               static_cast<CUstream>(device.stream()),
               nullptr,
               nullptr,
               nullptr,
               nullptr,
               host,
               PartBytes(options.device_segment_bytes, host.size()),
               std::min(PartBytes(options.device_segment_bytes, host.size()),
                        kMostHostPartBytes),
               options.transport_timeout_seconds()},
      device_(device),
      links_(host.size()) {}

absl::StatusOr<std::unique_ptr<CudaLinks>> CudaLinks::Negotiate(
    const CudaDevice& device, Transport& host, const Options& options) {
  TFRING_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Get());
  // Enter the context first: links that fail are destroyed in it, too.
  TFRING_ENTER_CONTEXT(*driver, device.context());
  std::unique_ptr<CudaLinks> links(
      new CudaLinks(*driver, device, host, options));
  TFRING_RETURN_IF_ERROR(links->OpenStreams());

  // The host's memory carries the messages of the other pairs.
  bool cuda_aware = true;
  for (int peer = 0; peer < host.size(); ++peer) {
    if (peer == host.rank() || host.CanPeek(peer)) continue;
    cuda_aware = cuda_aware && host.TakesDeviceMemory(peer);
  }
  TFRING_ASSIGN_OR_RETURN(const std::vector<char> aware,
                          ExchangeOne(host, static_cast<char>(cuda_aware)));
  cuda_aware = std::count(aware.begin(), aware.end(), 1) == host.size();

  std::vector<int> peers;  // of this rank's node
  bool some_share_node = false;
  for (int i = 0; i < host.size(); ++i) {
    for (int j = 0; j < i; ++j) {
      if (host.node_of(i) != host.node_of(j)) continue;
      some_share_node = true;
      if (i == host.rank()) peers.push_back(j);
      if (j == host.rank()) peers.push_back(i);
    }
  }
  if (options.cuda_ipc && some_share_node) {
    TFRING_RETURN_IF_ERROR(links->TryIpc(peers, device.kernels()));
  }
  for (int peer = 0; peer < host.size(); ++peer) {
    if (peer == host.rank() || links->links_[peer] != nullptr) continue;
    if (!cuda_aware || !host.TakesDeviceMemory(peer)) continue;
    TFRING_RETURN_IF_ERROR(ShareProgressContext(device.ordinal()));
    links->links_[peer] = MakeCudaAwareLink(links->context_, peer);
  }
  for (int peer = 0; peer < host.size(); ++peer) {
    if (peer == host.rank() || links->links_[peer] != nullptr) continue;
    links->links_[peer] = MakeStagedLink(links->context_, peer);
  }
  return links;
}

absl::Status CudaLinks::OpenStreams() {
  const CudaDriver& driver = context_.driver;
  TFRING_RETURN_IF_ERROR(CreateStream(driver, &context_.outgoing));
  context_.numbers = std::make_unique<StreamNumbers>(driver, context_.stream);
  context_.outgoing_numbers =
      std::make_unique<StreamNumbers>(driver, context_.outgoing);
  paces_.emplace_back(context_, context_.stream, *context_.numbers);
  paces_.emplace_back(context_, context_.outgoing, *context_.outgoing_numbers);
  return CreateStream(driver, &context_.incoming);
}

absl::Status CudaLinks::TryIpc(const std::vector<int>& peers,
                               const Kernels& kernels) {
  Transport& host = context_.host;
  absl::Status status;
  std::vector<IpcOffer> offers(host.size());
  if (auto created =
          IpcMemory::Create(context_, static_cast<int>(peers.size()));
      created.ok()) {
    memory_ = *std::move(created);
    for (size_t i = 0; i < peers.size(); ++i) {
      offers[peers[i]] = memory_->offer(static_cast<int>(i));
    }
  } else {
    status = created.status();
  }
  // Negotiate after each step: a rank that waits for a peer has to know that
  // the peer has succeeded.
  TFRING_ASSIGN_OR_RETURN(bool agreed, Agree(status, host, kWithoutIpc));
  if (agreed) {
    TFRING_ASSIGN_OR_RETURN(offers, Exchange(host, offers));
    TFRING_ASSIGN_OR_RETURN(
        agreed, Agree(OpenIpcLinks(peers, offers), host, kWithoutIpc));
  }
  if (agreed) {
    const absl::StatusOr<absl::Status> outcome =
        CheckIpc(*this, peers, kernels);
    if (!outcome.ok()) {
      // The remaining ranks wait for messages that will not be sent.
      host.Abort(outcome.status());
      return outcome.status();
    }
    TFRING_ASSIGN_OR_RETURN(agreed, Agree(*outcome, host, kWithoutIpc));
  }
  if (agreed) return absl::OkStatus();
  for (std::unique_ptr<CudaLink>& link : links_) link.reset();
  // Synchronize, so that no rank frees memory that another has open.
  TFRING_RETURN_IF_ERROR(ExchangeOne(host, 'x').status());
  memory_.reset();
  return absl::OkStatus();
}

absl::Status CudaLinks::OpenIpcLinks(const std::vector<int>& peers,
                                     const std::vector<IpcOffer>& offers) {
  for (size_t i = 0; i < peers.size(); ++i) {
    TFRING_ASSIGN_OR_RETURN(links_[peers[i]],
                            OpenIpcLink(context_, *memory_, static_cast<int>(i),
                                        peers[i], offers[peers[i]]));
  }
  return absl::OkStatus();
}

CudaLinks::~CudaLinks() {
  if (!StopWaiting()) {
    // Freeing memory that the GPU may still use would wait in the driver.
    KeepForever(std::move(links_));
    KeepForever(std::move(memory_));
  }
  links_.clear();
  marks_.clear();
  paces_.clear();
  memory_.reset();
  for (const CUstream stream : {context_.outgoing, context_.incoming}) {
    if (stream != nullptr) context_.driver.cuStreamDestroy.Result(stream);
  }
}

absl::Status CudaLinks::Flush() {
  TFRING_RETURN_IF_ERROR(FlushNumbers(context_));
  for (const std::unique_ptr<CudaLink>& link : links_) {
    if (link != nullptr) link->SendTokens();
  }
  for (Pace& pace : paces_) TFRING_RETURN_IF_ERROR(Keep(pace));
  return absl::OkStatus();
}

absl::Status CudaLinks::Keep(Pace& pace) const {
  const int64_t calls = pace.numbers.calls();
  if (calls - pace.marked_calls < kCallsBetweenMarks) return absl::OkStatus();
  pace.marked_calls = calls;
  if (pace.marks == 2) {
    TFRING_RETURN_IF_ERROR(WaitForMark(context_, *pace.earlier));
  } else {
    ++pace.marks;
  }
  std::swap(pace.earlier, pace.later);
  return pace.later->Record(pace.stream);
}

bool CudaLinks::StopWaiting() {
  const Clock::time_point deadline = Clock::now() + kStopGrace;
  for (Backoff backoff; Clock::now() < deadline; backoff.Pause()) {
    for (const std::unique_ptr<CudaLink>& link : links_) {
      if (link != nullptr) link->StopWaiting();
    }
    const absl::StatusOr<bool> idle = Idle();
    if (!idle.ok() || *idle) return true;
  }
  device_.Abandon();
  return false;
}

absl::StatusOr<bool> CudaLinks::Idle() {
  if (marks_.empty()) {
    for (const CUstream stream :
         {context_.stream, context_.outgoing, context_.incoming}) {
      marks_.push_back(std::make_unique<CudaMark>(context_));
      TFRING_RETURN_IF_ERROR(marks_.back()->Record(stream));
    }
  }
  for (const std::unique_ptr<CudaMark>& mark : marks_) {
    TFRING_ASSIGN_OR_RETURN(const bool done, mark->Done());
    if (!done) return false;
  }
  return true;
}

// The ranks agree after each step, as in TryIpc.
absl::Status CudaLinks::Export(Bytes memory) {
  if (memory_ == nullptr || !can_export_) return absl::OkStatus();
  Transport& host = context_.host;
  TFRING_RETURN_IF_ERROR(ExportNone());
  if (memory.empty()) return absl::OkStatus();
  const absl::StatusOr<CUipcMemHandle> own = memory_->Export(memory);
  TFRING_ASSIGN_OR_RETURN(bool agreed,
                          Agree(own.status(), host, kWithoutExport));
  if (agreed) {
    TFRING_ASSIGN_OR_RETURN(const std::vector<CUipcMemHandle> handles,
                            ExchangeOne(host, *own));
    TFRING_ASSIGN_OR_RETURN(agreed,
                            Agree(OpenExported(handles), host, kWithoutExport));
  }
  if (agreed) return absl::OkStatus();
  can_export_ = false;
  return ExportNone();
}

absl::Status CudaLinks::OpenExported(
    const std::vector<CUipcMemHandle>& handles) {
  for (int peer = 0; peer < context_.host.size(); ++peer) {
    if (links_[peer] == nullptr) continue;
    TFRING_RETURN_IF_ERROR(links_[peer]->OpenExported(handles[peer]));
  }
  return absl::OkStatus();
}

absl::Status CudaLinks::ExportNone() {
  // The GPU may still be working on memory that peers have exported, and
  // closing it waits for all streams: see Note [Waits of the driver] in
  // kernels/cuda.h.
  TFRING_RETURN_IF_ERROR(WaitForStreams(context_));
  for (const std::unique_ptr<CudaLink>& link : links_) {
    if (link != nullptr) link->CloseExported();
  }
  TFRING_RETURN_IF_ERROR(ExchangeOne(context_.host, 'x').status());
  memory_->ExportNone();
  return absl::OkStatus();
}

absl::Status CudaLinks::Quiesce() {
  for (const std::unique_ptr<CudaLink>& link : links_) {
    if (link != nullptr) TFRING_RETURN_IF_ERROR(link->Quiesce());
  }
  if (memory_ == nullptr) return absl::OkStatus();
  return ExchangeOne(context_.host, 'x').status();
}

}  // namespace tfring
