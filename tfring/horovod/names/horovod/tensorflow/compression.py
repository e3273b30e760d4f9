from tfring import Compression
from tfring.compression import Compressor, FP16Compressor, NoneCompressor
