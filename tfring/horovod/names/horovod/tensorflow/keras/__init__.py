"""horovod.tensorflow.keras."""

from horovod.tensorflow.keras import callbacks, elastic
from tfring import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    PartialDistributedOptimizer,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    broadcast_global_variables,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    gpu_available,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
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
