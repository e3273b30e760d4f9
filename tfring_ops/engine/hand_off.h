// Limits below which handing work to another thread costs more than the work.
//
// Measured on one machine with two ranks: it takes 30 to 60 us until a thread
// that sleeps runs, and about as long to allreduce 64 KiB.
#ifndef TFRING_OPS_ENGINE_HAND_OFF_H_
#define TFRING_OPS_ENGINE_HAND_OFF_H_

#include <chrono>
#include <cstdint>

namespace tfring {

// A bucket of fewer bytes runs on the driver, even if a worker is free.  The
// thread that waits for a collective of at most this many bytes polls for
// `kResultPoll` before it sleeps.
inline constexpr int64_t kHandOffBytes = 64 << 10;
inline constexpr std::chrono::microseconds kResultPoll{30};

// Within a machine, a thread that submits a request of at most this many bytes
// may drive the engine itself: backpropagation hardly waits.
inline constexpr int64_t kDriveBytes = 1 << 20;
// How long that thread waits for the other ranks: somewhat longer than it takes
// to wake the engine's thread.  With a shorter wait, ranks that have missed
// each other once do so in every step.
inline constexpr std::chrono::microseconds kDrivePoll{100};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_HAND_OFF_H_
