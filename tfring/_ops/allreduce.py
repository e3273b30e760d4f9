"""allreduce and grouped_allreduce.

They work eagerly, in a `tf.function` and under `jit_compile=True`, and have
gradients. Ranks may reach collectives of different names in different orders.

When ranks disagree on a collective, in dtype, shape or anything else, every one
of them gets the same `tf.errors.FailedPreconditionError`, which says which rank
sent which value. The job may continue afterwards.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops import gradients as gradients  # registers them
from tfring._ops.arguments import (
    check_process_set,
    check_reduction,
    checked_compression,
    checked_factor,
    checked_name,
    checked_op,
    checked_tensor,
    checked_tensors,
)
from tfring._ops.autograph import not_converted
from tfring._ops.chains import (
    allreduce_now,
    allreduce_request,
    start_allreduce,
)
from tfring._ops.compression import (
    AnyCompressor,
    Compression,
    compress,
    decompress,
    split_engine_cast,
)
from tfring._ops.devices import checked_device, on_device
from tfring._ops.integer_averages import Reduction
from tfring._ops.ordering import Started, is_eager_tensor, traced_for_xla
from tfring._ops.reductions import SUPPORTED_DTYPES, ReduceOp
from tfring._ops.slices import checked_slices, finish_slices, start_slices


@not_converted
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks; every rank gets the same bits.

    Collective: every rank must call it, with the same dtype, shape, `op`,
    factors, `compression` and `name`.

    `tf.IndexedSlices` are gathered, and rows of one index are added up: the
    result has each index of any rank once. Under `jit_compile=True` they are
    made dense.

    Args:
        tensor: A tensor of any shape, or a value that `tf.convert_to_tensor`
            accepts. The dtype is floating-point, integer or, except for
            `Average`, bool. `Average` and `Sum` also take `tf.IndexedSlices`.
        average: Deprecated: True for `op=tfring.Average`, False for
            `op=tfring.Sum`.
        device_dense: The device for the reduction, such as "/cpu:0": an
            existing TensorFlow device for which tfring has kernels. By default
            TensorFlow chooses it. XLA chooses the device of compiled operations
            itself.
        device_sparse: The device that reduces `tf.IndexedSlices`.
        compression: `tfring.Compression.none`, `fp16` or `bf16`: the dtype in
            which larger floats are sent and reduced. A
            `tfring.compression.Compressor` of your own is also accepted.
        op: A `tfring.ReduceOp`; `tfring.Average` is the default, and
            `tfring.Adasum` takes only floating-point numbers. The average of
            integers is exact for all values and rounded towards zero; they are
            sent as int64. For an average of float16 the values are divided
            before they are added, because the sum could overflow although the
            average does not: values smaller than 6e-5 times the number of ranks
            lose precision. Sums of integers wrap round.
        prescale_factor: Multiplies the tensor before the reduction. The product
            is computed in float64 and rounded to the dtype: integers towards
            zero, and limited to their range.
        postscale_factor: Multiplies the result in the same way. It is one
            multiplication with the division of an average.
        name: Identifies the call, and names the tensor in errors; within
            `tf.name_scope` the scope comes before it. By default the name
            depends on the order of calls, which must then be the same on all
            ranks. In graphs of TensorFlow 1 it is made unique, as operations'
            names are.
        process_set: The ranks that take part. Only they may call it, and
            `size()` and averages refer to the set. By default all ranks.
        ignore_name_scope: If True, the name is used without the name scope, for
            scopes that differ between ranks.

    Returns:
        A tensor like `tensor`, or `tf.IndexedSlices`.

    Raises:
        NotImplementedError: `tf.IndexedSlices` have no such reduction, or the
            device no kernels.
        TypeError: The dtype is not supported, or an argument is of a wrong
            type.
        ValueError: There is no such reduction of this tensor, or no such
            device, both `average` and `op` are given, or `init` has not been
            called.
        tf.errors.FailedPreconditionError: The ranks did not agree.
        tf.errors.InvalidArgumentError: A collective of that name is under way
            on this rank already.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    total = tfring.allreduce(tf.ones([3]), op=tfring.Sum)
    assert total.numpy().tolist() == [tfring.size()] * 3
    ```
    """
    if (
        average is None
        and device_dense == device_sparse == ""
        and is_eager_tensor(tensor)
    ):
        request = _eager_request(
            tensor.dtype,
            process_set,
            compression,
            op,
            prescale_factor,
            postscale_factor,
        )
        if request is not None:
            if name is not None:
                request += checked_name("allreduce", name, ignore_name_scope)
            return allreduce_now(tensor, request)
    arguments = _Arguments(
        "allreduce",
        checked_op("allreduce", op, average),
        prescale_factor,
        postscale_factor,
        compression,
        process_set,
        device_dense,
        device_sparse,
    )
    tensor = arguments.checked_tensor(tensor)
    name = checked_name("allreduce", name, ignore_name_scope, process_set)
    [result] = arguments.reduce([tensor], name, [name])
    return result


# Note [Eager allreduce of one tensor]
#
# Each operation, with the Python code around it, takes longer than a small
# collective. So if only the tensor and its name are new, the checks are not
# repeated. If only the reduction has to be done, it is one operation.


# The cache is typed, because Decimal(2) equals 2.0 and is no valid factor.
@functools.lru_cache(maxsize=1000, typed=True)
def _nameless_request(
    process_set_id: int | None,
    job: int,
    dtype: tf.DType,
    process_set: ProcessSet,
    compression: AnyCompressor,
    op: ReduceOp | None,
    prescale_factor: float,
    postscale_factor: float,
) -> str | None:
    """Returns the request, without a name, of an allreduce of one operation.

    Returns:
        None if the allreduce takes more operations, or an argument is invalid.
    """
    del job, process_set_id  # repeat the checks if one of these changes
    try:
        check_process_set("allreduce", process_set)
        compression = checked_compression("allreduce", compression, process_set)
        op = checked_op("allreduce", op, None)
        check_reduction("allreduce", op, dtype)
        left, wire_dtype = split_engine_cast(compression, op)
        prescale_factor = checked_factor("allreduce", prescale_factor)
        postscale_factor = checked_factor("allreduce", postscale_factor)
    except (TypeError, ValueError, NotImplementedError):
        return None
    if left is not Compression.none or dtype not in SUPPORTED_DTYPES:
        return None
    if op is ReduceOp.Average and dtype.is_integer:
        return None
    return allreduce_request(
        op, prescale_factor, postscale_factor, wire_dtype(dtype), process_set
    )


def _eager_request(
    dtype: tf.DType, process_set: ProcessSet, *others: Any
) -> str | None:
    """Returns `_nameless_request` for the process set and job as they are."""
    try:
        return _nameless_request(
            process_set.process_set_id,
            runtime.job_number(),
            dtype,
            process_set,
            *others,
        )
    except (AttributeError, TypeError):
        # A compressor may be unhashable, and an argument may be invalid.
        return None


@not_converted
def grouped_allreduce(
    tensors: Iterable[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces several tensors over all ranks, grouped by dtype.

    It is faster than as many calls of `allreduce`, and equivalent to them.
    `tensors` is a list of tensors and `tf.IndexedSlices`, also of different
    dtypes. All other arguments, and the errors, are those of `allreduce`.

    Collective: every rank must call it, with the same number of tensors and
    the same dtypes, shapes, `op`, factors, `compression` and `name`.

    Returns:
        The results, in the order of `tensors`; an empty list for no tensors.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    loss, count = tfring.grouped_allreduce(
        [tf.constant(0.5), tf.constant(32)], op=tfring.Sum
    )
    assert count == 32 * tfring.size()
    ```
    """
    arguments = _Arguments(
        "grouped_allreduce",
        checked_op("grouped_allreduce", op, average),
        prescale_factor,
        postscale_factor,
        compression,
        process_set,
        device_dense,
        device_sparse,
    )
    tensors = [
        arguments.checked_tensor(tensor)
        for tensor in checked_tensors("grouped_allreduce", tensors)
    ]
    if not tensors:
        return []
    name = checked_name("allreduce", name, ignore_name_scope, process_set)
    sparse = [
        i for i, t in enumerate(tensors) if isinstance(t, tf.IndexedSlices)
    ]
    dense = [i for i in range(len(tensors)) if i not in sparse]
    results: dict[int, Any] = {}
    for indices, request_name in (
        (dense, name),
        (sparse, f"{name}/slices" if name else ""),
    ):
        if indices:
            reduced = arguments.reduce(
                [tensors[i] for i in indices],
                request_name,
                [f"tensor {i}" for i in indices],
            )
            results |= zip(indices, reduced, strict=True)
    return [results[i] for i in range(len(tensors))]


@dataclasses.dataclass
class _Arguments:
    """Checks and holds all arguments of an allreduce but tensors and names."""

    function: str
    op: ReduceOp
    prescale_factor: float
    postscale_factor: float
    compression: AnyCompressor
    process_set: ProcessSet
    device_dense: str
    device_sparse: str

    def __post_init__(self) -> None:
        check_process_set(self.function, self.process_set)
        for argument in "device_dense", "device_sparse":
            checked_device(self.function, argument, getattr(self, argument))
        self.prescale_factor = checked_factor(
            self.function, self.prescale_factor
        )
        self.postscale_factor = checked_factor(
            self.function, self.postscale_factor
        )
        self.compression = checked_compression(
            self.function, self.compression, self.process_set
        )

    def checked_tensor(self, value: Any) -> Any:
        """Returns a tensor or, outside of XLA, `tf.IndexedSlices`."""
        if isinstance(value, tf.IndexedSlices) and not traced_for_xla():
            return checked_slices(self.function, value, self.op)
        with on_device(self.device_dense):
            tensor = checked_tensor(self.function, value)
        check_reduction(self.function, self.op, tensor.dtype)
        return tensor

    def reduce(
        self, tensors: Sequence[Any], name: str, tensor_names: Sequence[str]
    ) -> list[Any]:
        """Reduces either tensors or `tf.IndexedSlices`."""
        if not isinstance(tensors[0], tf.IndexedSlices):
            with on_device(self.device_dense):
                return self._reduce_tensors(tensors, name, tensor_names)
        with on_device(self.device_sparse):
            return finish_slices(
                start_slices(
                    self.function,
                    tensors,
                    op=self.op,
                    factor=self.prescale_factor * self.postscale_factor,
                    compression=self.compression,
                    process_set=self.process_set,
                    name=name,
                    tensor_names=tensor_names,
                )
            )

    def _reduce_tensors(
        self,
        tensors: Sequence[tf.Tensor],
        name: str,
        tensor_names: Sequence[str],
    ) -> list[tf.Tensor]:
        compression, wire_dtype = split_engine_cast(self.compression, self.op)
        compressed = [compress(self.function, compression, t) for t in tensors]
        for travels, _ in compressed:
            check_reduction(self.function, self.op, travels.dtype)
        reduction = Reduction(
            self.op,
            self.prescale_factor,
            self.postscale_factor,
            [travels for travels, _ in compressed],
            tensor_names,
        )

        def start(tensors: Sequence[tf.Tensor], **others: Any) -> Started:
            dtype = wire_dtype(tensors[0].dtype)
            return start_allreduce(tensors, wire_dtype=dtype, **others)

        results = reduction.run(start, name, self.process_set)
        return [
            decompress(
                self.function, compression, result, context, tensor.dtype
            )
            for tensor, result, (_, context) in zip(
                tensors, results, compressed, strict=True
            )
        ]
