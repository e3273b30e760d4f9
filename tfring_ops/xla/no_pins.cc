#include "tfring_ops/xla/pins.h"

namespace tfring {

xla::XlaOp Pin(xla::XlaOp tensor) { return tensor; }
xla::XlaOp Unpin(xla::XlaOp value) { return value; }
bool IsPinned(const xla::Shape& /*shape*/) { return false; }

}  // namespace tfring
