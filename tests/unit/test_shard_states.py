"""Sharded optimizer states in one process: the layout, and what is refused."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring._gradients import shares
from tfring._gradients.gradient_options import GradientOptions

SHAPES = [(300, 700), (5,), (), (1024,), (33, 40), (3, 0), (2, 2), (99, 333)]
DTYPES = ["float32", "float16", "float32", "float64", *["float32"] * 4]


@pytest.fixture(autouse=True)
def initialized():
    tfring.init()


def made(shapes, dtypes=DTYPES):
    rng = np.random.default_rng(0)
    return [
        keras.Variable(rng.normal(size=shape), dtype=dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def layouts(monkeypatch, size, variables, **options):
    """What each of so many ranks has."""
    result = []
    for rank in range(size):
        monkeypatch.setattr(
            shares, "place_in", lambda _, rank=rank: (rank, size)
        )
        result.append(shares.Layout(variables, GradientOptions(**options)))
    return result


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("groups", [None, 2])
def test_every_element_is_one_ranks(monkeypatch, size, groups):
    variables = made(SHAPES)
    of_ranks = layouts(monkeypatch, size, variables, groups=groups)
    for i, variable in enumerate(variables):
        parts = [layout.shares[i].of(variable) for layout in of_ranks]
        np.testing.assert_array_equal(
            tf.concat(parts, 0), np.reshape(variable, [-1])
        )
        ends = [layout.shares[i].end for layout in of_ranks]
        # The instructions for full vectors are those for the whole variable.
        assert all(end % 16 == 0 or end == ends[-1] for end in ends)


def share_of(tensor, rank, size):
    """What a collective in place gives to a rank, or takes from it."""
    flat = np.ravel(tensor)
    count = -(-flat.size // (size * 16)) * 16
    return flat[rank * count : (rank + 1) * count]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("groups", [None, 2])
def test_what_travels_comes_back(monkeypatch, size, groups):
    """As a reducescatter and an allgather move the shares."""
    variables = made(SHAPES)
    of_ranks = layouts(monkeypatch, size, variables, groups=groups)
    seen = set()
    for number, bucket in enumerate(of_ranks[0].buckets):
        packed = bucket.pack(variables)
        own_packed = []
        for rank, layout in enumerate(of_ranks):
            scattered = []
            for each in packed:  # What is not this rank's is not defined.
                flat = np.full(each.shape, np.nan, each.dtype.as_numpy_dtype)
                share_of(flat, rank, size)[...] = share_of(each, rank, size)
                scattered.append(tf.constant(flat))
            own = layout.buckets[number].own(scattered)
            for i, part in own.items():
                expected = layout.shares[i].of(variables[i])
                np.testing.assert_array_equal(part, expected)
            own_packed.append(layout.buckets[number].pack_own(own, variables))
        gathered = [
            np.concatenate(
                [share_of(each, r, size) for r, each in enumerate(of_all)]
            ).reshape(of_all[0].shape)
            for of_all in zip(*own_packed, strict=True)
        ]
        for i, value in bucket.whole(gathered).items():
            seen.add(i)
            np.testing.assert_array_equal(value, variables[i])
    assert seen == {i for i, shape in enumerate(SHAPES) if 0 not in shape}


def test_what_has_no_gradient_travels_as_zeros(monkeypatch):
    variables = made(SHAPES)
    for layout in layouts(monkeypatch, 2, variables):
        for bucket in layout.buckets:
            none = bucket.own(bucket.pack([None] * len(variables)))
            assert all(not np.any(part) for part in none.values())


def test_shares_are_about_equal(monkeypatch):
    rng = np.random.default_rng(1)
    shapes = [(int(n),) for n in rng.integers(1, 3000, 300)]
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    total = sum(n for (n,) in shapes)
    for size in 2, 3, 8:
        for layout in layouts(monkeypatch, size, variables):
            own = sum(share.shape[0] for share in layout.shares)
            assert own * size < total * 1.05
            travels = sum(
                int(tf.size(each))
                for bucket in layout.buckets
                for each in bucket.pack(variables)
            )
            assert travels < total * 1.1


def test_large_variables_travel_as_they_are(monkeypatch):
    shapes = [(256, 128), (1, 65536), (99, 333), (10,)]
    variables = made(shapes, ["float32"] * 4)
    layout, _ = layouts(monkeypatch, 2, variables)
    [bucket] = layout.buckets
    assert [each.shape for each in bucket.pack(variables)] == [
        (99, 333),
        (1, 65536),
        (256, 128),
        (2, 16),
    ]


class OfMine(keras.optimizers.Adam):
    pass


class Halves(tfring.compression.Compressor):
    @staticmethod
    def compress(tensor):
        return tensor / 2, None

    @staticmethod
    def decompress(tensor, context):
        return tensor * 2


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        *(
            (make, {}, f"does not know .*{make.__name__}")
            for make in (
                keras.optimizers.Adafactor,
                keras.optimizers.Lamb,
                keras.optimizers.Muon,
                OfMine,
            )
        ),
        (
            lambda: keras.optimizers.LossScaleOptimizer(OfMine()),
            {},
            "does not know .*OfMine",
        ),
        (keras.optimizers.Adam, {"op": tfring.Adasum}, "Adasum"),
        (keras.optimizers.Adam, {"compression": Halves}, "compressor"),
        (keras.optimizers.Adam, {"device_sparse": "/cpu:0"}, "device_sparse"),
    ],
)
def test_refuses_by_name(make, options, text):
    with pytest.raises(NotImplementedError, match=text):
        tfring.DistributedOptimizer(make(), shard_states=True, **options)


def test_refuses_local_variables():
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    with pytest.raises(NotImplementedError, match="no local variables"):
        optimizer.register_local_var(keras.Variable([1.0]))


def trained(optimizer, steps=3):
    variables = [
        keras.Variable(np.full(s, 0.5), dtype="float32", name=f"v{i}")
        for i, s in enumerate(SHAPES)
    ]
    rng = np.random.default_rng(0)
    for _ in range(steps):
        gradients = [tf.constant(rng.normal(size=s), "float32") for s in SHAPES]
        optimizer.apply(gradients, variables)
    return variables


def saved(optimizer):
    store = {}
    optimizer.save_own_variables(store)
    return {key: np.asarray(value) for key, value in store.items()}


def amsgrad():
    return keras.optimizers.Adam(
        0.1, amsgrad=True, use_ema=True, gradient_accumulation_steps=2
    )


@pytest.mark.parametrize(
    "make",
    [
        amsgrad,
        keras.optimizers.Nadam,
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Ftrl()),
    ],
    ids=["Adam", "Nadam", "LossScaleOptimizer"],
)
def test_saves_as_the_plain_optimizer(make):
    plain, sharded = make(), make()
    assert tfring.DistributedOptimizer(sharded, shard_states=True) is sharded
    for one, other in zip(trained(plain), trained(sharded), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    store, expected = saved(sharded), saved(plain)
    assert store.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(store[key], value, rtol=1e-5, atol=1e-7)
    other = tfring.DistributedOptimizer(make(), shard_states=True)
    trained(other, 1)
    other.load_own_variables(expected)
    for key, value in saved(other).items():
        np.testing.assert_array_equal(value, expected[key])


def test_takes_over_the_states_of_an_optimizer_that_is_built():
    optimizer = amsgrad()
    trained(optimizer)
    expected = saved(optimizer)
    tfring.DistributedOptimizer(optimizer, shard_states=True)
    for key, value in saved(optimizer).items():
        np.testing.assert_array_equal(value, expected[key])


def test_a_copy_has_shares_too():
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    copied = copy.deepcopy(optimizer)
    for one, other in zip(trained(optimizer), trained(copied), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [v.shape for v in copied.variables] == [
        v.shape for v in optimizer.variables
    ]


def test_a_state_of_another_model_is_refused():
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    trained(optimizer)
    store = saved(optimizer)
    with pytest.warns(UserWarning, match="Skipping"):
        optimizer.load_own_variables({"0": 1})
    store["2"] = np.zeros([4])
    with pytest.raises(ValueError, match=r"shape \(4,\).*v0"):
        optimizer.load_own_variables(store)


def test_weights_are_gathered_into_all_ranks_alike():
    """A share has a value during an update alone."""
    optimizer = tfring.DistributedOptimizer("sgd", shard_states=True)
    trained(optimizer)
    share = optimizer._tfring_layout.shares[0]
    with pytest.raises(RuntimeError, match="during updates alone"):
        tf.convert_to_tensor(share)
