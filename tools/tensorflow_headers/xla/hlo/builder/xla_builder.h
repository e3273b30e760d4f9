// TensorFlow 2.18 has it in another place.
#ifndef TFRING_TOOLS_TENSORFLOW_HEADERS_XLA_BUILDER_H_
#define TFRING_TOOLS_TENSORFLOW_HEADERS_XLA_BUILDER_H_

#include "xla/client/xla_builder.h"

#endif  // TFRING_TOOLS_TENSORFLOW_HEADERS_XLA_BUILDER_H_
