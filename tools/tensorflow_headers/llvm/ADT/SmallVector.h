// See ArrayRef.h.
#ifndef TFRING_TOOLS_TENSORFLOW_HEADERS_SMALL_VECTOR_H_
#define TFRING_TOOLS_TENSORFLOW_HEADERS_SMALL_VECTOR_H_

#include <vector>

namespace llvm {

template <typename T>
using SmallVector = std::vector<T>;

}  // namespace llvm

#endif  // TFRING_TOOLS_TENSORFLOW_HEADERS_SMALL_VECTOR_H_
