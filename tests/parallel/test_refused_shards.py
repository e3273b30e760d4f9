"""What does not go with shares of states, tables or parameters is refused."""

from __future__ import annotations

import keras
import pytest
import sharded_parameters
import sharded_states
import sharded_tables
import tensorflow as tf
from helpers import with_loss_scale
from sharded_parameters import adam, built, compiled, data, fit

import tfring

pytestmark = pytest.mark.usefixtures("several_ranks")


@pytest.mark.parametrize(
    "kind", [sharded_states, sharded_tables, sharded_parameters]
)
@pytest.mark.parametrize(
    "callback",
    [keras.callbacks.SwapEMAWeights, tfring.callbacks.JoinCallback],
)
def test_callbacks_that_are_refused(kind, callback):
    named = "shard_states|ShardedEmbedding"
    with pytest.raises(NotImplementedError, match=named):
        kind.fit(kind.make_model(), callbacks=[callback()])


OF_TABLES = {
    "shard_states": lambda: sharded_tables.make_model(shard_states=True),
    "Adasum": lambda: sharded_tables.make_model(
        op=tfring.Adasum, sparse_as_dense=True
    ),
    "clipnorm": lambda: sharded_tables.make_model(
        keras.optimizers.SGD(clipnorm=1.0)
    ),
    "global_clipnorm": lambda: sharded_tables.make_model(
        keras.optimizers.SGD(global_clipnorm=1.0)
    ),
    "Lamb": lambda: sharded_tables.make_model(keras.optimizers.Lamb()),
}


@pytest.mark.parametrize("what", OF_TABLES)
def test_optimizers_of_tables(what):
    with pytest.raises((NotImplementedError, ValueError), match=what):
        sharded_tables.fit(OF_TABLES[what]())


@pytest.mark.xla
def test_tables_under_xla():
    with pytest.warns(UserWarning, match="jit_compile"):  # Keras's own
        model = sharded_tables.model_with(
            keras.optimizers.SGD(), jit_compile=True
        )
    assert not model.jit_compile
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        tf.function(model.layers[0], jit_compile=True)(tf.constant([1]))


def test_elastic_states_of_tables():
    model = sharded_tables.make_model()
    for make, of in (
        (tfring.elastic.TensorFlowKerasState, model),
        (tfring.elastic.TensorFlowState, model.variables),
    ):
        with pytest.raises(NotImplementedError, match="lost with their rank"):
            make(of)


def test_checkpoints_of_tables(tmp_path):
    model = sharded_tables.fit(sharded_tables.make_model())
    for target in (model, model.optimizer):
        with pytest.raises(NotImplementedError, match="to_embedding"):
            tf.train.Checkpoint(target=target).save(str(tmp_path / "c"))


def test_one_rank_alone_cannot_read_parameters(rank):
    model = built()
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"tfring\.whole_states"):
            model.get_weights()


def test_parameters_need_shared_states():
    for optimizer in ("adam", tfring.DistributedOptimizer("adam")):
        model = compiled(built(), optimizer)
        with pytest.raises(NotImplementedError, match="shard_states=True"):
            fit(model)
        with pytest.raises(NotImplementedError, match="shard_states=True"):
            keras.optimizers.get(optimizer).build(model.trainable_variables)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"groups": 2}, r"groups \(num_groups\)"),
        ({"device_dense": "/cpu:0"}, "device_dense"),
    ],
)
def test_options_that_do_not_reach_parameters(options, text):
    optimizer = tfring.DistributedOptimizer(
        "adam", shard_states=True, **options
    )
    with pytest.raises(NotImplementedError, match=f"{text} would"):
        optimizer.build(built().trainable_variables)


def test_process_sets_of_parameters(first_rank):
    optimizer = tfring.DistributedOptimizer(
        "adam", shard_states=True, process_set=first_rank
    )
    with pytest.raises(NotImplementedError, match="process_set"):
        optimizer.build(built().trainable_variables)


def test_what_parameters_lack():
    model = built()
    variables = model.trainable_variables
    with tfring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(model(data(1)[0]))
    with pytest.raises(NotImplementedError, match=r"plain tf\.GradientTape"):
        tape.gradient(loss, variables)
    with pytest.raises(NotImplementedError, match="SavedModel"):
        tf.train.Checkpoint(model=model).save("unused")
    variables[0].constraint = keras.constraints.MaxNorm()
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    with pytest.raises(NotImplementedError, match="constraint"):
        optimizer.build(variables)
    scaled = with_loss_scale(
        adam(gradient_accumulation_steps=2), inside=True, shard_states=True
    )
    variables[0].constraint = None
    with pytest.raises(NotImplementedError, match="accumulates"):
        scaled.apply([tf.zeros(v.shape) for v in variables], variables)


def test_histograms_of_parameters(tmp_path):
    board = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1)
    with pytest.raises(NotImplementedError, match="histogram_freq"):
        fit(compiled(built()), [board])


@pytest.fixture
def first_rank():
    added = tfring.add_process_set([0])
    yield added
    tfring.remove_process_set(added)
