"""shard_parameters: a scope in which a model's variables are sharded.

A variable that Keras makes in the scope gets another class, `ShardedVariable`:
for Keras it has the whole shape, and it keeps this rank's elements. Reading its
`value` gathers the whole; see tfring/_memory/gathers.py. Its `handle` is the
share's, so that `tape.gradient` gives the gradient of the share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common.stateless_scope import (
    get_stateless_scope,
    in_stateless_scope,
)
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import get_autocast_scope
from tensorflow.python.eager import record

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet
from tfring._gradients.cuts import ranges_of
from tfring._keras.memory_errors import with_remedy
from tfring._memory.gathers import assign_share, whole_parameter
from tfring._memory.parameters import (
    ParameterGroup,
    ParameterShare,
    copied_range,
    parameter_share,
)
from tfring._memory.sharding_ranks import ShardingRanks, agreed_ranks
from tfring._ops.gather_json import gather_json
from tfring._state.broadcast_variables import broadcast_variables
from tfring._state.records import record_of
from tfring._state.shards import Shard
from tfring._state.splits import Flat


@contextmanager
def shard_parameters(
    *,
    min_elements: int = 16384,
    group_bytes: int = 32 << 20,
    within: ProcessSet | Literal["host"] | None = None,
) -> Iterator[None]:
    """Shards the parameters of the models that are built inside (ZeRO-3).

    Each rank keeps `1 / size()` of every large trainable variable, so a model
    may be larger than the memory of a rank. Layers read whole parameters:
    tfring gathers a group of them before the layers that need it, frees them
    afterwards, and gathers them again for backpropagation, at most two groups
    at a time. Gradients are reduce-scattered while backpropagation goes on, and
    each rank updates its share. A step sends 1.5 times the bytes of an
    allreduce. `fit`, `evaluate` and `predict` need no change. In one process
    the scope changes nothing.

    Train with `tfring.DistributedOptimizer(..., shard_states=True)`, which
    shards the optimizer's states alike and averages the remaining gradients.
    Load a model by `tfring.load_model` or `keras.models.load_model` inside of
    the scope.

    Collective, also in inference: reading a parameter gathers it, so every rank
    must call the model equally often. Every rank must build the same model.
    Give all ranks the same seed (`keras.utils.set_random_seed`): then the
    parameters are those of one process.

    In an elastic job, `tfring.elastic.fit` and `TensorFlowKerasState` share the
    parameters out again when ranks are lost or join. Each commit keeps a
    rank's own shares, and a copy of another rank's, in the host's memory.

    Files have whole parameters. Callbacks that save in `fit` need nothing else.
    Elsewhere, save and call `get_weights` within `tfring.whole_states(model)`.

    Args:
        min_elements: Trainable floating-point variables with at least this many
            elements are sharded, and all others stay whole on each rank. All
            ranks must pass the same number.
        group_bytes: The size of a group of parameters, in bytes: variables in
            the order in which they are made. A larger variable has a group of
            its own. Smaller groups take less memory, and larger ones fewer
            collectives. All ranks must pass the same number.
        within: The ranks that share parameters out: a process set that this
            rank is in, or "host" for the ranks of each machine ("hybrid
            sharding", HSDP). Parameters are then gathered between these ranks
            alone. Gradients are reduce-scattered between them, and then
            averaged, share by share, with the other sets. All sets must have
            equally many ranks; in an elastic job all ranks share parameters out
            while the machines have different numbers of ranks. The ranks with
            the same share become a process set, which stays until
            `tfring.shutdown`. Default: all ranks of the job.

    Raises:
        NotImplementedError: `within` is a process set, in an elastic job.
        NotInitializedError: `tfring.init()` has not been called.
        TypeError: `within` is of a wrong type.
        ValueError: An argument is not positive, the sets of `within` are no
            division of the job into equal parts, the ranks differ in another
            argument or in what they have sharded, or nothing was sharded.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    with tfring.shard_parameters():
        model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256)])
    model.compile(tfring.DistributedOptimizer("adam", shard_states=True), "mse")
    ```
    """
    for name, value in (
        ("min_elements", min_elements),
        ("group_bytes", group_bytes),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"shard_parameters: {name} must be a positive whole number, "
                f"got {value!r}."
            )
    if runtime.size() == 1 and not runtime.may_grow():
        with _entered(None):
            yield
        return
    ranks = agreed_ranks(within)
    scope = _Scope(min_elements, group_bytes, ranks, within == "host")
    with _entered(scope):
        yield
    # A worker that joins an elastic job is compared with the others when it
    # joins; see tfring/elastic/variables.py.
    if not runtime.may_grow():
        _check_same_groups(scope)
    if not scope.groups:
        raise ValueError(
            "shard_parameters: no parameter was sharded. None of the trainable "
            f"variables made inside has as many as {min_elements} elements. "
            "Build the model inside of the scope, by keras.Input or "
            "model.build(input_shape), or pass a smaller min_elements."
        )
    _copy_to_replicas(scope)


def _copy_to_replicas(scope: _Scope) -> None:
    """Gives all copies of a share the values of the first one. Collective."""
    replicas = scope.ranks.replicas
    if replicas is None:
        return
    stored = [share.stored for group in scope.groups for share in group.shares]
    broadcast_variables(stored, min(replicas.ranks or []), replicas)


def _check_same_groups(scope: _Scope) -> None:
    """Compares what the ranks have sharded. Collective.

    Raises:
        ValueError: The ranks have different arguments or models.
    """
    own = {
        "min_elements": scope.min_elements,
        "group_bytes": scope.group_bytes,
        "shapes of the groups": [
            [list(share.shape) for share in group.shares]
            for group in scope.groups
        ],
    }
    first, *others = gather_json(own, name="shard_parameters")
    for rank, facts in enumerate(others, start=1):
        for name, value in facts.items():
            if value != first[name]:
                raise ValueError(
                    f"shard_parameters: the ranks differ in {name}: rank 0 has "
                    f"{first[name]}, and rank {rank} has {value}. Pass the "
                    "same arguments, and build the same model, on every rank."
                )


@dataclasses.dataclass
class _Scope:
    min_elements: int
    group_bytes: int
    ranks: ShardingRanks
    within_host: bool
    groups: list[ParameterGroup] = dataclasses.field(default_factory=list)

    def takes(self, variable: Any) -> bool:
        return (
            type(variable) is keras.Variable
            and variable.trainable
            and tf.as_dtype(variable._dtype).is_floating
            and math.prod(variable.shape) >= self.min_elements
        )

    def group_for(self, variable: Any) -> ParameterGroup:
        """Returns the last group if the variable fits, or a new one."""
        dtype = tf.as_dtype(variable._dtype)
        size_bytes = math.prod(variable.shape) * dtype.size
        last = self.groups[-1] if self.groups else None
        if (
            last is None
            or last.size_bytes + size_bytes > self.group_bytes
            or last.shares[0].dtype != dtype
            # Parameters of a group are read in the same dtype.
            or last.shares[0].parameter._autocast != variable._autocast
        ):
            self.groups.append(
                ParameterGroup(
                    str(len(self.groups)),
                    self.ranks,
                    within_host=self.within_host,
                )
            )
        return self.groups[-1]


_scopes: list[_Scope | None] = [None]


@contextmanager
def _entered(scope: _Scope | None) -> Iterator[None]:
    _scopes.append(scope)
    try:
        yield
    finally:
        _scopes.pop()


def not_sharded() -> Any:
    """A scope inside of `shard_parameters` in which variables stay whole."""
    return _entered(None)


def is_in_scope() -> bool:
    """Tells whether variables that are made now may be sharded."""
    return _scopes[-1] is not None


def initialize_with_initializer(
    keras_initialize: Any, variable: Any, initializer: Any
) -> None:
    """Makes a variable sharded in the scope; see hooks.py."""
    scope = _scopes[-1]
    if scope is None or not scope.takes(variable):
        with with_remedy():
            keras_initialize(variable, initializer)
        return
    variable.__class__ = ShardedVariable
    variable._keep_share(initializer, scope.group_for(variable))


def var_key(keras_key: Any, optimizer: Any, variable: Any) -> Any:
    """Lets optimizers find a sharded parameter without reading it."""
    is_sharded = isinstance(variable, ShardedVariable)
    return id(variable) if is_sharded else keras_key(optimizer, variable)


def _may_be_differentiated() -> bool:
    return not tf.executing_eagerly() or bool(record.could_possibly_record())


class ShardedVariable(keras.Variable):
    """A Keras variable of which each rank keeps some elements.

    Reading `value` gathers it, which is collective. An eager read within
    `tfring.whole_states` takes the whole value that the ranks have gathered
    already: a rank that saves alone may compute with it. Keras adds the
    adapters of LoRA to a kernel that way.
    """

    def _keep_share(self, initializer: Any, group: ParameterGroup) -> None:
        with tf.init_scope():
            # While a model is built, only this parameter is whole.
            whole = initializer(self.shape, dtype=self._dtype)
            whole = tf.cast(whole, self._dtype)
            self._cut(lambda *part: copied_range(whole, *part), group)

    def _cut(
        self, elements: Callable[[int, int], Any], group: ParameterGroup
    ) -> None:
        """Keeps this rank's share, which `elements(begin, end)` returns."""
        shape, ranks = tuple(self.shape), group.ranks
        ranges = ranges_of(shape, ranks.size)
        begin, end = ranges[ranks.rank]
        self._value = tf.Variable(
            elements(begin, end),
            trainable=self.trainable,
            name=self._path,
        )
        ParameterShare(self, self._value, begin, group)
        record_of(self).shard = Shard(
            self._value,
            Flat(shape, ranges),
            ranks.rank,
            ranks.process_set,
            numbers=ranks.numbers,
        )

    def is_for_these_ranks(self) -> bool:
        """Tells whether the ranks are those that the share was cut for."""
        shard, share = record_of(self).shard, parameter_share(self)
        assert share is not None
        ranks = share.group.ranks
        # A set with the same ranks may be of an earlier job.
        return shard.process_set is ranks.process_set and (
            (shard.rank, shard.size) == (ranks.rank, ranks.size)
        )

    def cut_for_ranks(self, whole: np.ndarray) -> None:
        """Takes this rank's share of a whole value.

        The share changes if the ranks of an elastic job have changed.
        """
        share = parameter_share(self)
        assert share is not None
        if self.is_for_these_ranks():
            record_of(self).shard.take(whole)
            return
        # A function that was traced before reads the variable: an error is
        # better than shares of other ranks.
        tf.raw_ops.AssignVariableOp(
            resource=self._value.handle, value=tf.zeros([0], share.dtype)
        )
        flat = whole.reshape(-1)
        self._cut(lambda begin, end: flat[begin:end], share.group)

    @property
    def handle(self) -> Any:
        return self._value.handle

    @property
    def _shared_name(self) -> Any:
        return self._value._shared_name

    @property
    def value(self) -> Any:
        if in_stateless_scope():
            value = get_stateless_scope().get_current_value(self)
            if value is not None:
                return self._maybe_autocast(value)
        if in_symbolic_scope():  # only shapes are computed
            return self._maybe_autocast(tf.zeros(self.shape, self._dtype))
        shard, share = record_of(self).shard, parameter_share(self)
        assert share is not None
        if not self.is_for_these_ranks():
            raise RuntimeError(
                f"'{self.path}' was sharded on rank {shard.rank} of "
                f"{shard.size}, and this is rank {runtime.rank()} of "
                f"{runtime.size()}. Build the model again, and load it from a "
                "file."
            )
        if shard.is_gathered and not _may_be_differentiated():
            return tf.constant(shard.whole(), self._read_dtype())
        return whole_parameter(share, self._read_dtype())

    def _read_dtype(self) -> tf.DType:
        scope = get_autocast_scope()
        if self._autocast and scope is not None and scope.dtype is not None:
            return tf.as_dtype(scope.dtype)
        return tf.as_dtype(self._dtype)

    def _direct_assign(self, value: Any) -> None:
        if tf.executing_eagerly():
            record_of(self).shard.load(value)
            return
        share = parameter_share(self)
        assert share is not None
        assign_share(share, share.of(tf.cast(value, share.dtype)))

    def numpy(self) -> np.ndarray:
        """Returns the whole value, within `tfring.whole_states`."""
        return np.array(record_of(self).shard.whole())

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        # Keras calls this to write files. The array is read-only, so no copy is
        # needed.
        del copy
        return np.asarray(record_of(self).shard.whole(), dtype)

    def _refuse_tracking(self, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise NotImplementedError(
            f"'{self.path}' is sharded (tfring.shard_parameters). "
            "tf.train.Checkpoint, SavedModel and model.export would keep this "
            "rank's elements alone. Save by model.save or model.save_weights "
            "within tfring.whole_states, and load the file in one process to "
            "export the model."
        )

    _serialize_to_tensors = _refuse_tracking
    _restore_from_tensors = _refuse_tracking
    _copy_trackable_to_cpu = _refuse_tracking
    _export_to_saved_model_graph = _refuse_tracking
    _write_object_proto = _refuse_tracking
