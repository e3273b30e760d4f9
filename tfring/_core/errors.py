"""tfring's own exceptions and warnings.

A failure inside a collective is raised as one of TensorFlow's errors, for
example `tf.errors.FailedPreconditionError` when the ranks did not agree.
"""

import warnings


class NotInitializedError(ValueError):
    """A function of tfring was called before `tfring.init()`."""


class NotDistributedWarning(UserWarning):
    """A Keras model is trained on several ranks, and nothing is reduced.

    Its optimizer is not distributed, as after `keras.models.load_model`, and
    its `train_step` has used neither a `DistributedGradientTape` nor another
    collective. Each rank then trains a model of its own.

    It is given once in a process, on rank 0: by `fit` and `train_on_batch`,
    for the first such model. If warnings are errors, every rank raises it.

    Example:

    ```python
    import warnings

    import tfring

    warnings.simplefilter("error", tfring.NotDistributedWarning)
    ```
    """


class NotBroadcastWarning(UserWarning):
    """Ranks are about to update variables that differ between them.

    Averages of gradients leave variables as far apart as they were, so that
    each rank trains a model of its own from there. Call
    `tfring.broadcast_variables` before the first step. `fit` on a distributed
    optimizer raises an error instead.

    Rank 0 gives it when an optimizer or a tape reduces the gradients of
    variables for the first time. If warnings are errors, every rank raises it.
    """


class SameDrawsWarning(UserWarning):
    """The datasets of several ranks draw the same random numbers.

    All ranks have the same seed, and a dataset draws from it in `map`. The
    ranks then apply the same random augmentations to different samples. `fit`
    gives it on one rank. If warnings are errors, every rank raises it.
    """


class LossReductionWarning(UserWarning):
    """A compiled loss trains otherwise on several ranks than in one process.

    Its `reduction` is a sum over a batch, or a mean that divides by weights. An
    average of these over the ranks is not the loss of all ranks' batches.

    Rank 0 gives it where a model with a distributed optimizer begins to train.
    If warnings are errors, every rank raises it.
    """


class DifferentOrdersWarning(UserWarning):
    """Ranks may take elements of different orders of a dataset.

    The ranks would then share some elements, and leave others out.
    `tfring.data.shard` gives it where that is possible: an operation of tf.data
    is not deterministic, or arrays begin with other elements. Where it is
    certain, `shard` raises an error. `fit` gives it for a dataset that is
    shuffled by other seeds on each rank, or by none, before `Dataset.shard`.

    One rank gives it. If warnings are errors, every rank raises it.
    """


class HorovodInternalError(RuntimeError):
    """A collective has failed; `tfring.elastic.run` starts the function again.

    It has Horovod's name, for functions that raise it themselves. The
    collectives raise `tf.errors.UnavailableError`.
    """


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818
    """`State.commit` has found that hosts come or go: start again from it.

    Args:
        skip_sync: True if the ranks need not be given rank 0's state.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


def warn_all_ranks(
    kind: type[Warning],
    text: str,
    exception: str = "that is meant",
    *,
    is_shown: bool,
) -> None:
    """Gives a warning on all ranks, which only one of them prints.

    Args:
        kind: A public class of tfring. If its warnings are errors, every rank
            raises the warning.
        text: What is wrong, and the remedy.
        exception: The condition under which the user may ignore the warning.
        is_shown: True on one rank.
    """
    warning = kind(
        f"tfring: {text} If {exception}, ignore this by "
        f"warnings.simplefilter('ignore', tfring.{kind.__name__})."
    )
    if is_shown:
        warnings.warn(warning, stacklevel=3)
        return
    with warnings.catch_warnings(record=True):
        warnings.warn(warning, stacklevel=3)
