// A header of TensorFlow 2.19 includes this one of LLVM, which its package
// lacks.  We never use the class there, one for GPUs, so its words need only
// parse.
#ifndef TFRING_TOOLS_TENSORFLOW_HEADERS_ARRAY_REF_H_
#define TFRING_TOOLS_TENSORFLOW_HEADERS_ARRAY_REF_H_

#include "absl/types/span.h"

namespace llvm {

template <typename T>
using ArrayRef = absl::Span<const T>;

}  // namespace llvm

#endif  // TFRING_TOOLS_TENSORFLOW_HEADERS_ARRAY_REF_H_
