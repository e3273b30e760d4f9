// The C functions that XLA calls for our custom calls, on the host and on a
// GPU, and the form of the calls.  TensorFlow has them from
// xla/registration.cc; another framework, such as JAX, registers them itself:
// of TensorFlow nothing is needed here, only headers of XLA's FFI.
//
// A start has any number of buffers of one dtype as operands, then the int64
// handle of the start before it, or 0; its results are the same buffers, in
// place, and its handle.  A done has those results and the handle of the last
// start of the chain as operands, and the buffers and a 0 as results.  A start
// has the encoded request as the attribute `request`; on GPUs also the
// attribute `place`: "first" if no start is before it, else "".  A read
// has a buffer as operand, and as result the elements that it copies, from the
// attribute `begin` on.  A write has a buffer as operand and in place as
// result, and the elements that it writes there, from `begin` on.  A place has
// the elements and the handle of a start as operands, and as result a buffer in
// which it writes the elements from `begin` on; the rest is undefined.  A
// computed has any buffer as operand and the handle 0 as result.  A pin has a
// buffer as operand and in place as result, and does nothing.
#ifndef TFRING_OPS_FFI_HANDLERS_H_
#define TFRING_OPS_FFI_HANDLERS_H_

#include <cstdint>

#include "tfring_ops/capi/capi.h"
#include "xla/ffi/api/c_api.h"

TFRING_EXPORT XLA_FFI_Error* tfring_host_start(XLA_FFI_CallFrame* frame);
TFRING_EXPORT XLA_FFI_Error* tfring_host_done(XLA_FFI_CallFrame* frame);
TFRING_EXPORT XLA_FFI_Error* tfring_host_read(XLA_FFI_CallFrame* frame);
TFRING_EXPORT XLA_FFI_Error* tfring_host_write(XLA_FFI_CallFrame* frame);
TFRING_EXPORT XLA_FFI_Error* tfring_host_place(XLA_FFI_CallFrame* frame);
TFRING_EXPORT XLA_FFI_Error* tfring_host_computed(XLA_FFI_CallFrame* frame);
TFRING_EXPORT XLA_FFI_Error* tfring_host_pin(XLA_FFI_CallFrame* frame);
TFRING_EXPORT XLA_FFI_Error* tfring_cuda_start(XLA_FFI_CallFrame* frame);
TFRING_EXPORT XLA_FFI_Error* tfring_cuda_done(XLA_FFI_CallFrame* frame);

#endif  // TFRING_OPS_FFI_HANDLERS_H_
