// Contexts: each the primary one of a device, from its first retain to its last
// release.
#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/gpu/fake/cuda/fake_cuda.h"

namespace tfring::fake_cuda {
namespace {

std::mutex mutex;
// The context of each device; null if it is not retained.
std::array<Context*, kMostDevices> primary;
// Contexts are never deleted, so that an ended context is still recognized.
std::vector<Context*>& Contexts() {
  static auto* const contexts = new std::vector<Context*>();
  return *contexts;
}

thread_local std::vector<Context*> current;

}  // namespace

int Retain(int device, Context** context) {
  if (device < 0 || device >= kMostDevices) return kInvalidDevice;
  const std::lock_guard<std::mutex> lock(mutex);
  if (primary[device] == nullptr) {
    primary[device] = Contexts().emplace_back(new Context(device));
  }
  ++primary[device]->retained;
  *context = primary[device];
  return kSuccess;
}

int Release(int device) {
  Context* ended = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (device < 0 || device >= kMostDevices || primary[device] == nullptr) {
      return kInvalidContext;
    }
    if (--primary[device]->retained > 0) return kSuccess;
    ended = std::exchange(primary[device], nullptr);
  }
  ended->error = kContextIsDestroyed;
  EndStreams(ended);
  EndMemory(ended);
  return kSuccess;
}

void Lose(int device) {
  const std::lock_guard<std::mutex> lock(mutex);
  int none = 0;
  primary[device]->error.compare_exchange_strong(none, kLaunchFailed);
}

bool IsActive(int device) {
  const std::lock_guard<std::mutex> lock(mutex);
  return primary[device] != nullptr;
}

int Push(Context* context) {
  if (context == nullptr || context->error == kContextIsDestroyed) {
    return kInvalidContext;
  }
  current.push_back(context);
  return kSuccess;
}

int Pop(Context** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

Context* CurrentContext() { return current.empty() ? nullptr : current.back(); }

int Check() {
  return current.empty() ? kInvalidContext : current.back()->error.load();
}

}  // namespace tfring::fake_cuda
