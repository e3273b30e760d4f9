// Keeps the memory that a training step frees, for the next step.
//
// TensorFlow allocates the tensors of a step by malloc, and frees them at its
// end.  By default glibc's malloc returns large blocks to the system, so that
// each step costs a page fault for each of their pages.  On some machines that
// takes as long as the computation, and longer if the kernel first has to put
// huge pages together.
#ifndef TFRING_OPS_RUNTIME_KEPT_MEMORY_H_
#define TFRING_OPS_RUNTIME_KEPT_MEMORY_H_

namespace tfring {

// Makes malloc keep freed blocks from now on: up to 64 MiB each, which is the
// limit of glibc's arenas of threads, and up to 2 GiB on the first thread.
// Does nothing if the environment has settings for malloc.
void KeepFreedMemory();

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_KEPT_MEMORY_H_
