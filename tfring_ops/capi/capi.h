// The door for Python (ctypes) and for the rooms above: one engine a process.
//
// No exception crosses it.  Functions that can fail return nullptr when all is
// well, else a sentence that lives until the same thread's next call.
#ifndef TFRING_OPS_CAPI_CAPI_H_
#define TFRING_OPS_CAPI_CAPI_H_

#include <cstdint>

#define TFRING_EXPORT extern "C" __attribute__((visibility("default")))

// Starts the engine on a duplicate of the communicator with Fortran handle
// `comm` (mpi4py's `comm.py2f()`).  Collective over that communicator.
TFRING_EXPORT const char* tfring_init(int32_t comm);

// Stops the engine.  Without one, does nothing.
TFRING_EXPORT void tfring_shutdown();

// The bucket size that all ranks agreed on, or -1 without an engine.
TFRING_EXPORT int64_t tfring_fusion_threshold_bytes();

// The MPI library that this one was compiled for: "Open MPI 5.0.11".
TFRING_EXPORT const char* tfring_mpi_build_version();

#endif  // TFRING_OPS_CAPI_CAPI_H_
