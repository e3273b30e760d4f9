// The C API for Python (ctypes) and for the layers above: the engines of this
// process.
//
// No exception crosses it.  A function that can fail returns nullptr on
// success, and otherwise an error message that lives until the same thread's
// next call.
#ifndef TFRING_OPS_CAPI_CAPI_H_
#define TFRING_OPS_CAPI_CAPI_H_

#include <cstdint>

#define TFRING_EXPORT extern "C" __attribute__((visibility("default")))

// Why the settings in the environment cannot be used.
TFRING_EXPORT const char* tfring_check_options();

// Starts the world's engine on a duplicate of the communicator with Fortran
// handle `comm` (mpi4py's `comm.py2f()`).  Collective over that communicator.
TFRING_EXPORT const char* tfring_init(int32_t comm);

// Connects this rank with another of a set by a channel: returns a socket,
// which is the caller's then, or -1 while the peer has yet to do its part, or
// -2 if that cannot be.  In channel 0 it waits for the peer.
typedef int32_t (*tfring_connect)(int32_t channel, int32_t peer);

// The same without MPI, for the job of this generation, which is positive and
// higher than any earlier job's: this process is `rank` of `size` ranks, which
// are on the machines `nodes`.  `connect` is called before this returns, and
// until tfring_shutdown by any thread.
TFRING_EXPORT const char* tfring_init_sockets(int64_t generation, int32_t rank,
                                              int32_t size,
                                              const int32_t* nodes,
                                              tfring_connect connect);

// Soon fails all collectives with `reason`, on all ranks, in jobs of
// tfring_init_sockets of this generation and before it; a job of it that
// starts, now or later, fails too.  Never blocks.
TFRING_EXPORT void tfring_abort(int64_t generation, const char* reason);

// Has a thread send a byte by the connected `socket` every `seconds`, whatever
// the process does otherwise; takes the socket.
TFRING_EXPORT const char* tfring_pulse_start(int32_t socket, double seconds);

// Stops all engines.  Without any, does nothing.
TFRING_EXPORT void tfring_shutdown();

// Why the world's engine takes nothing more: a rank is lost or has left.
TFRING_EXPORT const char* tfring_ended();

// Makes `id` the process set of `count` ranks of the world, in their order.
// Every rank of the world must call it, at the same place among such calls;
// on a rank of the set it is collective over `comm`, which has these ranks in
// this order, and starts an engine.  Elsewhere `comm` is not used.
// REQUIRES: `id` was never used since `tfring_init`.
TFRING_EXPORT const char* tfring_add_process_set(int32_t id,
                                                 const int32_t* ranks,
                                                 int32_t count, int32_t comm);

// The same in a job of tfring_init_sockets.  `rank` is this process's in the
// set, and -1 elsewhere; `nodes` and `connect` are used on its ranks.
TFRING_EXPORT const char* tfring_add_process_set_sockets(
    int32_t id, const int32_t* ranks, int32_t count, int32_t rank,
    const int32_t* nodes, tfring_connect connect);

// Forgets the set, and stops its engine.  Without it, does nothing.
TFRING_EXPORT void tfring_remove_process_set(int32_t id);

// The bucket size that all ranks agreed on, or -1 without an engine.
TFRING_EXPORT int64_t tfring_fusion_threshold_bytes();

// Records the engines' work from here on; see engine/timeline.h.
TFRING_EXPORT void tfring_timeline_start(int32_t mark_responses);

// Ends that.  A line with the number of events that were too many, and one for
// each recorded: phase, kind, process set, thread, begin and end in nanoseconds
// of the monotonic clock, bytes of the tensors, bytes of a bucket's messages,
// name; tabs between them.  Lives until the same thread's next call.
TFRING_EXPORT const char* tfring_timeline_stop();

// Adds up the engines' work from here on, for good.
TFRING_EXPORT void tfring_statistics_start();

// A line with the fields of Statistics::Totals (engine/statistics.h), in their
// order, and one for each kind of messages: its name, and the bytes that this
// process has sent within its machine and to other machines since it began;
// tabs between them.  Some kinds share a name.  Lives until the same thread's
// next call.
TFRING_EXPORT const char* tfring_statistics();

// Describes the GPUs, found by trying them: a line for each fact, with its
// name, a tab and the rest in words.  Lives until the same thread's next call.
TFRING_EXPORT const char* tfring_describe_gpus();

// The version of the NCCL that is found, 22105 for 2.21.5; 0 without one.
TFRING_EXPORT int32_t tfring_nccl_version();

// Writes the six fields of OffloadStatistics
// (tfring/_memory/offload_options.py), in their order.  Returns 0, or 1 if no
// step of that plan has begun yet, and nothing was written.
TFRING_EXPORT int32_t tfring_offload_statistics(int64_t plan, int64_t* fields);

#endif  // TFRING_OPS_CAPI_CAPI_H_
