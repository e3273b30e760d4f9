# The public names of the package, each declared here and nowhere else:
# __init__.py reads them from this file and imports their modules when they are
# first used; type checkers and editors read it as any stub.

from tfring import (
    callbacks as callbacks,
    compression as compression,
    data as data,
    elastic as elastic,
    layers as layers,
    metrics as metrics,
)
from tfring._checkpoint.loop import Checkpoint as Checkpoint
from tfring._compat.probes import (
    ccl_built as ccl_built,
    cuda_built as cuda_built,
    ddl_built as ddl_built,
    gloo_built as gloo_built,
    gloo_enabled as gloo_enabled,
    gpu_available as gpu_available,
    is_homogeneous as is_homogeneous,
    mpi_built as mpi_built,
    mpi_enabled as mpi_enabled,
    mpi_threads_supported as mpi_threads_supported,
    nccl_built as nccl_built,
    rocm_built as rocm_built,
)
from tfring._compat.sessions import (
    BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook,
    broadcast_global_variables as broadcast_global_variables,
)
from tfring._core.errors import (
    DifferentOrdersWarning as DifferentOrdersWarning,
    LossReductionWarning as LossReductionWarning,
    NotBroadcastWarning as NotBroadcastWarning,
    NotDistributedWarning as NotDistributedWarning,
    NotInitializedError as NotInitializedError,
    SameDrawsWarning as SameDrawsWarning,
)
from tfring._core.monitor import (
    Statistics as Statistics,
    statistics as statistics,
)
from tfring._core.place import (
    cross_rank as cross_rank,
    cross_size as cross_size,
    local_rank as local_rank,
    local_size as local_size,
    rank as rank,
    size as size,
)
from tfring._core.process_sets import (
    ProcessSet as ProcessSet,
    global_process_set as global_process_set,
)
from tfring._core.runtime import (
    is_initialized as is_initialized,
    shutdown as shutdown,
)
from tfring._core.timeline import (
    start_timeline as start_timeline,
    stop_timeline as stop_timeline,
)
from tfring._gradients.clipping import (
    clip_by_global_norm as clip_by_global_norm,
)
from tfring._gradients.rounds import (
    DiLoCo as DiLoCo,
    Gossip as Gossip,
    LocalSGD as LocalSGD,
)
from tfring._keras.init import init as init
from tfring._keras.sharded_parameters import (
    shard_parameters as shard_parameters,
)
from tfring._memory.activations import (
    offload_activations as offload_activations,
)
from tfring._memory.offload_options import (
    FeatureMap as FeatureMap,
    Offload as Offload,
    OffloadStatistics as OffloadStatistics,
)
from tfring._ops.allgather import (
    allgather as allgather,
    grouped_allgather as grouped_allgather,
)
from tfring._ops.allreduce import (
    allreduce as allreduce,
    grouped_allreduce as grouped_allreduce,
)
from tfring._ops.alltoall import alltoall as alltoall
from tfring._ops.barrier import barrier as barrier
from tfring._ops.broadcast import broadcast as broadcast
from tfring._ops.compression import (
    Compression as Compression,
    PowerSGD as PowerSGD,
)
from tfring._ops.global_mean import global_mean as global_mean
from tfring._ops.join import join as join
from tfring._ops.objects import (
    allgather_object as allgather_object,
    broadcast_object as broadcast_object,
    broadcast_object_fn as broadcast_object_fn,
)
from tfring._ops.process_set_registry import (
    add_process_set as add_process_set,
    remove_process_set as remove_process_set,
)
from tfring._ops.reducescatter import (
    grouped_reducescatter as grouped_reducescatter,
    reducescatter as reducescatter,
)
from tfring._ops.reductions import (
    Adasum as Adasum,
    Average as Average,
    Max as Max,
    Min as Min,
    Product as Product,
    ReduceOp as ReduceOp,
    Sum as Sum,
)
from tfring._ops.topology import (
    local_rank_op as local_rank_op,
    local_size_op as local_size_op,
    process_set_included_op as process_set_included_op,
    rank_op as rank_op,
    size_op as size_op,
)
from tfring._optim.optimizer import (
    DistributedOptimizer as DistributedOptimizer,
    PartialDistributedOptimizer as PartialDistributedOptimizer,
)
from tfring._optim.rounds import shared_weights as shared_weights
from tfring._optim.sync_batch_norm import (
    SyncBatchNormalization as SyncBatchNormalization,
)
from tfring._optim.tape import (
    DistributedGradientTape as DistributedGradientTape,
    PartialDistributedGradientTape as PartialDistributedGradientTape,
)
from tfring._state.broadcast_variables import (
    broadcast_ as broadcast_,
    broadcast_variables as broadcast_variables,
)
from tfring._state.whole_states import whole_states as whole_states
from tfring.launcher.function import run as run
from tfring.layers.loading import load_model as load_model

__version__: str
