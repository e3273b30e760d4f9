"""elastic.fit with a Checkpoint: a lost job goes on, with any ranks."""

import json
import shutil
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import CutOffError, FailsOnce, compiled, state_bits

import tfring
from tfring import elastic
from tfring._checkpoint.files import Files

ROWS, BATCH, EPOCHS = 49, 3, 2


def new_model(rank, **options):
    keras.utils.set_random_seed(5 + rank)
    return compiled(
        tfring.DistributedOptimizer(keras.optimizers.Adam(0.01), **options),
        keras.Input((4,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    )


def train(folder, rank, *others, every=1, make=None, **options):
    """Trains to the end, or until it is cut off; returns what there is then."""
    model = new_model(rank, **options)
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    saving = tfring.callbacks.Checkpoint(folder, every_steps=every)
    stopping = keras.callbacks.EarlyStopping("loss", patience=9)
    callbacks = [saving, stopping, *others]
    try:
        history = elastic.fit(
            model,
            x,
            x.sum(1, keepdims=True),
            batch_size=BATCH,
            epochs=EPOCHS,
            verbose=0,
            callbacks=callbacks,
        )
    except CutOffError:
        # A job that ends waits for its threads.
        saving._saver._coordinator._thread.shutdown()
        return None
    return state_bits(model), history, stopping.best


def places(folder):
    """Returns the ranks and the place of each checkpoint, the oldest first."""
    manifests = [
        json.loads(path.read_text())
        for path in sorted(folder.glob("*/manifest.json"))
    ]
    return [
        (
            each["ranks"],
            each["parts"][0]["place"]["epoch"],
            each["parts"][0]["place"]["taken"],
        )
        for each in manifests
    ]


@pytest.mark.parametrize(
    ("cut_off", "options"),
    [
        pytest.param(
            (0, 3), {"shard_states": True}, marks=pytest.mark.thorough
        ),
        pytest.param((0, 2), {}, marks=pytest.mark.thorough),
        pytest.param(
            (0, 4),
            {"sync": tfring.LocalSGD(every=2)},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            (0, 4),
            {"backward_passes_per_step": 3},
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_it_goes_on_with_the_same_bits(
    rank, size, shared_path, cut_off, options
):
    whole = train(shared_path / "whole", rank, **options)
    cut = shared_path / "cut"
    assert train(cut, rank, FailsOnce(*cut_off, CutOffError), **options) is None
    tfring.barrier()
    ranks, epoch, taken = places(cut)[-1]
    assert (ranks, epoch) == (size, cut_off[0])
    assert 0 < taken <= cut_off[1] * BATCH * size
    values, history, best = train(cut, rank, **options)
    assert values == whole[0]
    # The metrics of the epoch that goes on cover its rest alone.
    assert len(history["loss"]) == EPOCHS
    assert history["loss"][-1] == whole[1]["loss"][-1]
    assert best == whole[2]
    # A training that has ended is not begun again.
    assert train(cut, rank, **options)[:2] == (values, history)


def test_a_loss_while_a_checkpoint_is_written(
    rank, size, shared_path, monkeypatch
):
    """What was being written is given up, and the next one is whole."""
    options = {"shard_states": True}
    whole = train(shared_path / "whole", rank, FailsOnce(0, 2), **options)
    may_write = threading.Event()
    write = Files.write_tensors

    def late(self, prefix, tensors):
        may_write.wait()
        write(self, prefix, tensors)

    class Loss(FailsOnce):
        def on_train_begin(self, logs=None):
            if self.when is None:
                may_write.set()

    monkeypatch.setattr(Files, "write_tensors", late)
    folder = shared_path / "lost"
    losses = Loss(0, 2), FailsOnce(1, 4, CutOffError)
    assert train(folder, rank, *losses, every=2, **options) is None
    tfring.barrier()
    # The one of step 2 was being written, and so the next one was of step 3.
    steps = ROWS // (BATCH * size)
    done = [
        steps * epoch + taken // (BATCH * size)
        for _, epoch, taken in places(folder)
    ]
    assert len(done) > 1
    assert all(step % 2 == 1 for step in done)
    assert train(folder, rank, **options)[0] == whole[0]
    # No number is used twice, and what was given up is removed.
    names = sorted(each.name for each in folder.iterdir())
    assert len(names) == 3
    assert "checkpoint-00000001" not in names


def train_in_a_loop(folder, rank, *, lost_at=None, cut_off=None):
    """Trains in a function of `elastic.run`; returns the weights at the end."""
    keras.utils.set_random_seed(rank)
    optimizer = tfring.DistributedOptimizer(keras.optimizers.Adam(0.1))
    model = compiled(optimizer, keras.Input((4,)), keras.layers.Dense(1))
    state = elastic.TensorFlowKerasState(model, optimizer)
    saved = tfring.Checkpoint(
        folder, model, optimizer, state=state, every_steps=2
    )
    losses = {lost_at}

    def end_at(step):
        if step in losses:
            losses.remove(step)
            raise elastic.HorovodInternalError("a rank is lost")
        if step == cut_off:
            saved._saver.wait()
            raise CutOffError

    @elastic.run
    def train(state):
        saved.restore()
        while saved.epoch < EPOCHS:
            rows = np.random.default_rng(saved.epoch).normal(size=(48, 4))
            batches = rows.astype("float32").reshape(-1, 4, 4)[saved.taken :]
            size = tfring.size()
            for own in batches[rank : len(batches) // size * size : size]:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(own) - 1) ** 2)
                # The step that is lost has changed the weights.
                weights = model.trainable_variables
                optimizer.apply(tape.gradient(loss, weights), weights)
                end_at(saved._saver.step)
                saved.step()
            saved.end_epoch()
        saved.close()

    try:
        train(state)
    except CutOffError:
        return None
    return saved._saver.step, state_bits(model)


def test_a_loop_goes_on_from_its_commit_and_its_checkpoint(
    rank, size, shared_path
):
    whole = train_in_a_loop(shared_path / "whole", rank)
    assert whole[0] == EPOCHS * (12 // size)
    cut = shared_path / "cut"
    # Steps count from 0: in the second epoch a rank is lost, then all are.
    lost_at, cut_off = 12 // size + 1, 12 // size + 3
    assert train_in_a_loop(cut, rank, lost_at=lost_at, cut_off=cut_off) is None
    assert train_in_a_loop(cut, rank) == whole


def test_a_loop_restores_in_the_function(rank, shared_path):
    model = new_model(rank)
    state = elastic.TensorFlowKerasState(model)
    saved = tfring.Checkpoint(shared_path, model, state=state)
    with pytest.raises(RuntimeError, match="in the function of tfring"):
        saved.restore()
    with pytest.raises(TypeError, match="state must be a state of"):
        tfring.Checkpoint(shared_path, model, state=model)


@pytest.mark.thorough
def test_a_checkpoint_of_fit_is_refused(rank, shared_path):
    model = new_model(rank)
    x = np.ones((32, 4), "float32")
    callbacks = [
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        tfring.callbacks.Checkpoint(shared_path),
    ]
    model.fit(x, x[:, :1], verbose=0, callbacks=callbacks)
    with pytest.raises(ValueError, match=r"is of model\.fit, and its place"):
        train(shared_path, rank)


@pytest.mark.thorough
def test_another_rank_without_one_is_refused(rank, several_ranks):
    model = new_model(rank)
    callbacks = [tfring.callbacks.Checkpoint("a")] if rank == 0 else []
    x = np.ones((32, 4), "float32")
    with pytest.raises(ValueError, match="must pass one"):
        elastic.fit(model, x, x[:, :1], verbose=0, callbacks=callbacks)


@pytest.mark.thorough
def test_a_training_that_a_callback_has_ended_is_not_begun_again(
    rank, shared_path
):
    class Ends(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            # The other ranks learn that it ends after the checkpoint.
            self.model.stop_training |= rank == 0

    values, history, _ = train(shared_path, rank, Ends())
    assert len(history["loss"]) == 1
    tfring.barrier()
    if rank == 0:
        shutil.rmtree(max(shared_path.glob("checkpoint-*")))
    tfring.barrier()
    assert train(shared_path, rank)[:2] == (values, history)
