#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/capi/c_status.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/ffi/handlers.h"

int64_t tfring_encode_allreduce(const char* name, int32_t tensors,
                                int32_t dtype, int32_t op, char* request,
                                int64_t room) {
  return tfring::RunOr<int64_t>(0, [=] {
    tfring::CollectiveRequest allreduce;
    allreduce.name = name;
    allreduce.dtype = static_cast<tfring::DataType>(dtype);
    allreduce.op = static_cast<tfring::ReduceOp>(op);
    for (int i = 0; i < tensors; ++i) {
      allreduce.tensors.push_back({absl::StrCat(name, "/", i), {}});
    }
    const std::string bytes = tfring::Encode(allreduce);
    std::copy_n(bytes.data(), std::min<int64_t>(room, bytes.size()), request);
    return static_cast<int64_t>(bytes.size());
  });
}
