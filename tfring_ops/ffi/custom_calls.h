// The names of the custom calls, and the values of their attributes.
#ifndef TFRING_OPS_FFI_CUSTOM_CALLS_H_
#define TFRING_OPS_FFI_CUSTOM_CALLS_H_

namespace tfring {

inline constexpr char kStartCall[] = "tfring_start";
inline constexpr char kDoneCall[] = "tfring_done";
// These calls exist on the host alone.
inline constexpr char kReadCall[] = "tfring_read";
inline constexpr char kWriteCall[] = "tfring_write";
inline constexpr char kPlaceCall[] = "tfring_place";
inline constexpr char kComputedCall[] = "tfring_computed";

// The value of a Start's attribute `place` if it is the first of its chain, on
// GPUs.
inline constexpr char kFirstOfChain[] = "first";

}  // namespace tfring

#endif  // TFRING_OPS_FFI_CUSTOM_CALLS_H_
