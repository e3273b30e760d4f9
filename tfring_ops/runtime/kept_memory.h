// Memory that a training step frees, for the next step.
//
// TensorFlow takes the tensors of a step from malloc, and frees them at its
// end. By its own settings glibc's malloc gives large ones back to the system,
// so that each step costs a page fault for each of their pages: as long as it
// computes, on some machines, and longer where the kernel first has to put
// huge pages together.
#ifndef TFRING_OPS_RUNTIME_KEPT_MEMORY_H_
#define TFRING_OPS_RUNTIME_KEPT_MEMORY_H_

namespace tfring {

// From now on malloc keeps freed memory, in pieces of up to 64 MiB, the most
// that glibc's arenas of threads hold, and of up to 2 GiB on the first thread.
// Does nothing where the environment has settings of malloc's for that.
void KeepFreedMemory();

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_KEPT_MEMORY_H_
