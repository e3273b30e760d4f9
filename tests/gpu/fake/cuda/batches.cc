// Numbers that streams set and wait for, several in one call.
#include "tests/gpu/fake/cuda/entry.h"
#include "tests/gpu/fake/cuda/fake_cuda.h"

using namespace tfring::fake_cuda;  // NOLINT(google-build-using-namespace)

struct BatchOperation {
  uint32_t operation;
  uint64_t address, value;
  uint32_t flags;
  uint64_t unused[2];
};
ENTRY cuStreamBatchMemOp_v2(void* handle, unsigned count,
                            const BatchOperation* operations, unsigned flags) {
  constexpr uint32_t kWait = 1, kWrite = 2;
  constexpr unsigned kMost = 256;
  Stream* stream = nullptr;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindStream(handle, &stream));
  if (count > kMost || flags != 0) return kInvalidValue;
  for (unsigned i = 0; i < count; ++i) {
    const BatchOperation& asked = operations[i];
    if (Number(asked.address) == nullptr || asked.flags != 0 ||
        (asked.operation != kWait && asked.operation != kWrite)) {
      return kInvalidValue;
    }
  }
  for (unsigned i = 0; i < count; ++i) {
    const auto number = static_cast<uint32_t>(operations[i].value);
    auto& flag = *Number(operations[i].address);
    if (operations[i].operation == kWait) {
      Await(flag, number, stream);
    } else {
      Write(flag, number, stream);
    }
  }
  return kSuccess;
}
