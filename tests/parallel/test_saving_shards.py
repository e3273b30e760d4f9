"""Whatever lies in shares is saved whole, or no file is written.

A kind of shares is a module with `make_model` and `fit`.
"""

from __future__ import annotations

import keras
import pytest
import sharded_parameters
import sharded_states
import sharded_tables
from helpers import state_bits, thorough

import tfring

each_kind = pytest.mark.parametrize(
    "kind", [sharded_states, sharded_tables, sharded_parameters]
)


def whole_bits(model):
    with tfring.whole_states(model):
        return state_bits(model)


@each_kind
def test_a_part_is_not_saved(kind, several_ranks, rank, tmp_path):
    model = kind.fit(kind.make_model())
    # An error names the optimizer, or a variable by its layer.
    names = [model.optimizer.name, *(layer.name for layer in model.layers)]

    def refusal(save, name):
        path = tmp_path / name
        path.write_text("the last one")
        with pytest.raises(RuntimeError, match="No file has been writ") as e:
            save(path)
        assert path.read_text() == "the last one"
        assert any(f"'{each}" in str(e.value) for each in names)
        return str(e.value)

    for save, name in (
        (model.save, "a.keras"),
        (model.save_weights, "a.weights.h5"),
    ):
        assert "have not put it together" in refusal(save, name)
    with tfring.whole_states(model, root_rank=0):
        assert "older format" in refusal(model.save, "a.h5")
        if rank == 0:
            model.save(tmp_path / "b.keras")
        else:
            assert "for rank 0 alone" in refusal(model.save, "a.keras")
    with tfring.whole_states(model):
        kind.fit(model)
        assert "has changed since" in refusal(model.save, "a.keras")


@each_kind
def test_what_rank_0_has_loaded_is_broadcast(kind, rank, shared_path):
    path = f"{shared_path}/of_all.weights.h5"
    model = kind.fit(kind.make_model())
    with tfring.whole_states(model, root_rank=0):
        if rank == 0:
            model.save_weights(path)
    other = kind.make_model()
    other.optimizer.build(other.trainable_variables)
    if rank == 0:
        other.load_weights(path)
    broadcast = tfring.callbacks.BroadcastGlobalVariablesCallback(0)
    for each, callbacks in ((other, [broadcast]), (model, [])):
        kind.fit(each, callbacks=callbacks)
    assert whole_bits(other) == whole_bits(model)
    # A second broadcast leaves each rank's own part as it is.
    tfring.broadcast_variables(other.variables + other.optimizer.variables)
    assert whole_bits(other) == whole_bits(model)


@pytest.mark.parametrize(
    "kind", [sharded_states, sharded_tables, thorough(sharded_parameters)]
)
def test_callbacks_that_save(kind, several_ranks, shared_path):
    best, backup = f"{shared_path}/best.keras", f"{shared_path}/backup"
    model = kind.make_model()
    callbacks = [
        tfring.callbacks.BestModelCheckpoint(best, monitor="loss"),
        keras.callbacks.BackupAndRestore(backup, delete_checkpoint=False),
    ]
    kind.fit(model, epochs=2, callbacks=callbacks)
    custom = {"Block": sharded_parameters.Block}
    saved = keras.models.load_model(best, custom_objects=custom)
    assert saved.optimizer.iterations == model.optimizer.iterations
    # No callback has left the whole with this rank.
    with pytest.raises(RuntimeError, match="have not put it together"):
        model.save(f"{shared_path}/later.keras")
    # The training resumes after the second epoch.
    again = kind.make_model()
    restores = keras.callbacks.BackupAndRestore(backup)
    kind.fit(again, epochs=3, callbacks=[restores])
    kind.fit(model)
    assert whole_bits(again) == whole_bits(model)
