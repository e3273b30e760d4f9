"""callbacks.Checkpoint: a training that is cut off goes on."""

import contextlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import CutOffAt, CutOffError, compiled, with_loss_scale

import tfring
from tfring import checkpoint
from tfring._checkpoint import saver
from tfring._checkpoint.files import Files

ROWS, BATCH, EPOCHS = 44, 8, 3


def new_model(
    rank,
    *,
    steps_per_execution=1,
    shards_parameters=False,
    scales_loss=False,
    has_table=False,
    **options,
):
    keras.utils.set_random_seed(5 + rank)
    optimizer = keras.optimizers.Adam(0.01)
    table = [
        keras.layers.Discretization([-1.0, 0.0, 1.0]),
        tfring.layers.ShardedEmbedding(5, 3),
        keras.layers.Flatten(),
    ]
    with (
        tfring.shard_parameters(min_elements=1)
        if shards_parameters
        else contextlib.nullcontext()
    ):
        return compiled(
            with_loss_scale(optimizer, inside=True, **options)
            if scales_loss
            else tfring.DistributedOptimizer(optimizer, **options),
            keras.Input((4,)),
            *(table if has_table else []),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
            metrics=["mae"],
            steps_per_execution=steps_per_execution,
        )


def data_of(kind, rank):
    generator = np.random.default_rng(rank)
    x = generator.normal(size=(ROWS, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    if kind == "arrays":
        return {"x": x, "y": y, "batch_size": BATCH}
    if kind == "batches":
        return {"x": Batches(x, y)}
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    # TensorFlow derives this shuffle's seed from the one set for the model.
    dataset = rows.shuffle(ROWS).batch(BATCH)
    if kind == "endless":
        return {"x": dataset.repeat(), "steps_per_epoch": 5}
    if kind == "unknown":
        return {"x": dataset.filter(lambda x, y: True)}
    return {"x": dataset}


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // BATCH

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


def train(folder, rank, kind="arrays", *, cut_off=None, every=2, **options):
    """Trains to the end, or until it is cut off; returns what there is then."""
    model = new_model(rank, **options)
    callbacks = [
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, min_delta=0.3),
        keras.callbacks.EarlyStopping(
            "loss", patience=9, restore_best_weights=True
        ),
        tfring.callbacks.Checkpoint(folder, every_steps=every),
    ]
    if cut_off is not None:
        callbacks.append(CutOffAt(cut_off))
    data = data_of(kind, rank)
    try:
        history = model.fit(
            **data, epochs=EPOCHS, verbose=0, callbacks=callbacks
        )
    except CutOffError:
        # A job that ends waits for its threads.
        callbacks[3]._saver._coordinator._thread.shutdown()
        return None
    variables = [*model.variables, *model.optimizer.variables]
    values = [tf.convert_to_tensor(each).numpy() for each in variables]
    return [value.tobytes() for value in values], history.history


@pytest.mark.parametrize(
    ("kind", "cut_off", "options"),
    [
        ("arrays", 8, {"shard_states": True, "shards_parameters": True}),
        pytest.param(
            "arrays", 8, {"shard_states": True}, marks=pytest.mark.thorough
        ),
        ("dataset", 10, {"compression": tfring.PowerSGD(rank=1, start=2)}),
        pytest.param(
            "batches",
            5,
            {"steps_per_execution": 2},
            marks=pytest.mark.thorough,
        ),
        pytest.param("arrays", 5, {}, marks=pytest.mark.thorough),
        pytest.param(
            "arrays",
            9,
            {"sync": tfring.DiLoCo(every=2)},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "arrays", 8, {"scales_loss": True}, marks=pytest.mark.thorough
        ),
        pytest.param(
            "arrays",
            8,
            {"scales_loss": True, "compression": tfring.PowerSGD(rank=1)},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "arrays",
            8,
            {"has_table": True, "scales_loss": True},
            marks=pytest.mark.thorough,
        ),
        pytest.param("unknown", 14, {}, marks=pytest.mark.thorough),
        pytest.param("endless", 12, {}, marks=pytest.mark.thorough),
        pytest.param(
            "arrays",
            10,
            {"backward_passes_per_step": 3},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "arrays",
            10,
            {"sync": tfring.LocalSGD(every=2)},
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_it_goes_on_with_the_same_bits(
    rank, shared_path, caplog, kind, cut_off, options
):
    """It does so from the checkpoint before, if the last one is not whole."""
    whole = train(shared_path / "whole", rank, kind, **options)
    cut = shared_path / "cut"
    assert train(cut, rank, kind, cut_off=cut_off, **options) is None
    tfring.barrier()
    # There may be no complete one, if the first was begun just before the end.
    manifests = sorted(cut.glob("*/manifest.json"))
    if rank == 0 and len(manifests) > 1:
        (manifests[-1].parent / "part-00000.index").unlink()
    tfring.barrier()
    values, history = train(cut, rank, kind, **options)
    assert history == whole[1]
    assert values == whole[0]
    if rank == 0 and len(manifests) > 1:
        assert "part-00000.index is missing" in caplog.text


@pytest.mark.thorough
def test_each_rank_writes_a_part(rank, size, shared_path):
    train(shared_path, rank)
    checkpoints = sorted(shared_path.iterdir())
    assert len(checkpoints) == 3
    manifest = json.loads((checkpoints[-1] / "manifest.json").read_text())
    assert manifest["ranks"] == size
    [own] = [each for each in manifest["parts"] if each["rank"] == rank]
    assert own["place"]["epoch"] == EPOCHS
    written = [
        item["name"]
        for part in manifest["parts"]
        for item in part["items"]
        if item["rule"] == "alike"
    ]
    assert len(written) == len(set(written)) > 10
    if size > 1:
        alike = [each for each in own["items"] if each["rule"] == "alike"]
        assert 0 < len(alike) < len(written)


def test_parts_of_other_ranks(rank, size, shared_path, several_ranks):
    """A job of one rank goes on from that of two, and the other way round."""
    train(shared_path, rank, cut_off=9, shard_states=True)
    model = new_model(0, shard_states=False)
    model.optimizer.build(model.trainable_variables)
    found = saver.Saver(
        saver.Settings(shared_path, 1, 1, 1, (), "must", False, False),
        "model.fit",
    )
    saved = found.find()
    if rank > 0:
        return
    for number, variable in enumerate(model.optimizer.variables):
        value = saved.whole(f"optimizer-0/{number}")
        assert value.shape == tuple(variable.shape)
    momentum = saved.whole("optimizer-0/2")
    parts = [saved.read(each, "optimizer-0/2") for each in range(size)]
    np.testing.assert_array_equal(momentum.reshape(-1), np.concatenate(parts))
    assert np.any(momentum != 0)


@pytest.mark.thorough
def test_another_training_is_refused(rank, shared_path):
    train(shared_path, rank, cut_off=4)
    model = compiled(
        tfring.DistributedOptimizer("adam"),
        keras.Input((4,)),
        keras.layers.Dense(1),
    )
    callback = tfring.callbacks.Checkpoint(shared_path)
    with pytest.raises(ValueError, match="is of another training: it has"):
        model.fit(**data_of("arrays", rank), verbose=0, callbacks=[callback])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("resume", "match"),
    [("must", "there is no checkpoint"), ("never", None), ("auto", None)],
)
def test_without_a_checkpoint(rank, shared_path, resume, match):
    model = new_model(rank)
    callback = tfring.callbacks.Checkpoint(shared_path, resume=resume)
    broadcast = tfring.callbacks.BroadcastGlobalVariablesCallback(0)
    arguments = {
        **data_of("arrays", rank),
        "verbose": 0,
        "callbacks": [broadcast, callback],
    }
    if match is None:
        model.fit(**arguments)
        return
    with pytest.raises(RuntimeError, match=match):
        model.fit(**arguments)


@pytest.mark.parametrize(
    "strict", [False, pytest.param(True, marks=pytest.mark.thorough)]
)
def test_a_disk_that_fails_on_one_rank(
    rank, size, shared_path, caplog, monkeypatch, strict
):
    last = size - 1

    def full(self, prefix, tensors):
        if prefix.name == f"part-{last:05d}":
            raise OSError("No space left on device")

    monkeypatch.setattr(Files, "write_tensors", full)
    model = new_model(rank)
    callbacks = [
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        tfring.callbacks.Checkpoint(shared_path, every_steps=1, strict=strict),
    ]
    arguments = {
        **data_of("arrays", rank),
        "epochs": 2,
        "verbose": 0,
        "callbacks": callbacks,
    }
    if strict:
        with pytest.raises(RuntimeError, match=f"on rank {last}, No space"):
            model.fit(**arguments)
        return
    model.fit(**arguments)
    said = caplog.text.count(f"on rank {last}, No space left on device")
    assert said == (1 if rank == 0 else 0)


def test_a_keras_file_is_made_of_a_checkpoint(rank, shared_path, capsys):
    model = new_model(rank)
    callback = tfring.callbacks.Checkpoint(shared_path)
    broadcast = tfring.callbacks.BroadcastGlobalVariablesCallback(0)
    callbacks = [broadcast, callback]
    model.fit(**data_of("arrays", rank), verbose=0, callbacks=callbacks)
    if rank > 0:
        return
    assert checkpoint.main([str(shared_path)]) == 0
    assert "step 6, epoch 1, batch 0" in capsys.readouterr().out
    path = shared_path / "model.keras"
    assert checkpoint.main([str(shared_path), "--to", str(path)]) == 0
    made = keras.models.load_model(path)
    assert type(made.optimizer) is keras.optimizers.Adam
    for own, value in (
        (model.weights, made.weights),
        (model.optimizer.variables, made.optimizer.variables),
    ):
        for one, other in zip(own, value, strict=True):
            np.testing.assert_array_equal(
                tf.convert_to_tensor(one), tf.convert_to_tensor(other)
            )


def train_in_a_loop(folder, rank, *, has_tape=False, cut_off=None):
    keras.utils.set_random_seed(rank)
    layers = keras.layers.Dense(16), keras.layers.Dense(16)
    model = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam(0.1)
    compression = tfring.PowerSGD(rank=1, start=2)
    if not has_tape:
        tfring.DistributedOptimizer(optimizer)
    seen = tf.Variable(0)
    tfring.broadcast_variables(model.variables)
    saved = tfring.Checkpoint(
        folder, model, optimizer, variables=[seen], every_steps=2
    )
    saved.restore()
    for epoch in range(saved.epoch, 3):
        order = np.random.default_rng([rank, epoch]).normal(size=(5, 8, 4))
        for batch in order[saved.batch :].astype("float32"):
            if cut_off is not None and saved._saver.step == cut_off:
                saved._saver._coordinator._thread.shutdown()
                return None
            tape = tf.GradientTape()
            if has_tape:
                tape = tfring.DistributedGradientTape(
                    tape, compression=compression
                )
            with tape:
                loss = tf.reduce_mean((model(batch) - 1) ** 2)
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            seen.assign_add(1)
            saved.step()
        saved.end_epoch()
    saved.close()
    return [*model.get_weights(), seen.numpy()]


@pytest.mark.parametrize("has_tape", [False, True])
def test_a_loop_goes_on(rank, shared_path, has_tape):
    """A tape's PowerSGD keeps what the steps have left out."""
    options = {"has_tape": has_tape}
    whole = train_in_a_loop(shared_path / "whole", rank, **options)
    assert whole[-1] == 15
    cut = shared_path / "cut"
    assert train_in_a_loop(cut, rank, cut_off=8, **options) is None
    values = train_in_a_loop(cut, rank, **options)
    for one, other in zip(whole, values, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_loop_restores_first(rank, shared_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    saved = tfring.Checkpoint(shared_path, model, keras.optimizers.SGD())
    with pytest.raises(RuntimeError, match=r"call restore\(\) once before"):
        saved.step()
