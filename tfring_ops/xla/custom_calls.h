// The names under which the lowering finds the FFI handlers.
#ifndef TFRING_OPS_XLA_CUSTOM_CALLS_H_
#define TFRING_OPS_XLA_CUSTOM_CALLS_H_

namespace tfring {

inline constexpr char kStartCall[] = "tfring_start";
inline constexpr char kDoneCall[] = "tfring_done";

}  // namespace tfring

#endif  // TFRING_OPS_XLA_CUSTOM_CALLS_H_
