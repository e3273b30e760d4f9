// The kernels on the memory of an NVIDIA GPU.  tools/cuda_kernels.py compiles
// them to cuda_kernels.ptx, which is built into the op library.
//
// They are compiled without contraction: results are the same to the bit as in
// cpu_loops.h, except for the sign and payload of a NaN.
#include "tfring_ops/kernels/cuda_elements.cuh"
#include "tfring_ops/kernels/cuda_pieces.h"

// Calls body(i) for all i below `count`, divided among the threads of the grid.
template <typename Body>
__device__ void ForEach(int64_t count, const Body& body) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 1
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += stride) {
    body(i);
  }
}

// The unit of a thread's loads and stores: 16 bytes, or as many elements as
// another type has in them.
template <int kBytes>
struct Word;
template <>
struct Word<16> {
  using Type = uint4;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<4> {
  using Type = uint32_t;
};

template <typename Stored, int kElements = 16 / sizeof(Stored)>
union Vector {
  static constexpr int kCount = kElements;
  using Whole = typename Word<kCount * sizeof(Stored)>::Type;

  static __device__ bool Aligned(const Stored* a) {
    return reinterpret_cast<uint64_t>(a) % sizeof(Whole) == 0;
  }

  Whole whole;
  Stored elements[kCount];
};

// Note [Loads in flight]
// Few blocks have to keep many bytes in flight: in 1 us a GPU's memory, and
// another GPU's over NVLink, deliver a MB or more.  So a thread loads several
// vectors before it uses the first.  Beyond the end it loads the last vector
// again.  A vector that takes much code is unrolled less: two vectors of bytes,
// and one if it is scaled or converted.  The outer loops are not unrolled,
// because the compiler would make far more code of the elements that belong to
// no vector.
constexpr int kUnrolled = 4;

__device__ int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// dst[i] = compute(a[i], b[i]), on vectors where all three are aligned.
template <typename Stored, typename Compute>
__device__ void Map(Stored* dst, const Stored* a, const Stored* b,
                    int64_t count, const Compute& compute) {
  using V = Vector<Stored>;
  constexpr int kVectors = sizeof(Stored) == 1 ? 2 : kUnrolled;
  int64_t vectors = 0;
  if (V::Aligned(dst) && V::Aligned(a) && V::Aligned(b)) {
    vectors = count / V::kCount;
    const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (int64_t i =
             static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < vectors; i += kVectors * stride) {
      V x[kVectors], y[kVectors];
#pragma unroll
      for (int u = 0; u < kVectors; ++u) {
        const int64_t at = Least(i + u * stride, vectors - 1);
        x[u].whole = reinterpret_cast<const uint4*>(a)[at];
        y[u].whole = reinterpret_cast<const uint4*>(b)[at];
      }
#pragma unroll
      for (int u = 0; u < kVectors; ++u) {
        if (i + u * stride >= vectors) break;
#pragma unroll
        for (int j = 0; j < V::kCount; ++j) {
          x[u].elements[j] = compute(x[u].elements[j], y[u].elements[j]);
        }
        reinterpret_cast<uint4*>(dst)[i + u * stride] = x[u].whole;
      }
    }
  }
  const int64_t first = vectors * V::kCount;
  ForEach(count - first, [&](int64_t i) {
    dst[first + i] = compute(a[first + i], b[first + i]);
  });
}

template <typename T, typename Operation>
__device__ void Reduce(void* dst, const void* a, const void* b,
                       int64_t count) {
  using Stored = typename T::Stored;
  Map(static_cast<Stored*>(dst), static_cast<const Stored*>(a),
      static_cast<const Stored*>(b), count, [](Stored x, Stored y) {
        return T::Store(Operation::Apply(T::Load(x), T::Load(y)));
      });
}

// Returns the first piece that ends after `tile`.
__device__ int Find(const tfring::CudaPieces& table, int64_t tile) {
  int first = 0, last = static_cast<int>(table.count) - 1;
  while (first < last) {
    const int middle = (first + last) / 2;
    if (table.pieces[middle].tile_end <= tile) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

// Computes to[i] = compute(from[i]) for all i below `count`, with a block.
template <int kUnits, typename From, typename To, typename Compute>
__device__ void MapUnits(To* to, const From* from, int64_t count,
                         const Compute& compute) {
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < count; i += kUnits * blockDim.x) {
    From x[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      x[u] = from[Least(i + u * blockDim.x, count - 1)];
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (i + u * blockDim.x >= count) break;
      to[i + u * blockDim.x] = compute(x[u]);
    }
  }
}

// Maps a tile, on vectors if `from` and `to` are aligned.
struct MapTile {
  template <typename From, typename To, typename Compute>
  static __device__ void Apply(To* to, const From* from, int64_t count,
                               const Compute& compute) {
    constexpr int kCount = 16 / (sizeof(From) < sizeof(To) ? sizeof(To)
                                                           : sizeof(From));
    using Source = Vector<From, kCount>;
    using Target = Vector<To, kCount>;
    int64_t first = 0;
    if (Source::Aligned(from) && Target::Aligned(to)) {
      const int64_t vectors = count / kCount;
      MapUnits<1>(
          reinterpret_cast<typename Target::Whole*>(to),
          reinterpret_cast<const typename Source::Whole*>(from), vectors,
          [&](const typename Source::Whole& whole) {
            Source x;
            Target y;
            x.whole = whole;
#pragma unroll
            for (int j = 0; j < kCount; ++j) {
              y.elements[j] = compute(x.elements[j]);
            }
            return y.whole;
          });
      first = vectors * kCount;
    }
    MapUnits<1>(to + first, from + first, count - first, compute);
  }
};

// Copies in units with borders at the same places of both, and copies the bytes
// before the first border and behind the last one by themselves.
struct CopyTile {
  template <typename Compute>
  static __device__ void Apply(uint8_t* to, const uint8_t* from, int64_t bytes,
                               const Compute& compute) {
    const uint64_t apart =
        reinterpret_cast<uint64_t>(to) ^ reinterpret_cast<uint64_t>(from);
    if (apart % sizeof(uint4) == 0) {
      ByUnits<uint4>(to, from, bytes, compute);
    } else if (apart % sizeof(uint32_t) == 0) {
      ByUnits<uint32_t>(to, from, bytes, compute);
    } else {
      MapUnits<kUnrolled>(to, from, bytes, compute);
    }
  }

  template <typename Unit, typename Compute>
  static __device__ void ByUnits(uint8_t* to, const uint8_t* from,
                                 int64_t bytes, const Compute& compute) {
    const int64_t behind = reinterpret_cast<uint64_t>(to) % sizeof(Unit);
    const int64_t head =
        Least(bytes, behind == 0 ? 0 : sizeof(Unit) - behind);
    const int64_t units = (bytes - head) / static_cast<int64_t>(sizeof(Unit));
    const int64_t tail = head + units * static_cast<int64_t>(sizeof(Unit));
    MapUnits<1>(to, from, head, compute);
    MapUnits<kUnrolled>(reinterpret_cast<Unit*>(to + head),
                            reinterpret_cast<const Unit*>(from + head), units,
                            compute);
    MapUnits<1>(to + tail, from + tail, bytes - tail, compute);
  }
};

// Runs the tiles of all pieces, divided among the blocks of the grid.
template <typename Tile, typename From, typename To, typename Compute>
__device__ void MapPieces(const tfring::CudaPieces& table,
                          const Compute& compute) {
  const int64_t tiles = table.pieces[table.count - 1].tile_end;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int index = Find(table, tile);
    const int64_t tiles_before =
        index == 0 ? 0 : table.pieces[index - 1].tile_end;
    const int64_t first = (tile - tiles_before) * table.tile_count;
    const int64_t left = table.pieces[index].count - first;
    Tile::Apply(static_cast<To*>(table.pieces[index].to) + first,
                static_cast<const From*>(table.pieces[index].from) + first,
                Least(left, table.tile_count), compute);
  }
}

struct Same {
  template <typename T>
  __device__ T operator()(T value) const {
    return value;
  }
};

__device__ void Copy(const tfring::CudaPieces& table) {
  MapPieces<CopyTile, uint8_t, uint8_t>(table, Same());
}

template <typename T>
__device__ void Scale(const tfring::CudaPieces& table) {
  using Stored = typename T::Stored;
  const double factor = table.factor;
  MapPieces<MapTile, Stored, Stored>(table, [factor](Stored x) {
    return T::Store(Scaled::Apply(T::Load(x), factor));
  });
}

// Converts through float.
template <typename From, typename To>
__device__ void Convert(const tfring::CudaPieces& table) {
  using Stored = typename To::Stored;
  using Computed = typename To::Computed;
  const double factor = table.factor;
  MapPieces<MapTile, typename From::Stored, Stored>(
      table, [factor](typename From::Stored x) {
        const Stored y = To::Store(
            static_cast<Computed>(static_cast<float>(From::Load(x))));
        return factor == 1.0 ? y
                             : To::Store(Scaled::Apply(To::Load(y), factor));
      });
}

// The driver finds the kernels by name.  The assembler has to leave registers
// for this many threads.
#define KERNEL \
  extern "C" __global__ void __launch_bounds__(tfring::kCudaThreadsPerBlock)
#define REDUCE(dtype, T, op, Operation)                                 \
  KERNEL tfring_##op##_##dtype(void* dst, const void* a, const void* b, \
                               int64_t count) {                         \
    Reduce<T, Operation>(dst, a, b, count);                             \
  }
#define SCALE(dtype, T)                                                 \
  KERNEL tfring_scale_##dtype(const tfring::CudaPieces table) {         \
    Scale<T>(table);                                                    \
  }
#define CONVERT(from, From, to, To)                                     \
  KERNEL tfring_convert_##from##_##to(const tfring::CudaPieces table) { \
    Convert<From, To>(table);                                           \
  }
#define CONVERTS(wide, Wide, half)     \
  CONVERT(wide, Wide, half, half)      \
  CONVERT(half, half, wide, Wide)
#define REDUCES(dtype, T)        \
  REDUCE(dtype, T, sum, Sum)     \
  REDUCE(dtype, T, product, Product) \
  REDUCE(dtype, T, min, Min)     \
  REDUCE(dtype, T, max, Max)
#define NUMBER(dtype, T) REDUCES(dtype, T) SCALE(dtype, T)

NUMBER(float16, float16)
NUMBER(bfloat16, bfloat16)
NUMBER(float32, Plain<float>)
NUMBER(float64, Plain<double>)
NUMBER(int8, Plain<int8_t>)
NUMBER(int16, Plain<int16_t>)
NUMBER(int32, Plain<int32_t>)
NUMBER(int64, Plain<int64_t>)
NUMBER(uint8, Plain<uint8_t>)
NUMBER(uint16, Plain<uint16_t>)
NUMBER(uint32, Plain<uint32_t>)
NUMBER(uint64, Plain<uint64_t>)
REDUCES(bool, boolean)
// Copies bytes, of any type.
KERNEL tfring_copy_uint8(const tfring::CudaPieces table) { Copy(table); }
CONVERTS(float32, Plain<float>, float16)
CONVERTS(float32, Plain<float>, bfloat16)
CONVERTS(float64, Plain<double>, float16)
CONVERTS(float64, Plain<double>, bfloat16)
