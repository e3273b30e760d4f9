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

// Returns why the settings in the environment cannot be used, or null.
TFRING_EXPORT const char* tfring_check_options();

// Starts the world's engine on a duplicate of the communicator with Fortran
// handle `comm` (mpi4py's `comm.py2f()`).  Collective over that communicator.
TFRING_EXPORT const char* tfring_init(int32_t comm);

// Connects this rank with another one of a set, for a channel.  Returns a
// socket, which the caller then owns, -1 while the peer has not done its part,
// or -2 if there can be no connection.  The call for channel 0 waits for the
// peer.
typedef int32_t (*tfring_connect)(int32_t channel, int32_t peer);

// Starts the world's engine without MPI, for the job of this generation, which
// is positive and higher than any earlier job's.  This process is `rank` of
// `size` ranks, which are on the machines `nodes`.  `connect` is called before
// this returns, and by any thread until tfring_shutdown.  If `replaces_ranks`
// is not 0, the job ends when ranks have waited too long for another one.
TFRING_EXPORT const char* tfring_init_sockets(int64_t generation, int32_t rank,
                                              int32_t size,
                                              const int32_t* nodes,
                                              tfring_connect connect,
                                              int32_t replaces_ranks);

// Fails all collectives with `reason`, on all ranks, in jobs of
// tfring_init_sockets of this generation or an earlier one.  A job of such a
// generation that starts later fails, too.  Never blocks.
TFRING_EXPORT void tfring_abort(int64_t generation, const char* reason);

// Starts a thread that sends a byte by the connected `socket` every `seconds`,
// whatever else the process does.  Takes ownership of the socket.
TFRING_EXPORT const char* tfring_pulse_start(int32_t socket, double seconds);

// Stops all engines, if there are any.
TFRING_EXPORT void tfring_shutdown();

// Returns why the world's engine accepts no requests, because a rank is lost or
// has left, or null.
TFRING_EXPORT const char* tfring_ended();

// Makes `id` the process set of `count` ranks of the world, in their order.
// Collective over the world: all ranks add the same sets in the same order.  On
// a rank of the set it is collective over `comm`, which has these ranks in this
// order, and starts an engine.  On other ranks `comm` is not used.
// REQUIRES: `id` has not been used since `tfring_init`.
TFRING_EXPORT const char* tfring_add_process_set(int32_t id,
                                                 const int32_t* ranks,
                                                 int32_t count, int32_t comm);

// Adds a process set in a job of tfring_init_sockets.  `rank` is this process's
// rank in the set, or -1 if it is not in it; then `nodes` and `connect` are not
// used.
TFRING_EXPORT const char* tfring_add_process_set_sockets(
    int32_t id, const int32_t* ranks, int32_t count, int32_t rank,
    const int32_t* nodes, tfring_connect connect);

// Removes the set, if there is one, and stops its engine.
TFRING_EXPORT void tfring_remove_process_set(int32_t id);

// Returns the bucket size that all ranks agreed on, or -1 without an engine.
TFRING_EXPORT int64_t tfring_fusion_threshold_bytes();

// Starts a recording of the engines' work; see engine/timeline.h.
TFRING_EXPORT void tfring_timeline_start(int32_t mark_responses);

// Ends the recording.  Returns a line with the number of events that did not
// fit, and a line for each recorded event: phase, kind, process set, thread,
// begin and end in nanoseconds of the monotonic clock, bytes of the tensors,
// bytes of a bucket's messages, and name, separated by tabs.  The text is valid
// until the same thread's next call.
TFRING_EXPORT const char* tfring_timeline_stop();

// Adds up the engines' work until tfring_statistics_stop has been called as
// often as this.
TFRING_EXPORT void tfring_statistics_start();
TFRING_EXPORT void tfring_statistics_stop();

// Returns a line with the fields of Statistics::Totals (engine/statistics.h),
// in their order, and a line for each kind of messages: its name, and the bytes
// that this process has sent within its machine and to other machines since it
// began, separated by tabs.  Some kinds share a name.  The text is valid until
// the same thread's next call.
TFRING_EXPORT const char* tfring_statistics();

// Returns for how many seconds this process has waited in iterators of tf.data.
// It is defined in tf/input_time.cc, because only that layer knows TensorFlow.
TFRING_EXPORT double tfring_input_seconds();

// Describes the GPUs, which are found by trying them: a line for each fact,
// with its name, a tab and the rest in words.  The text is valid until the same
// thread's next call.
TFRING_EXPORT const char* tfring_describe_gpus();

// Returns the version of the NCCL that is found, such as 22105 for 2.21.5, or 0
// without one.
TFRING_EXPORT int32_t tfring_nccl_version();

// Returns the seconds that an allreduce of `bytes` takes by the cost model on
// `nodes` of `ranks_per_node` ranks, a tab, and the name of the plan that is
// chosen.  `costs` are the seven times of Costs
// (algorithms/adaptive/cost_model.h), in their order; `on_gpus` is 1 if the
// bytes travel in the segments of GPUs, and 0 for those of hosts.  The text is
// valid until the same thread's next call.
TFRING_EXPORT const char* tfring_predict_allreduce(int32_t nodes,
                                                   int32_t ranks_per_node,
                                                   const double* costs,
                                                   int32_t on_gpus,
                                                   int64_t bytes);

// Writes the six fields of OffloadStatistics
// (tfring/_memory/offload_options.py), in their order.  Returns 0, or 1 if no
// step of that plan has begun yet, and nothing was written.
TFRING_EXPORT int32_t tfring_offload_statistics(int64_t plan, int64_t* fields);

#endif  // TFRING_OPS_CAPI_CAPI_H_
