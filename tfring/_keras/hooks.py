"""The functions of Keras that tfring adds to, and relies on, in one table.

Keras calls no callback where ranks have to agree: before the first callback of
`fit`, before a loss scale is checked, before a file is opened. So `tfring.init`
replaces functions of Keras by functions of tfring, which call them. Each
function is replaced once, so no order is needed. In a job of one rank, and for
models that tfring does not train, the replacements do what Keras does.

tfring's optimizers and callbacks also call or override methods of Keras's that
are not public. All are in Keras since 3.12, the oldest that tfring takes. A
Keras that lacks one, or gives it other parameters, is an error that names it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import keras
from keras.src.legacy.saving import legacy_h5_format
from keras.src.saving import saving_lib
from keras.src.trainers import epoch_iterator

from tfring._keras import (
    compiling,
    epochs,
    files,
    fit,
    models,
    sharded_parameters,
    step,
)


class Hook(NamedTuple):
    """A function of Keras that tfring changes or calls.

    Attributes:
        owner: The class or the module of Keras that has it.
        function: The name of the function.
        parameters: The names of its first parameters.
        purpose: The feature that needs it.
        added: The replacement, which gets Keras's function and its arguments.
            None if tfring only calls the function, or overrides it in
            subclasses.
    """

    owner: Any
    function: str
    parameters: str
    purpose: str
    added: Callable[..., Any] | None = None


def _owner_of(function: str) -> Any:
    """Returns the base class of all Keras models that defines a function."""
    return next(base for base in keras.Model.__mro__ if function in vars(base))


_AGREEMENT = "the agreement of ranks in fit"
_WARNING = "the warning to ranks that train apart"
_COMPILER = "the choice of XLA, and loading"
_SCALES = "loss scales"
_ACCUMULATION = "backward_passes_per_step"
_SHARES = "shard_states"
_PARAMETERS = "tfring.shard_parameters"
_TABLES = "tfring.layers.ShardedEmbedding"
_FILES = "saving and loading whole states"
_PLACES = "the place in the data, of tfring.callbacks.Checkpoint"

_TRAINER = _owner_of("make_train_function")
_MODEL = keras.Model
_OPTIMIZER = keras.optimizers.Optimizer
_SCALED = keras.optimizers.LossScaleOptimizer
_CALLBACKS = keras.callbacks.CallbackList
_SAVER = keras.callbacks.ModelCheckpoint

# fmt: off
HOOKS = (
    Hook(_TRAINER, "fit", "self x", _AGREEMENT, fit.fit),
    Hook(_CALLBACKS, "on_train_begin", "self logs", _AGREEMENT,
         fit.on_train_begin),
    Hook(_owner_of("compile"), "compile", "self optimizer", _COMPILER,
         compiling.compile_model),
    Hook(_TRAINER, "make_train_function", "self", _WARNING,
         models.make_train_function),
    Hook(_TRAINER, "make_test_function", "self", "tfring.global_mean",
         models.make_test_function),
    Hook(_SCALED, "apply", "self grads trainable_variables", _SCALES,
         step.apply_scaled),
    Hook(_OPTIMIZER, "build", "self variables", _TABLES, step.build),
    Hook(_OPTIMIZER, "_var_key", "self variable", _PARAMETERS,
         sharded_parameters.var_key),
    Hook(keras.Variable, "_initialize_with_initializer", "self initializer",
         _PARAMETERS, sharded_parameters.initialize_with_initializer),
    Hook(_OPTIMIZER, "add_variable_from_reference", "self reference_variable",
         _TABLES, step.add_variable_from_reference),
    Hook(_OPTIMIZER, "_trackable_children", "self", _TABLES,
         files.trackable_children),
    Hook(epoch_iterator.EpochIterator, "_enumerate_iterator", "self", _PLACES,
         epochs.enumerate_epoch),
    Hook(_OPTIMIZER, "save_own_variables", "self store", _FILES,
         files.save_own_variables),
    Hook(_OPTIMIZER, "load_own_variables", "self store", _FILES,
         files.load_own_variables),
    Hook(_MODEL, "_create_nested_dict", "self variables", _FILES,
         files.create_nested_dict),
    Hook(_MODEL, "_assign_variable_values", "self variables path_value_dict",
         _FILES, files.assign_variable_values),
    Hook(saving_lib, "save_model", "model filepath", _FILES, files.save_model),
    Hook(saving_lib, "save_weights_only", "model filepath", _FILES,
         files.save_model),
    Hook(saving_lib, "is_memory_sufficient", "model", _FILES,
         files.is_memory_sufficient),
    Hook(legacy_h5_format, "save_model_to_hdf5",
         "model filepath overwrite include_optimizer", _FILES,
         files.save_model_to_hdf5),

    # Overridden by tfring's optimizers.
    Hook(_OPTIMIZER, "apply", "self grads trainable_variables",
         "every DistributedOptimizer"),
    Hook(_OPTIMIZER, "_backend_apply_gradients",
         "self grads trainable_variables", _ACCUMULATION),
    Hook(_OPTIMIZER, "_clip_gradients", "self grads", _ACCUMULATION),
    Hook(_OPTIMIZER, "_backend_update_step",
         "self grads trainable_variables learning_rate", _SHARES),
    Hook(_OPTIMIZER, "_distributed_tf_update_step",
         "self distribution grads_and_vars learning_rate", _SHARES),
    Hook(_OPTIMIZER, "_apply_weight_decay", "self variables", _SHARES),
    Hook(_OPTIMIZER, "_update_model_variables_moving_average",
         "self trainable_variables", _SHARES),
    Hook(_OPTIMIZER, "_check_variables_are_known", "self variables", _SHARES),
    Hook(_OPTIMIZER, "_get_variable_index", "self variable", _SHARES),
    Hook(_OPTIMIZER, "_lookup_dependency", "self name", "DiLoCo"),

    # Called by tfring.
    Hook(_OPTIMIZER, "_filter_empty_gradients", "self grads", _SHARES),
    Hook(_OPTIMIZER, "_use_weight_decay", "self variable", _SHARES),
    Hook(_OPTIMIZER, "_untrack_variable", "self variable", _SHARES),
    Hook(_MODEL, "_flatten_layers", "self", "layers with optimizers"),
    Hook(_TRAINER, "_symbolic_build", "self iterator data_batch", _PLACES),
    Hook(_MODEL, "_should_eval", "self epoch validation_freq",
         "tfring.elastic.fit"),
    Hook(_SAVER, "_should_save_on_batch", "self batch", _FILES),
    Hook(_SAVER, "_should_save_model", "self epoch batch logs filepath",
         "tfring.callbacks.BestModelCheckpoint"),
    Hook(_SAVER, "_get_file_path", "self epoch batch logs",
         "tfring.callbacks.BestModelCheckpoint"),
)
# fmt: on


@functools.cache
def install_hooks() -> None:
    """Replaces Keras's functions by those of the table.

    Raises:
        ImportError: This Keras lacks one of the functions.
    """
    if keras.backend.backend() != "tensorflow":
        return
    replaced = [(hook, function_of(hook)) for hook in HOOKS]
    for hook, function in replaced:
        if hook.added is not None:
            setattr(hook.owner, hook.function, _hooked(hook.added, function))


def function_of(hook: Hook) -> Callable[..., Any]:
    """Returns Keras's function.

    Raises:
        ImportError: Keras lacks the function, or it has other parameters.
    """
    function = getattr(hook.owner, hook.function, None)
    expected = hook.parameters.split()
    found = None
    if function is not None:
        found = list(inspect.signature(function).parameters)
        if found[: len(expected)] == expected:
            return cast(Callable[..., Any], function)
    raise ImportError(
        f"tfring needs the function {hook.owner.__name__}.{hook.function}("
        f"{', '.join(expected)}) of Keras for {hook.purpose}, and Keras "
        f"{keras.__version__} has "
        + (f"the parameters ({', '.join(found)})" if found else "no such one")
        + ". Install another Keras, or a tfring for this one."
    )


def _hooked(
    added: Callable[..., Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return added(function, *args, **kwargs)

    return hooked
