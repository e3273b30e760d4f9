"""Unfolds one Gaussian from another, as OmniFold's examples do."""

import keras
import numpy as np
import omnifold
from omnifold.net import weighted_binary_crossentropy

import tfring

EVENTS = 20_000
SHIFT = 0.4  # of the truth

# Keras asks for it where a model is cloned.
keras.saving.register_keras_serializable()(weighted_binary_crossentropy)
keras.utils.set_random_seed(1)
place = {"rank": tfring.rank(), "size": tfring.size()}
rng = np.random.default_rng(0)


def smeared(values):
    return values + rng.normal(0, 0.3, values.shape).astype(np.float32)


generated = rng.normal(0, 1, (EVENTS, 1)).astype(np.float32)
truth = rng.normal(SHIFT, 1, (EVENTS, 1)).astype(np.float32)
unfolding = omnifold.MultiFold(
    "test",
    omnifold.MLP(1),
    omnifold.MLP(1),
    omnifold.DataLoader(reco=smeared(truth), **place),
    omnifold.DataLoader(reco=smeared(generated), gen=generated, **place),
    niter=2,
    epochs=4,
    batch_size=256,
    lr=1e-3,
    **place,
)
unfolding.Unfold()
weights = np.ravel(unfolding.reweight(generated, unfolding.model2))
own = [
    weight.tobytes()
    for model in (unfolding.model1, unfolding.model2)
    for weight in model.get_weights()
]
every = tfring.allgather_object(own)
print(f"WEIGHTS {len(own)} SAME {all(each == own for each in every)}")
print(f"MEAN {np.average(generated[:, 0], weights=weights)}")
