#include "tfring_ops/nccl/library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

constexpr char kLibrary[] = "libnccl.so.2";
// The first version with nonblocking calls: within a blocking call no rank
// would notice that a peer is lost.
constexpr int kLeastVersion = 21400;

// Returns the path of the NCCL that tensorflow[and-cuda] installs beside
// TensorFlow's own directory, or "" if there is none.
std::string PackagedLibrary() {
  void* const framework =
      dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (framework == nullptr) return "";
  link_map* map = nullptr;
  std::string path;
  if (dlinfo(framework, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0) {
    const std::string file = map->l_name;
    path = absl::StrCat(file.substr(0, file.rfind('/') + 1),
                        "../nvidia/nccl/lib/", kLibrary);
  }
  dlclose(framework);
  return access(path.c_str(), R_OK) == 0 ? path : "";
}

}  // namespace

NcclLibrary::NcclLibrary(void* library)
    : library_(library),
      get_error_string_(
          reinterpret_cast<const char* (*)(int)>(Find("ncclGetErrorString"))),
      get_last_error_(reinterpret_cast<const char* (*)(ncclComm_t)>(
          Find("ncclGetLastError"))) {}

absl::StatusOr<const NcclLibrary*> NcclLibrary::Get() {
  static const auto* const found = new absl::StatusOr<const NcclLibrary*>(
      []() -> absl::StatusOr<const NcclLibrary*> {
        const std::string packaged = PackagedLibrary();
        void* const handle =
            dlopen(packaged.empty() ? kLibrary : packaged.c_str(),
                   RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) {
          return absl::UnavailableError(absl::StrCat("no NCCL: ", dlerror()));
        }
        auto* const library = new NcclLibrary(handle);
        if (library->missing_ != nullptr) {
          return absl::UnavailableError(
              absl::StrCat(kLibrary, " has no ", library->missing_,
                           ": install NCCL 2.14 or later"));
        }
        TFRING_RETURN_IF_ERROR(library->ncclGetVersion(&library->version_));
        if (library->version_ < kLeastVersion) {
          return absl::UnavailableError(
              absl::StrCat("NCCL ", library->version_,
                           " is too old: install NCCL 2.14 or later"));
        }
        Dl_info info;
        if (dladdr(dlsym(handle, "ncclGetVersion"), &info) != 0) {
          library->path_ = info.dli_fname;
        }
        return library;
      }());
  return *found;
}

void* NcclLibrary::Find(const char* name) {
  void* const function = dlsym(library_, name);
  if (function == nullptr && missing_ == nullptr) missing_ = name;
  return function;
}

absl::Status NcclLibrary::Check(int result, absl::string_view what) const {
  if (result == kNcclSuccess || result == kNcclInProgress) {
    return absl::OkStatus();
  }
  std::string message = absl::StrCat(
      what, " failed: ", get_error_string_(result), " (", result, ")");
  const char* const last = get_last_error_(nullptr);
  if (last != nullptr && *last != '\0') absl::StrAppend(&message, ": ", last);
  return absl::InternalError(message);
}

}  // namespace tfring
