// Registers the handlers of ffi/ with TensorFlow's XLA.
#include "tfring_ops/ffi/custom_calls.h"
#include "tfring_ops/ffi/handlers.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// TensorFlow exports this function in place of XLA_FFI_GetApi, which the public
// header declares.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tfring {
namespace {

XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kStartCall, "Host",
                         tfring_host_start);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kDoneCall, "Host",
                         tfring_host_done);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kReadCall, "Host",
                         tfring_host_read);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kWriteCall, "Host",
                         tfring_host_write);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kPlaceCall, "Host",
                         tfring_host_place);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kComputedCall, "Host",
                         tfring_host_computed);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kStartCall, "CUDA",
                         tfring_cuda_start);
XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), kDoneCall, "CUDA",
                         tfring_cuda_done);

}  // namespace
}  // namespace tfring
