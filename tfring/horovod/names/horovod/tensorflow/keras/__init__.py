from horovod.common.names import *
from horovod.tensorflow.keras import callbacks, elastic
from tfring import (
    Compression,
    PartialDistributedOptimizer,
    broadcast_global_variables,
)
from tfring.horovod.keras import (
    IS_KERAS2,
    DistributedOptimizer,
    allgather,
    allreduce,
    broadcast,
    reducescatter,
)

if IS_KERAS2:
    from tfring.horovod.keras2.loading import load_model
else:
    from tfring import load_model
