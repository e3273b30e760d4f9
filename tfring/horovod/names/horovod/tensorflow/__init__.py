from horovod.tensorflow import compression, elastic, functions, mpi_ops
from horovod.tensorflow.functions import *
from horovod.tensorflow.mpi_ops import *
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from tfring import (
    BroadcastGlobalVariablesHook,
    Compression,
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
    broadcast_global_variables,
)
