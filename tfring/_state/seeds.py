"""Seeds of Keras's random generators, which differ from rank to rank.

Layers such as `Dropout` keep the state of a `keras.random.SeedGenerator` among
the model's variables: a seed, and how often it has been drawn from. With equal
seeds all ranks would draw the same noise, each for its own samples, and a
global batch would have only as many masks as one rank's batch.

Note [Folding]: a broadcast adds to the root's seed one step for each rank
between the root and this one. So a rank's seed depends only on rank 0's seed
and on its rank. It does not depend on the root or on the number of broadcasts:
a run can be repeated, and a run that is resumed from rank 0's checkpoint
continues with the same noise.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Keras takes seeds modulo this, before TensorFlow draws from them.
_MODULUS = 2**31 - 2
# The golden section of the modulus, and coprime to it: the seeds of ranks are
# far from each other, and from the seeds of layers that a user has numbered.
_STEP = 1327217887


def is_seed(variable: Any) -> bool:
    """Tells whether a variable is the state of a `SeedGenerator`."""
    name = str(getattr(variable, "path", None) or variable.name)
    name = name.rpartition("/")[2].partition(":")[0]
    return name == "seed_generator_state" and tuple(variable.shape) == (2,)


def folded_seed(seed: int, steps: int) -> int:
    """Returns the seed that is `steps` steps from another."""
    return (seed + steps * _STEP) % _MODULUS


def folded(state: Any, steps: int) -> tf.Tensor:
    """Returns the state for the rank that is `steps` ranks further on."""
    seed, draws = tf.unstack(tf.cast(state, tf.int64))
    seed = tf.math.floormod(seed + steps * _STEP, _MODULUS)
    return tf.cast(tf.stack([seed, draws]), state.dtype)
