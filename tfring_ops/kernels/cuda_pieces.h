// The arguments of the kernels that copy pieces, and the size of a block of
// threads, shared by cuda_kernels.cu, which is compiled without a standard
// library, and the code that launches them.
#ifndef TFRING_OPS_KERNELS_CUDA_PIECES_H_
#define TFRING_OPS_KERNELS_CUDA_PIECES_H_

namespace tfring {

inline constexpr int kCudaThreadsPerBlock = 512;

// A CopyPiece (kernels.h).  A block of threads copies one tile of a piece at a
// time.
struct CudaPiece {
  const void* from;
  void* to;
  long long count;     // NOLINT(google-runtime-int): elements, or bytes
  long long tile_end;  // NOLINT(google-runtime-int): of it and all before it
};

struct CudaPieces {
  static constexpr int kMost = 120;

  CudaPiece pieces[kMost];
  long long count;       // NOLINT(google-runtime-int): of the pieces
  long long tile_count;  // NOLINT(google-runtime-int): elements of a tile
  double factor;
};
// The parameters of a kernel have at most this size.  The driver copies them,
// so the caller need not keep the table.
static_assert(sizeof(CudaPieces) <= 4096, "too many pieces");

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CUDA_PIECES_H_
