"""Data for ranks: a dataset's shares, and tf.data's service.

`shard` gives each rank its part of a dataset, and `parquet` its rows of Parquet
files. `compute_service` and `compute_worker` let other processes prepare a
dataset, like Horovod's modules of these names.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfring.data.parquet_rows import parquet as parquet
from tfring.data.sharding import shard as shard

if TYPE_CHECKING:
    from tfring.data import (
        compute_service as compute_service,
        compute_worker as compute_worker,
    )


def __getattr__(name: str) -> Any:
    if name in ("compute_service", "compute_worker"):
        return importlib.import_module(f"tfring.data.{name}")
    raise AttributeError(f"module 'tfring.data' has no attribute {name!r}")
