"""PowerSGD: a large gradient is reduced as two thin factors.

Vogels, Karimireddy, Jaggi, https://arxiv.org/abs/1905.13727. A rank's gradient
and its error, the part that earlier steps have left out, are a matrix M. With
the right factor Q of the step before:

    P = mean of M Q^T over the ranks, columns made orthonormal   (left factor)
    Q = mean of P^T M over the ranks                             (right factor)
    result = P Q
    error = M - P P^T M

Q is the paper's Q transposed, which makes the products faster.

Note [Two rounds]: the second reduction needs the results of the first one. So a
step has two chains of starts and dones. The first has left factors, and with
them the gradients that are reduced whole; it overlaps with backpropagation. The
second has right factors, and starts when the first has ended. It does not start
bucket by bucket: under XLA a failed done frees the memory of everything in
flight, and waits only for its own chain. All left factors are usually one
bucket anyway, because they are small.

Note [The first steps]: they also reduce whole gradients, in a conditional after
the second round. If the conditional contained both ways to reduce, nothing
could overlap with backpropagation, because a conditional waits for all its
inputs. So only the first steps pay for it, with the bytes of the factors and no
overlap.

Note [Agreement]: the ranks must take one branch of that conditional, and a new
rank of an elastic job has counted no steps. So the first round has a number of
each rank: 1 if it is past the first steps. If any is, all are from then on. The
right factors need not be equal: any left factor that is equal on all ranks
gives a correct result, and the mean makes it equal. So nothing is broadcast.

Note [Each rank's own error]: the error leaves out the rank's own projection,
P P^T M, and not the mean over all ranks. The mean of the errors is the same
either way. But the difference between a rank's gradients and the mean would add
up in its error, from step to step, and cancel only in the sum over all ranks.
In the end no precision would be left, and the loss of a rank would break the
sum.

Note [Rows of zeros]: a row of zeros in Q would stay a row of zeros, because Q
is only multiplied. After a gradient of zeros, or of a lower rank than Q's, the
row of the previous step is kept. Each row of Q, and each column of P before it
is made orthonormal, is divided by its largest element: that changes the result
by rounding only, and squares neither overflow nor vanish.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfring._gradients.local_variables import inner_variable, variable_key
from tfring._gradients.ready import Kind, Ready
from tfring._ops.compression import PowerSGD
from tfring._ops.ordering import (
    Started,
    handle_before,
    keep_done,
    traced_for_xla,
)

_Gradient = Any  # tf.Tensor | tf.IndexedSlices

# A matrix is compressed if it has at least this many elements for each element
# of its factors. Otherwise the second round and the arithmetic cost more than
# they save.
_LEAST_SAVING = 2
# Names of `LowRank.variables`: what a rank's gradients have left out, and the
# right factor.
ERROR = "error"
RIGHT = "right"
# An index that no gradient has.
_FLAG_INDEX = -1


class _Reduce(Protocol):
    """Reduces in one chain: `_reduce` of tfring/_gradients/reducer.py."""

    def __call__(
        self,
        ready: Sequence[Ready],
        *,
        wait_for: Callable[[Sequence[Started]], None] = ...,
        name: str = ...,
    ) -> list[_Gradient]: ...


@dataclasses.dataclass
class _State:
    """The variables that belong to one matrix. Keras does not track them."""

    variable: Any  # held, so that no other variable gets its key
    error: ResourceVariable
    right: ResourceVariable


@dataclasses.dataclass
class _Matrix:
    """A gradient of this step, as a matrix, with the error added to it."""

    ready: Ready
    state: _State
    value: tf.Tensor

    def as_left(self) -> Ready:
        left = tf.matmul(self.value, self.state.right, transpose_b=True)
        return self._factor("left", left)

    def as_right(self, left: tf.Tensor) -> Ready:
        right = tf.matmul(left, self.value, transpose_a=True)
        return self._factor("right", right)

    def as_gradient(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        gradient = self.ready.value
        product = tf.cast(tf.matmul(left, right), gradient.dtype)
        return tf.reshape(product, gradient.shape)

    def _factor(self, which: str, value: tf.Tensor) -> Ready:
        name = f"{self.ready.name}/{which} factor"
        return Ready(
            self.ready.index, self.ready.variable, name, Kind.DENSE, value
        )


class LowRank:
    """PowerSGD with the state of one optimizer, or of a user's tapes.

    A copy begins without state.

    Attributes:
        loss_scale: Multiplies the loss, and so the gradients of this step; None
            is 1. Errors are kept without it, since it changes.
    """

    def __init__(self, compression: PowerSGD) -> None:
        # `compression` is not kept: `powersgd_of_tapes` has it as a weak key,
        # with this object as the value.
        self._rank, self._start = compression.rank, compression.start
        self._states: dict[Any, _State] = {}
        self._steps: Any = None  # A variable counts the steps up to `start`.
        self.loss_scale: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LowRank, (PowerSGD(self._rank, self._start),)

    def belong_to(self, compression: PowerSGD) -> None:
        """Applies the options of `compression`.

        Raises:
            ValueError: The state is one of another rank.
        """
        if compression.rank != self._rank:
            raise ValueError(
                "tfring.PowerSGD: the tape has the rank "
                f"{compression.rank}, and the checkpoint is of a tape with the "
                f"rank {self._rank}. Pass that one, or name another folder."
            )
        self._start = compression.start

    def has_state(self) -> bool:
        """Tells whether it has reduced gradients as factors."""
        return bool(self._states)

    def begin_at(self, steps: Callable[[], Any]) -> None:
        """Sets the number of earlier steps; later calls are ignored."""
        if self._start == 0 or self._steps is not None:
            return
        _check_mode()
        with tf.init_scope():
            count = tf.minimum(tf.cast(steps(), tf.int64), self._start)
            self._steps = ResourceVariable(count, trainable=False)

    def variables(self, trained: Sequence[Any]) -> dict[str, Any]:
        """Returns the variables made so far, by name.

        Args:
            trained: The trained variables, by whose order the names are.
        """
        named: dict[str, Any] = {}
        known = {variable_key(variable) for variable in trained}
        for key, own in self._states.items():
            if key not in known:
                raise NotImplementedError(
                    "Checkpoint: a DistributedGradientTape with compression="
                    "tfring.PowerSGD has reduced the gradient of "
                    f"'{own.variable.name}', which the model that is saved "
                    "does not train. Pass the tape of each model a PowerSGD of "
                    "its own, and a model that has all that it trains."
                )
        for number, variable in enumerate(trained):
            state = self._states.get(variable_key(variable))
            if state is not None:
                named[f"{number}/{ERROR}"] = state.error
                named[f"{number}/{RIGHT}"] = state.right
        if self._steps is not None:
            named["steps"] = self._steps
        return named

    def make(self, trained: Sequence[Any], names: Iterable[str]) -> None:
        """Makes variables of a checkpoint, which the first step would make.

        Args:
            trained: The trained variables.
            names: The names that `variables` has returned.
        """
        numbers = {name.partition("/")[0] for name in names}
        if "steps" in numbers:
            self.begin_at(lambda: 0)
        for number in numbers - {"steps"}:
            if int(number) >= len(trained):
                continue
            variable = trained[int(number)]
            value = tf.convert_to_tensor(inner_variable(variable))
            ready = Ready(int(number), variable, "", Kind.DENSE, value)
            key = variable_key(variable)
            if key not in self._states and self._is_worth_it(ready):
                self._states[key] = self._new_state(ready)

    def reduce(
        self,
        ready: Sequence[Ready],
        reduce: _Reduce,
        wait_for: Callable[[Sequence[Started]], None],
    ) -> list[_Gradient]:
        """Reduces gradients, the large ones as factors. Collective.

        `ready` is in the order the gradients become ready. `reduce` reduces
        such a list in one chain; `wait_for` is called with the starts of the
        first chain.

        Returns:
            The reduced gradients, in the same order.
        """
        matrices = self._matrices(ready)
        if not matrices:
            return reduce(ready, wait_for=wait_for)
        first = [
            matrices[each.index].as_left() if each.index in matrices else each
            for each in ready
        ]
        if self._start > 0:
            self.begin_at(lambda: 0)
            first.insert(0, self._flag())
        result = _by_index(first, reduce(first, wait_for=wait_for))
        has_begun = result.pop(_FLAG_INDEX, 1.0) > 0
        lefts = _orthonormal({i: result[i] for i in matrices})
        second = [each.as_right(lefts[i]) for i, each in matrices.items()]
        rights = _by_index(second, reduce(second, name="gradients/right"))
        products = [
            each.as_gradient(lefts[i], rights[i])
            for i, each in matrices.items()
        ]
        if self._start > 0:
            products = _unless_first(has_begun, products, matrices, reduce)
            start = tf.constant(self._start, tf.int64)
            steps = tf.where(has_begun, start, self._steps + 1)
            self._steps.assign(steps, read_value=False)
        result.update(zip(matrices, products, strict=True))
        is_finite = _is_finite(result.values())
        for own in second:
            matrix, left = matrices[own.index], lefts[own.index]
            self._keep_error(
                matrix, tf.matmul(left, own.value), is_finite & has_begun
            )
            _keep_right(matrix.state, rights[own.index], is_finite)
        return [result[each.index] for each in ready]

    def _matrices(self, ready: Sequence[Ready]) -> dict[int, _Matrix]:
        """Returns the gradients to reduce as factors, by index."""
        found: dict[int, _Matrix] = {}
        keys = set()
        for each in ready:
            key = variable_key(each.variable)
            # A tape may have been given a source twice; the error is added
            # once.
            if key not in keys and self._is_worth_it(each):
                keys.add(key)
                state = self._states.get(key) or self._new_state(each)
                self._states[key] = state
                value = tf.reshape(each.value, state.error.shape)
                value = tf.cast(value, state.error.dtype)
                error = self._scaled_by_loss(state.error)
                found[each.index] = _Matrix(each, state, value + error)
        return found

    def _is_worth_it(self, ready: Ready) -> bool:
        """Tells whether a gradient is a matrix; it is on all ranks or none."""
        if (
            ready.kind is not Kind.DENSE
            or not isinstance(ready.variable, tf.Variable | keras.Variable)
            or not ready.value.dtype.is_floating
            or not ready.value.shape.is_fully_defined()
            or ready.value.shape.rank < 2
        ):
            return False
        rows, columns = _size_of(ready.value)
        count = self._rank * (rows + columns)
        return count * _LEAST_SAVING <= rows * columns

    def _new_state(self, ready: Ready) -> _State:
        _check_mode()
        rows, columns = _size_of(ready.value)
        dtype = tf.float64 if ready.value.dtype == tf.float64 else tf.float32
        device = inner_variable(ready.variable).device
        with tf.init_scope(), tf.device(device):
            error = tf.zeros([rows, columns], dtype)
            # All ranks draw the same matrix, and the same in each run.
            right = tf.random.stateless_normal(
                [self._rank, columns], [ready.index, columns], dtype=dtype
            )
            return _State(
                ready.variable,
                # A tf.function lets only its first trace make a tf.Variable,
                # and a later trace may have other variables to train.
                ResourceVariable(error, trainable=False),
                ResourceVariable(right, trainable=False),
            )

    def _flag(self) -> Ready:
        """Returns the flag of a rank that is past the first steps."""
        is_past = tf.cast(self._steps >= self._start, tf.float32)
        return Ready(_FLAG_INDEX, None, "first steps", Kind.DENSE, is_past)

    def _keep_error(
        self, matrix: _Matrix, projection: tf.Tensor, is_new: tf.Tensor
    ) -> None:
        error = matrix.value - projection
        if self.loss_scale is not None:
            error /= tf.cast(self.loss_scale, error.dtype)
        kept = matrix.state.error
        kept.assign(tf.where(is_new, error, kept), read_value=False)

    def _scaled_by_loss(self, error: Any) -> Any:
        if self.loss_scale is None:
            return error
        return error * tf.cast(self.loss_scale, error.dtype)


def _unless_first(
    has_begun: tf.Tensor,
    products: Sequence[tf.Tensor],
    matrices: Mapping[int, _Matrix],
    reduce: _Reduce,
) -> list[tf.Tensor]:
    """Returns products, or whole gradients; see Note [The first steps]."""

    def whole() -> list[tf.Tensor]:
        gradients = [each.ready for each in matrices.values()]
        results = reduce(gradients, name="gradients/whole")
        # The chains inside of a conditional are ordered only among themselves.
        return [*results, handle_before(None)]

    results: list[tf.Tensor]
    *results, ended = tf.cond(
        has_begun, lambda: [*products, tf.zeros([], tf.int64)], whole
    )
    if traced_for_xla():
        keep_done(ended)
    return results


def _keep_right(state: _State, right: tf.Tensor, is_finite: tf.Tensor) -> None:
    """Keeps the right factor for the next step; see Note [Rows of zeros]."""
    is_new = is_finite & (_largest(right, axis=1) > 0)
    right = tf.where(is_new, _scaled(right, axis=1), state.right)
    state.right.assign(right, read_value=False)


def _orthonormal(lefts: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
    """Returns orthonormal columns that span at least those of each factor."""
    # Matrices of one shape share an operation: XLA takes a third of a second to
    # compile each.
    alike = collections.defaultdict(list)
    for i, left in lefts.items():
        alike[left.dtype, tuple(left.shape)].append(i)
    result: dict[int, tf.Tensor] = {}
    for indices in alike.values():
        stacked = _scaled(tf.stack([lefts[i] for i in indices]), axis=1)
        # The columns are made orthogonal by Householder's reflections. Columns
        # may depend on each other, and Gram-Schmidt would then give columns
        # that are not orthogonal.
        orthonormal = tf.unstack(tf.linalg.qr(stacked).q, len(indices))
        result.update(zip(indices, orthonormal, strict=True))
    return result


def _scaled(factor: tf.Tensor, axis: int) -> tf.Tensor:
    # NaN and infinity give NaN.
    return tf.math.divide_no_nan(factor, _largest(factor, axis))


def _largest(factor: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.reduce_max(tf.abs(factor), axis, keepdims=True)


def _is_finite(gradients: Iterable[_Gradient]) -> tf.Tensor:
    values = [
        each.values if isinstance(each, tf.IndexedSlices) else each
        for each in gradients
    ]
    return tf.reduce_all(
        [
            tf.reduce_all(tf.math.is_finite(each))
            for each in values
            if each.dtype.is_floating
        ]
    )


def _by_index(
    ready: Sequence[Ready], gradients: Sequence[_Gradient]
) -> dict[int, _Gradient]:
    return {
        each.index: gradient
        for each, gradient in zip(ready, gradients, strict=True)
    }


def _size_of(gradient: tf.Tensor) -> tuple[int, int]:
    *rows, columns = gradient.shape.as_list()
    return math.prod(rows), columns


def _check_mode() -> None:
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise NotImplementedError(
            "PowerSGD keeps variables, which nothing in a graph of TensorFlow "
            "1 initializes. Use a tf.function, or tfring.Compression.bf16."
        )
