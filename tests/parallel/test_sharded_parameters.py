"""Models of shard_parameters train as models with whole parameters."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    ancestors,
    assert_alike,
    assert_each_close,
    assert_each_equal,
    thorough,
    with_loss_scale,
)
from sharded_parameters import (
    LENGTH,
    SCOPE,
    WIDTH,
    WORDS,
    Block,
    adam,
    built,
    compiled,
    data,
    fit,
    scope,
    stacked,
    whole_weights,
)

import tfring
from tfring._memory.parameters import parameter_share, parameters_of

layers, optimizers = keras.layers, keras.optimizers
pytestmark = pytest.mark.usefixtures("several_ranks")


def trained_pair(make=stacked, optimizer=adam, distributed=None, **how):
    """The weights after training with shares and with whole parameters."""

    def trained(sharded):
        model = built(sharded, make)
        made = (distributed or tfring.DistributedOptimizer)(
            optimizer(), shard_states=True
        )
        fit(compiled(model, made, **how))
        assert bool(parameters_of(model.variables)) is sharded
        return whole_weights(model)

    return trained(True), trained(False)


def compare(*pair, exact=True):
    if exact and tfring.size() == 2:
        assert_each_equal(*pair)
    else:
        assert_each_close(*pair, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("exact", "how"),
    [
        (True, {}),
        thorough(False, {"jit_compile": True}),
        thorough(True, {"run_eagerly": True}),
        thorough(True, {"steps_per_execution": 3}),
    ],
)
def test_trains_as_whole_parameters(exact, how):
    compare(*trained_pair(**how), exact=exact)


def frozen(**how):
    model = stacked(**how)
    blocks = [each for each in model.layers if isinstance(each, Block)]
    blocks[0].trainable = False
    return model


def with_adapters():
    words = keras.Input((LENGTH,), dtype="int32")
    dense = [
        layers.Embedding(WORDS, WIDTH),
        layers.EinsumDense("abc,cd->abd", (LENGTH, WIDTH), bias_axes="d"),
        layers.Dense(WIDTH, activation="tanh"),
    ]
    x = words
    for layer in dense:
        x = layer(x)
    x = layers.Conv1D(WIDTH, 3, padding="same")(x)
    model = keras.Model(words, layers.Dense(WORDS)(x))
    for layer in dense:
        layer.enable_lora(2)
    return model


def sgd():
    return optimizers.SGD(0.05, momentum=0.9)


def all_kinds():
    return frozen(tied=True, remat=True, lstm=True)


@pytest.mark.parametrize(
    "make",
    [
        all_kinds,
        thorough(frozen),
        thorough(lambda: stacked(remat=True)),
        thorough(lambda: stacked(lstm=True)),
        thorough(lambda: stacked(regularizer="l2")),
        thorough(with_adapters),
    ],
)
def test_kinds_of_layers(make):
    # The order of additions differs for a tied table.
    compare(*trained_pair(make, sgd), exact=make is not all_kinds)


@pytest.mark.parametrize(
    ("optimizer", "distributed"),
    [
        (
            lambda: optimizers.AdamW(
                0.01,
                weight_decay=0.1,
                global_clipnorm=0.1,
                use_ema=True,
                ema_overwrite_frequency=2,
            ),
            None,
        ),
        thorough(lambda: adam(clipnorm=0.05), None),
        thorough(lambda: adam(gradient_accumulation_steps=2), None),
        thorough(
            adam,
            lambda each, **how: with_loss_scale(each, inside=True, **how),
        ),
        thorough(
            adam,
            lambda each, **how: tfring.DistributedOptimizer(
                each, op=tfring.Sum, **how
            ),
        ),
    ],
)
def test_the_optimizer_updates_shares(optimizer, distributed):
    pair = trained_pair(lambda: stacked(1), optimizer, distributed)
    compare(*pair, exact=False)


def test_feature_maps_are_moved_and_parameters_are_not():
    moved = []  # for each training

    def distributed(optimizer, **how):
        moved.append(set())

        def chosen(feature_map):
            moved[-1].add((feature_map.op_type, tuple(feature_map.shape)))
            return True

        offload = tfring.Offload(chosen, min_bytes=0)
        return tfring.DistributedOptimizer(optimizer, offload=offload, **how)

    compare(*trained_pair(all_kinds, sgd, distributed), exact=False)
    of_sharded, of_whole = moved
    # The transposed table is made again of a second gather.
    assert ("Transpose", (WIDTH, WORDS)) in of_whole
    assert ("Transpose", (WIDTH, WORDS)) not in of_sharded
    assert "IdentityN" not in {kind for kind, _ in of_sharded}


def test_mixed_precision_gathers_in_the_compute_dtype():
    def mixed():
        keras.config.set_dtype_policy("mixed_bfloat16")
        try:
            return stacked()
        finally:
            keras.config.set_dtype_policy("float32")

    traced = operations_of(step_of(built(make=mixed)))
    gathers = gathers_of_parameters(traced)
    # Keras's embedding looks up in float32, and casts the rows.
    assert gathers[0].inputs[0].dtype == tf.float32
    assert {o.inputs[0].dtype for o in gathers[1:]} == {tf.bfloat16}
    scatters = [o for o in traced if o.type == "TfringScatterInPlaceStart"]
    assert len(scatters) == 5
    assert {o.inputs[0].dtype for o in scatters} == {tf.float32}


@pytest.mark.parametrize("run_eagerly", [False, thorough(True)])
def test_gradients_are_sent_as_the_optimizer_says(run_eagerly):
    def distributed(optimizer, **how):
        return tfring.DistributedOptimizer(
            optimizer,
            compression=tfring.Compression.bf16,
            gradient_predivide_factor=2.0,
            **how,
        )

    optimizer = distributed(sgd(), shard_states=True)
    traced = operations_of(step_of(built(), optimizer))
    scatters = [o for o in traced if o.type == "TfringScatterInPlaceStart"]
    assert len(scatters) == 5
    assert {o.inputs[0].dtype for o in scatters} == {tf.bfloat16}
    assert {o.get_attr("prescale_factor") for o in scatters} == {b"0.5"}
    compare(
        *trained_pair(
            lambda: stacked(1), sgd, distributed, run_eagerly=run_eagerly
        )
    )


@pytest.mark.parametrize("jit_compile", [False, thorough(True)])
def test_batches_of_unknown_size(jit_compile):
    """The gradient of a kernel that multiplies sequences has no known shape."""
    model = built(make=lambda: stacked(1))
    step = step_of(model).python_function
    words = tf.TensorSpec([None, LENGTH], tf.int64)
    before = whole_weights(model)
    step = tf.function(
        step, input_signature=[words, words], jit_compile=jit_compile
    )
    step(*data(1))
    for old, new in zip(before, whole_weights(model), strict=True):
        assert (old != new).any()


def test_gradients_are_not_sent_in_two_ways():
    """An optimizer that is built after the first gradient is too late."""
    model = built(make=lambda: stacked(1))
    weights = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(data(1)[0]))
    gradients = tape.gradient(loss, weights)
    optimizer = tfring.DistributedOptimizer(
        sgd(), shard_states=True, compression=tfring.Compression.fp16
    )
    with pytest.raises(RuntimeError, match=r"optimizer\.build"):
        optimizer.apply(gradients, weights)


def test_adapters_of_frozen_kernels(rank, shared_path):
    model = fit(compiled(built(make=with_adapters)))
    frozen = [v for v in model.variables if not v.trainable]
    assert len(parameters_of(frozen)) == 3
    traced = operations_of(step_of(model))
    scattered = [
        o.get_attr("tensor_names")
        for o in traced
        if o.type == "TfringScatterInPlaceStart"
        and o.get_attr("request_name").startswith(b"parameters/")
    ]
    assert len(scattered) == 2  # the convolution and the last layer
    # Keras adds the adapters to the kernels that it saves, on one rank alone.
    path = f"{shared_path}/adapters.keras"
    with tfring.whole_states(model, root_rank=0):
        if rank == 0:
            model.save(path)
    tfring.barrier()
    plain = keras.models.load_model(path)
    x, _ = data(1)
    np.testing.assert_allclose(
        plain.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5
    )


def step_of(model, optimizer=None):
    """A step of a user's own."""
    optimizer = optimizer or tfring.DistributedOptimizer(
        sgd(), shard_states=True
    )
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(
                    y, model(x, training=True), from_logits=True
                )
            )
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return step


def operations_of(step, jit_compile=None):
    x, y = data(1)
    step = tf.function(step.python_function, jit_compile=jit_compile)
    return step.get_concrete_function(x, y).graph.get_operations()


def gathers_of_parameters(operations):
    return [
        each
        for each in operations
        if each.type == "TfringGatherSharesStart"
        and each.get_attr("request_name").startswith(b"parameters/")
    ]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_two_groups_are_whole_at_a_time(jit_compile):
    """Whatever reads a group has run before the group after the next."""
    step = step_of(built(make=lambda: stacked(3)))
    operations = operations_of(step, jit_compile)
    number_of = {each.name: i for i, each in enumerate(operations)}
    gathers = gathers_of_parameters(operations)
    names = [tf.compat.as_str(o.get_attr("request_name")) for o in gathers]
    first = [name for name in names if not name.endswith("/again")]
    again = [name for name in names if name.endswith("/again")]
    assert len(first) == 5
    # Neither the last group nor a table that is looked up.
    assert again == [f"{name}/again" for name in first[-2:0:-1]]
    for older, newer in zip(first[:-2], first[2:], strict=True):
        begin, end = (names.index(name) for name in (older, newer))
        awaited = ancestors(gathers[end])
        readers = [
            user
            for user in forward_users(gathers[begin], operations)
            if number_of[user.name] < number_of[gathers[end].name]
        ]
        assert readers
        assert {user.name for user in readers} <= awaited
    for name in again:
        done = next(
            o
            for o in operations
            if o.type == "TfringDone"
            and o.inputs[-2].op is gathers[names.index(name)]
        )
        assert any(output.consumers() for output in done.outputs[:-1])


def forward_users(start, operations):
    """The products that read what a gather gives."""
    [done] = [
        each
        for each in operations
        if each.type == "TfringDone"
        and any(tensor.op is start for tensor in each.inputs)
    ]
    found, rest = [], list(done.outputs[:-1])
    while rest:
        for user in rest.pop().consumers():
            if user.type in ("Identity", "IdentityN", "Reshape", "Cast"):
                rest += user.outputs
            elif user.type in ("MatMul", "Einsum", "GatherV2", "BatchMatMulV2"):
                found.append(user)
    return found


def test_ranks_may_number_layers_otherwise(rank):
    for _ in range(rank):
        layers.Dense(1)
    with scope():
        model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(WIDTH)])
    assert parameters_of(model.variables)
    kernel = tf.convert_to_tensor(model.layers[0].kernel)
    assert_alike(kernel.numpy().tobytes())
    rows = tf.ones((2, WIDTH)) * (rank + 1)
    np.testing.assert_allclose(model(rows), rows @ kernel, rtol=1e-5)


def test_a_parameter_without_a_gradient_is_left_alone():
    with scope():
        used, unread, unused = (layers.Dense(20) for _ in range(3))
        for layer in (used, unread, unused):
            layer.build((1, 20))
    kernels = [layer.kernel for layer in (used, unread, unused)]
    x = tf.ones((2, 20))

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            unused(x)
            loss = tf.reduce_sum(used(x))
        return tape.gradient(loss, kernels)

    of_used, *others = gradients()
    assert others == [None, None]
    size = int(parameter_share(used.kernel).stored.shape[0])
    np.testing.assert_array_equal(of_used, np.full(size, 2.0))


def test_a_frozen_group_is_not_reduced():
    def scatters(make):
        operations = operations_of(step_of(built(make=make)))
        return sum(o.type == "TfringScatterInPlaceStart" for o in operations)

    # The other variables of a layer may share the bucket of small ones.
    assert scatters(frozen) == scatters(stacked) - 1


def test_a_rank_keeps_its_share(size):
    model = compiled(built())
    model.optimizer.build(model.trainable_variables)
    whole = built(sharded=False)
    assert model.count_params() == whole.count_params()
    assert [v.shape for v in model.weights] == [v.shape for v in whole.weights]
    shares = parameters_of(model.variables)
    kept = sum(4 * int(share.stored.shape[0]) for share in shares)
    total = sum(4 * share.count for share in shares)
    assert total > 0.9 * 4 * model.count_params()
    assert kept <= total / size + 64 * len(shares)
    states = sum(np.asarray(v).nbytes for v in model.optimizer.variables)
    assert states <= 2 * 4 * model.count_params() / size + 4096


def test_files_are_those_of_plain_keras(tmp_path):
    folder = tfring.broadcast_object(str(tmp_path), 0)
    path = f"{folder}/model.keras"
    # On one rank alone.
    saver = keras.callbacks.ModelCheckpoint(path)
    model = compiled(built())
    fit(model, [saver] * (tfring.rank() == 1))
    expected, states = whole_weights(model), whole_states_of(model)
    with tfring.whole_states(model, root_rank=0):
        if tfring.rank() == 0:
            model.save_weights(f"{folder}/model.weights.h5")
    tfring.barrier()
    custom = {"Block": Block}
    plain = keras.models.load_model(path, custom_objects=custom)
    assert_each_equal(plain.get_weights(), expected)
    with tfring.shard_parameters(**SCOPE):
        again = tfring.load_model(
            path, custom_objects=custom, shard_states=True
        )
    assert len(parameters_of(again.variables)) == 6
    assert_each_equal(whole_weights(again), expected)
    assert_each_equal(whole_states_of(again), states)
    other = built()
    other.set_weights([np.zeros_like(each) for each in expected])
    other.load_weights(f"{folder}/model.weights.h5")
    assert_each_equal(whole_weights(other), expected)


def whole_states_of(model):
    store = {}
    with tfring.whole_states(model):
        model.optimizer.save_own_variables(store)
    return [np.asarray(store[str(i)]) for i in range(len(store))]


@pytest.mark.thorough
def test_callbacks_read_and_write_weights():
    def small():
        return compiled(built(make=lambda: stacked(1)))

    model = small()
    stopping = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=0, restore_best_weights=True
    )
    fit(model, [stopping], epochs=4)
    assert stopping.stopped_epoch == 1
    expected = small()
    fit(expected)
    assert_each_equal(whole_weights(model), whole_weights(expected))


def test_evaluates_and_predicts():
    model, plain = (compiled(built(sharded)) for sharded in (True, False))
    x, y = data()
    np.testing.assert_array_equal(
        model.predict(x, verbose=0), plain.predict(x, verbose=0)
    )
    assert model.evaluate(x, y, verbose=0) == plain.evaluate(x, y, verbose=0)
    np.testing.assert_allclose(model(x), plain(x), rtol=1e-5, atol=1e-6)


def test_reads_new_weights_after_an_update_in_one_trace():
    def predicted(sharded):
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        # One group, which is read again right after the update.
        with (
            tfring.shard_parameters(min_elements=64)
            if sharded
            else contextlib.nullcontext()
        ):
            model = stacked(1)
        step = step_of(model).python_function
        x, y = data(1)

        @tf.function
        def two_steps():
            for _ in range(2):
                step(x, y)
            return model(x, training=False)

        return [two_steps()]

    compare(predicted(True), predicted(False))


def test_a_loop_around_steps_is_an_error():
    step = step_of(built()).python_function
    x, y = data(1)

    @tf.function(autograph=False)
    def loop():
        def body(i):
            step(x, y)
            return i + 1

        tf.while_loop(lambda i: i < 2, body, [0])

    with pytest.raises(NotImplementedError, match=r"tf\.function of its own"):
        loop()


@pytest.mark.parametrize(
    ("differ", "units"), [("min_elements", 16), ("shapes of the groups", None)]
)
def test_names_what_differs_between_ranks(rank, differ, units):
    smallest = 100 + (rank if units else 0)
    with (
        pytest.raises(ValueError, match=f"the ranks differ in {differ}"),
        tfring.shard_parameters(min_elements=smallest),
    ):
        layers.Dense(units or 16 + rank).build((1, 16))


def test_a_small_parameter_is_on_few_ranks(rank):
    with tfring.shard_parameters(min_elements=1):
        dense = layers.Dense(1)
        dense.build((1, 17))
    model = keras.Sequential([keras.Input((17,)), dense])
    optimizer = tfring.DistributedOptimizer(adam(), shard_states=True)
    model.compile(optimizer, "mse")
    with tfring.whole_states(model):
        before = dense.kernel.numpy()
    kernel = parameter_share(dense.kernel)
    begin = min(16 * rank, 17)
    assert (kernel.begin, kernel.end) == (begin, min(begin + 16, 17))
    model.fit(np.ones((4, 17)), np.ones((4, 1)), batch_size=2, verbose=0)
    with tfring.whole_states(model):
        assert (dense.kernel.numpy() != before).all()


def test_what_is_not_sharded():
    with pytest.raises(ValueError, match="no parameter was sharded"), scope():
        keras.Sequential([layers.Dense(WORDS)])
    with scope():
        table = tfring.layers.ShardedEmbedding(100, 16)
        table.build()
        dense = layers.Dense(WORDS)
        dense.build((1, 50))
        still = layers.Dense(WORDS, trainable=False)
        still.build((1, 50))
    assert parameter_share(table.rows) is None
    assert parameter_share(dense.bias) is None
    assert parameter_share(dense.kernel) is not None
    late = layers.Dense(WORDS)
    late.build((1, 50))
    assert parameter_share(late.kernel) is None
    assert_alike(len(parameters_of(dense.variables)))
