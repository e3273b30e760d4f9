// NCCL's functions, found at run time: nothing is linked.  Thread-safe.
//
// Types and numbers are from nccl.h 2.14, and later versions keep them.
#ifndef TFRING_OPS_NCCL_LIBRARY_H_
#define TFRING_OPS_NCCL_LIBRARY_H_

#include <climits>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Declared as in nccl.h, so that the two could be included together.
using ncclComm_t = struct ncclComm*;

namespace tfring {

inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;

// Identifies a communicator on all its ranks.
struct NcclUniqueId {
  char internal[128];
};

// The first members of ncclConfig_t.  `size` and `version` tell NCCL that there
// are no others.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
  int unset = INT_MIN;  // a gap in the struct of 2.14
};

class NcclLibrary {
 public:
  // Returns the process's library, which is never destroyed: the library of
  // TensorFlow's own NCCL package if that is installed, and otherwise the
  // library that the loader finds.  Unavailable, with the reason, if there is
  // none.
  static absl::StatusOr<const NcclLibrary*> Get();

  // The version as a number: 22105 is 2.21.5.
  int version() const { return version_; }
  const std::string& path() const { return path_; }

  // A function of NCCL.  A call returns a Status with NCCL's own text for the
  // error.  A call in progress is OK: see communicator.h.
  template <typename... Parameters>
  class Function {
   public:
    Function(NcclLibrary& library, const char* name)
        : library_(library),
          name_(name),
          function_(
              reinterpret_cast<int (*)(Parameters...)>(library.Find(name))) {}

    absl::Status operator()(Parameters... parameters) const {
      return library_.Check(function_(parameters...), name_);
    }
    // Returns the raw result, for callers that ignore errors.
    int Result(Parameters... parameters) const {
      return function_(parameters...);
    }

   private:
    const NcclLibrary& library_;
    const char* const name_;
    int (*const function_)(Parameters...);
  };

  // Returns OK for kNcclSuccess and kNcclInProgress.
  absl::Status Check(int result, absl::string_view what) const;

 private:
  explicit NcclLibrary(void* library);
  void* Find(const char* name);

  void* const library_;
  const char* missing_ = nullptr;  // the first function that was not found
  int version_ = 0;
  std::string path_;
  const char* (*const get_error_string_)(int);
  const char* (*const get_last_error_)(ncclComm_t);

 public:
#define TFRING_NCCL_FUNCTION(name, ...) \
  const Function<__VA_ARGS__> name { *this, #name }
  TFRING_NCCL_FUNCTION(ncclGetVersion, int*);
  TFRING_NCCL_FUNCTION(ncclGetUniqueId, NcclUniqueId*);
  TFRING_NCCL_FUNCTION(ncclCommInitRankConfig, ncclComm_t*, int, NcclUniqueId,
                       int, NcclConfig*);
  TFRING_NCCL_FUNCTION(ncclCommGetAsyncError, ncclComm_t, int*);
  TFRING_NCCL_FUNCTION(ncclCommFinalize, ncclComm_t);
  TFRING_NCCL_FUNCTION(ncclCommDestroy, ncclComm_t);
  TFRING_NCCL_FUNCTION(ncclCommAbort, ncclComm_t);
  TFRING_NCCL_FUNCTION(ncclGroupStart);
  TFRING_NCCL_FUNCTION(ncclGroupEnd);
  // The parameters are: source, destination, number of elements, their type,
  // the operation or the root or both, communicator, stream.
  TFRING_NCCL_FUNCTION(ncclAllReduce, const void*, void*, size_t, int, int,
                       ncclComm_t, void*);
  TFRING_NCCL_FUNCTION(ncclReduce, const void*, void*, size_t, int, int, int,
                       ncclComm_t, void*);
  TFRING_NCCL_FUNCTION(ncclReduceScatter, const void*, void*, size_t, int, int,
                       ncclComm_t, void*);
  TFRING_NCCL_FUNCTION(ncclAllGather, const void*, void*, size_t, int,
                       ncclComm_t, void*);
  TFRING_NCCL_FUNCTION(ncclBroadcast, const void*, void*, size_t, int, int,
                       ncclComm_t, void*);
#undef TFRING_NCCL_FUNCTION
};

}  // namespace tfring

#endif  // TFRING_OPS_NCCL_LIBRARY_H_
