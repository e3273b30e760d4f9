// The handlers that XLA calls on a GPU while it enqueues a program: the same
// custom calls as in host_handlers.cc, with a stream.
//
// Note [Handles on a GPU]
//
// Every operand of a custom call is in the GPU's memory there, also the int64
// handles of the ops, where the host can read them only by waiting for the
// stream.  So the handles only order the calls, as data.  The host learns their
// meaning by other means:
//
// - XLA runs the calls of a program in their order, on the thread that enqueues
//   it.  So a Start follows the Start before it on its stream, unless the
//   lowering has seen that it is the first of a chain.
// - A reduction is in place, so a Done has the buffers of its Start, and no
//   other that is in flight has them.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/ffi/custom_calls.h"
#include "tfring_ops/ffi/handlers.h"
#include "tfring_ops/ffi/in_place_call.h"
#include "tfring_ops/runtime/handles.h"
#include "tfring_ops/runtime/stream_order.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
struct DeviceOrdinal;
}  // namespace xla::ffi

namespace tfring {
namespace {

namespace ffi = xla::ffi;

// The handles that are in flight on GPUs.  Thread-safe.
class InFlight {
 public:
  using Pointers = std::vector<const void*>;

  static InFlight& Global() {
    static InFlight& in_flight = *new InFlight;
    return in_flight;
  }

  // Returns the handle of the last Start on `stream` that has not been taken.
  Handle Last(void* stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = last_.find(stream);
    return found == last_.end() ? kNoHandle : found->second;
  }

  void Add(void* stream, const Pointers& buffers, Handle handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    last_[stream] = handle;
    by_buffers_[buffers].push_back({stream, handle});
  }

  // Takes the newest Start with these buffers: an older one belonged to a
  // program that has failed.
  std::optional<Handle> Take(void* stream, const Pointers& buffers) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_buffers_.find(buffers);
    if (found == by_buffers_.end()) return std::nullopt;
    const Handle handle = found->second.back().handle;
    found->second.pop_back();
    if (found->second.empty()) by_buffers_.erase(found);
    if (const auto last = last_.find(stream);
        last != last_.end() && last->second == handle) {
      last_.erase(last);
    }
    return handle;
  }

  // Takes all Starts on `stream`, because its program fails.
  std::vector<Handle> TakeAll(void* stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    last_.erase(stream);
    std::vector<Handle> taken;
    for (auto next = by_buffers_.begin(); next != by_buffers_.end();) {
      std::vector<Started>& started = next->second;
      const auto others = std::stable_partition(
          started.begin(), started.end(),
          [&](const Started& one) { return one.stream != stream; });
      for (auto one = others; one != started.end(); ++one) {
        taken.push_back(one->handle);
      }
      started.erase(others, started.end());
      next = started.empty() ? by_buffers_.erase(next) : std::next(next);
    }
    return taken;
  }

 private:
  struct Started {
    void* stream;
    Handle handle;
  };

  std::mutex mutex_;
  std::unordered_map<void*, Handle> last_;
  std::map<Pointers, std::vector<Started>> by_buffers_;
};

// Fails a call for `reason`: its program ends, and its buffers are freed.
absl::Status Fail(const absl::Status& reason, void* stream) {
  for (const Handle handle : InFlight::Global().TakeAll(stream)) {
    // FailAfterChain returns `reason`.
    FailAfterChain(reason, handle, stream).IgnoreError();
  }
  return reason;
}

// Returns the ordinal of the GPU in the process.  Before TensorFlow 2.19 XLA
// does not pass it; it is then that of the first GPU, the one that tfringrun
// gives each rank.
template <typename T, typename = void>
struct Ordinal {
  using Context = ffi::PlatformStream<void*>;
  static int32_t Of(void* /*stream*/) { return 0; }
};
template <typename T>
struct Ordinal<T, std::void_t<decltype(sizeof(ffi::CtxDecoding<T>))>> {
  using Context = T;
  static int32_t Of(int32_t ordinal) { return ordinal; }
};
using DeviceOrdinal = Ordinal<ffi::DeviceOrdinal>;

absl::Status Submit(void* stream, int32_t device, CollectiveRequest request,
                    bool starts_chain, ffi::RemainingArgs args,
                    ffi::RemainingRets rets) {
  TFRING_ASSIGN_OR_RETURN(const InPlaceCall call,
                          InPlaceCall::Decode(args, rets));
  TFRING_ASSIGN_OR_RETURN(TensorEntry entry, call.Entry(std::move(request)));
  TFRING_ASSIGN_OR_RETURN(std::shared_ptr<StreamOrder> order,
                          StreamOrder::Of(stream, device, entry));
  InFlight& in_flight = InFlight::Global();
  TFRING_ASSIGN_OR_RETURN(
      const Handle handle,
      Handles::Global().Start(std::move(entry),
                              starts_chain ? kNoHandle : in_flight.Last(stream),
                              /*memory=*/nullptr, std::move(order)));
  in_flight.Add(stream, call.Addresses(), handle);
  return absl::OkStatus();
}

template <typename Device>
ffi::Error Start(void* stream, Device device, ffi::RemainingArgs args,
                 ffi::RemainingRets rets, std::string_view request_bytes,
                 std::string_view place_in_chain) {
  absl::StatusOr<CollectiveRequest> request =
      DecodeRequest(std::string(request_bytes));
  if (!request.ok()) return ToXla(request.status());
  const absl::Status status =
      Submit(stream, DeviceOrdinal::Of(device), *std::move(request),
             place_in_chain == kFirstOfChain, args, rets);
  return ToXla(status.ok() ? status : Fail(status, stream));
}

// Waits until the engine has enqueued all its work, and makes XLA's stream wait
// for the engine's.  Meanwhile XLA enqueues nothing, but work that is enqueued
// continues.
absl::Status Collect(void* stream, ffi::RemainingArgs args,
                     ffi::RemainingRets rets) {
  TFRING_ASSIGN_OR_RETURN(const InPlaceCall call,
                          InPlaceCall::Decode(args, rets));
  const std::optional<Handle> handle =
      InFlight::Global().Take(stream, call.Addresses());
  if (!handle.has_value()) {
    const absl::Status status = absl::InternalError(
        "XLA moved a tensor in the middle of a reduction on a GPU. Please "
        "report it, with your version of TensorFlow; jit_compile=False avoids "
        "it.");
    return Fail(status, stream);
  }
  absl::Notification done;
  Outcome late;
  std::optional<Outcome> outcome =
      call.Collect(*handle, stream, [&](Outcome taken) {
        late = std::move(taken);
        done.Notify();
      });
  if (!outcome.has_value()) {
    done.WaitForNotification();
    outcome = std::move(late);
  }
  return outcome->status;
}

ffi::Error Done(void* stream, ffi::RemainingArgs args,
                ffi::RemainingRets rets) {
  return ToXla(Collect(stream, args, rets));
}

}  // namespace
}  // namespace tfring

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    tfring_cuda_start,
    tfring::Start<xla::ffi::CtxDecoding<tfring::DeviceOrdinal::Context>::Type>,
    xla::ffi::Ffi::Bind()
        .Ctx<xla::ffi::PlatformStream<void*>>()
        .Ctx<tfring::DeviceOrdinal::Context>()
        .RemainingArgs()
        .RemainingRets()
        .Attr<std::string_view>("request")
        .Attr<std::string_view>("place"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(tfring_cuda_done, tfring::Done,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<void*>>()
                                  .RemainingArgs()
                                  .RemainingRets());
