// Pinned tensors: memory that XLA may not copy.
//
// Note [Tensors stay where they are]
//
// Between a Start and its Done the engine writes to the memory of a tensor,
// which XLA does not know. XLA must neither move the tensor nor use its memory
// for something else meanwhile.
//
// In XLA since TensorFlow 2.22 a value may have the type of a buffer, which is
// for exactly this. XLA refuses to compile a program in which a buffer would be
// copied, and copies what "Pin" takes, or what "Unpin" returns, where something
// else needs the value. A Start takes pinned tensors, and the results of its
// Done are unpinned. That costs 1 to 3 us for each tensor on the host, and
// nothing on a GPU.
//
// In older XLA a tensor stays because the output of each call aliases its
// operand. There XLA copies the operands of all such calls at first, and then
// removes each copy of a value that nothing else uses. It has always removed
// the copy between a Start and its Done, but does not promise it. So a Done
// checks the addresses, and fails rather than return a wrong sum.
//
// An empty tensor is not pinned: XLA replaces every empty value with a
// constant, and a buffer cannot be one.
#ifndef TFRING_OPS_XLA_PINS_H_
#define TFRING_OPS_XLA_PINS_H_

#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tfring {

// pins.cc implements these for XLA with buffers.  For older XLA no_pins.cc
// does, which returns its argument.  Errors are the builder's.
xla::XlaOp Pin(xla::XlaOp tensor);
xla::XlaOp Unpin(xla::XlaOp value);  // `value` need not be pinned
bool IsPinned(const xla::Shape& shape);

}  // namespace tfring

#endif  // TFRING_OPS_XLA_PINS_H_
