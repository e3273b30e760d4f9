"""tfring: train Keras 3 and TensorFlow models on many processes.

Every process (rank) runs the same script; gradients are averaged between them
by a ring allreduce over MPI while backpropagation goes on.

Example:

```python
import keras
import tfring

tfring.init()
x, y = x[tfring.rank()::tfring.size()], y[tfring.rank()::tfring.size()]
model.compile(
    tfring.DistributedOptimizer(keras.optimizers.Adam(1e-3 * tfring.size())),
    "sparse_categorical_crossentropy",
)
model.fit(x, y, callbacks=[
    tfring.callbacks.BroadcastGlobalVariablesCallback(0),
    tfring.callbacks.MetricAverageCallback(),
])
```
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfring import _abi

__version__ = "0.1.0"

_abi.check_at_import()

if TYPE_CHECKING:
    from tfring import callbacks as callbacks
    from tfring import compression as compression
    from tfring import data as data
    from tfring import elastic as elastic
    from tfring._runtime import cross_rank as cross_rank
    from tfring._runtime import cross_size as cross_size
    from tfring._runtime import init as init
    from tfring._runtime import is_initialized as is_initialized
    from tfring._runtime import local_rank as local_rank
    from tfring._runtime import local_size as local_size
    from tfring._runtime import rank as rank
    from tfring._runtime import shutdown as shutdown
    from tfring._runtime import size as size
    from tfring.collectives import Adasum as Adasum
    from tfring.collectives import Average as Average
    from tfring.collectives import Max as Max
    from tfring.collectives import Min as Min
    from tfring.collectives import Product as Product
    from tfring.collectives import ReduceOp as ReduceOp
    from tfring.collectives import Sum as Sum
    from tfring.collectives import allreduce as allreduce
    from tfring.collectives import grouped_allreduce as grouped_allreduce
    from tfring.compression import Compression as Compression
    from tfring.errors import NotInitializedError as NotInitializedError
    from tfring.exchanges import alltoall as alltoall
    from tfring.exchanges import barrier as barrier
    from tfring.exchanges import grouped_reducescatter as grouped_reducescatter
    from tfring.exchanges import reducescatter as reducescatter
    from tfring.gathers import allgather as allgather
    from tfring.gathers import broadcast as broadcast
    from tfring.gathers import grouped_allgather as grouped_allgather
    from tfring.joining import join as join
    from tfring.loading import load_model as load_model
    from tfring.objects import allgather_object as allgather_object
    from tfring.objects import broadcast_object as broadcast_object
    from tfring.objects import broadcast_object_fn as broadcast_object_fn
    from tfring.optimizer import DistributedOptimizer as DistributedOptimizer
    from tfring.optimizer import (
        PartialDistributedOptimizer as PartialDistributedOptimizer,
    )
    from tfring.probes import ccl_built as ccl_built
    from tfring.probes import cuda_built as cuda_built
    from tfring.probes import ddl_built as ddl_built
    from tfring.probes import gloo_built as gloo_built
    from tfring.probes import gloo_enabled as gloo_enabled
    from tfring.probes import gpu_available as gpu_available
    from tfring.probes import is_homogeneous as is_homogeneous
    from tfring.probes import mpi_built as mpi_built
    from tfring.probes import mpi_enabled as mpi_enabled
    from tfring.probes import mpi_threads_supported as mpi_threads_supported
    from tfring.probes import nccl_built as nccl_built
    from tfring.probes import rocm_built as rocm_built
    from tfring.process_set_registry import add_process_set as add_process_set
    from tfring.process_set_registry import (
        remove_process_set as remove_process_set,
    )
    from tfring.process_sets import ProcessSet as ProcessSet
    from tfring.process_sets import global_process_set as global_process_set
    from tfring.sessions import (
        BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook,
    )
    from tfring.sessions import (
        broadcast_global_variables as broadcast_global_variables,
    )
    from tfring.state import broadcast_ as broadcast_
    from tfring.state import broadcast_variables as broadcast_variables
    from tfring.sync_batch_norm import (
        SyncBatchNormalization as SyncBatchNormalization,
    )
    from tfring.tape import DistributedGradientTape as DistributedGradientTape
    from tfring.tape import (
        PartialDistributedGradientTape as PartialDistributedGradientTape,
    )
    from tfring.timeline import start_timeline as start_timeline
    from tfring.timeline import stop_timeline as stop_timeline
    from tfring.topology import local_rank_op as local_rank_op
    from tfring.topology import local_size_op as local_size_op
    from tfring.topology import (
        process_set_included_op as process_set_included_op,
    )
    from tfring.topology import rank_op as rank_op
    from tfring.topology import size_op as size_op

# Loaded when first used, so that `import tfring` alone costs no TensorFlow and
# starts no MPI: the launcher, which is in this package, needs neither.
_MODULE_OF = {
    "init": "_runtime",
    "shutdown": "_runtime",
    "is_initialized": "_runtime",
    "rank": "_runtime",
    "size": "_runtime",
    "local_rank": "_runtime",
    "local_size": "_runtime",
    "cross_rank": "_runtime",
    "cross_size": "_runtime",
    "ProcessSet": "process_sets",
    "global_process_set": "process_sets",
    "add_process_set": "process_set_registry",
    "remove_process_set": "process_set_registry",
    "NotInitializedError": "errors",
    "ReduceOp": "collectives",
    "Average": "collectives",
    "Sum": "collectives",
    "Min": "collectives",
    "Max": "collectives",
    "Product": "collectives",
    "Adasum": "collectives",
    "allreduce": "collectives",
    "grouped_allreduce": "collectives",
    "allgather": "gathers",
    "grouped_allgather": "gathers",
    "broadcast": "gathers",
    "reducescatter": "exchanges",
    "grouped_reducescatter": "exchanges",
    "alltoall": "exchanges",
    "barrier": "exchanges",
    "join": "joining",
    "Compression": "compression",
    "DistributedOptimizer": "optimizer",
    "DistributedGradientTape": "tape",
    "PartialDistributedOptimizer": "optimizer",
    "load_model": "loading",
    "PartialDistributedGradientTape": "tape",
    "size_op": "topology",
    "local_size_op": "topology",
    "rank_op": "topology",
    "local_rank_op": "topology",
    "process_set_included_op": "topology",
    "broadcast_variables": "state",
    "broadcast_": "state",
    "broadcast_global_variables": "sessions",
    "BroadcastGlobalVariablesHook": "sessions",
    "broadcast_object": "objects",
    "broadcast_object_fn": "objects",
    "allgather_object": "objects",
    "start_timeline": "timeline",
    "stop_timeline": "timeline",
    "mpi_built": "probes",
    "mpi_enabled": "probes",
    "mpi_threads_supported": "probes",
    "gloo_built": "probes",
    "gloo_enabled": "probes",
    "nccl_built": "probes",
    "ddl_built": "probes",
    "ccl_built": "probes",
    "cuda_built": "probes",
    "rocm_built": "probes",
    "gpu_available": "probes",
    "is_homogeneous": "probes",
    "SyncBatchNormalization": "sync_batch_norm",
}

# Modules that are part of the public interface.
_MODULES = ("callbacks", "compression", "data", "elastic")

__all__ = ["__version__", *_MODULES, *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tfring.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tfring' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tfring.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
