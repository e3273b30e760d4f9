"""Compressors, which make tensors smaller before they are sent.

`tfring.Compression` has the compressors of tfring. Derive from `Compressor` for
one of your own.
"""

from tfring._ops.compression import (
    BF16Compressor as BF16Compressor,
    Compression as Compression,
    Compressor as Compressor,
    FP16Compressor as FP16Compressor,
    NoneCompressor as NoneCompressor,
)
