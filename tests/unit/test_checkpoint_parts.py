"""When a checkpoint is due, which rank writes what, and the copy in memory."""

import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from moved_clock import Clock

from tfring._checkpoint import callback_states
from tfring._checkpoint.contents import (
    Item,
    Rule,
    items_of_model,
    own_items,
)
from tfring._checkpoint.files import Files
from tfring._checkpoint.host_copy import HostCopy, host_array
from tfring._checkpoint.saver import Settings
from tfring._checkpoint.schedule import Schedule, Signals


def test_steps_and_minutes_count_from_the_last_one():
    clock = Clock(100.0)
    schedule = Schedule(10, 2, clock)
    schedule.begin(5)
    assert not schedule.is_due_by_steps(14)
    assert schedule.is_due_by_steps(15)
    clock.now += 119
    assert not schedule.is_due_by_time()
    clock.now += 1
    assert schedule.is_due_by_time()
    schedule.begin(15)
    assert not schedule.is_due_by_steps(24)
    assert not schedule.is_due_by_time()
    never = Schedule(None, None, clock)
    clock.now += 1e9
    assert not never.is_due_by_time()
    assert not never.is_due_by_steps(10**9)


def test_other_ranks_count_from_the_last_one():
    clock = Clock(100.0)
    schedule = Schedule(10, 2, clock)
    schedule.begin(20)
    clock.now += 119
    schedule.go_on(28, 20)
    assert not schedule.is_due_by_steps(29)
    assert schedule.is_due_by_steps(30)
    assert not schedule.is_due_by_time()
    clock.now += 1
    assert schedule.is_due_by_time()


@pytest.mark.parametrize(
    ("step_seconds", "expected"),
    [(1.0, 1), (0.1, 1), (0.03, 4), (0.001, 100), (0.0, 1000)],
)
def test_fast_steps_have_fewer_votes(step_seconds, expected):
    clock = Clock(100.0)
    schedule = Schedule(None, 10, clock)
    schedule.begin(0)
    clock.now += 16 * step_seconds
    assert abs(schedule.steps_until_vote(16) - expected) <= 1


def test_signals_are_noted_and_given_back():
    before = signal.getsignal(signal.SIGUSR1)
    signals = Signals(["SIGUSR1"])
    signals.install()
    signals.install()
    assert signals.received == 0
    signal.raise_signal(signal.SIGUSR1)
    assert signals.received == signal.SIGUSR1
    signals.restore()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_signal_is_passed_on_to_the_handler_before():
    got = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
    signals = Signals(["SIGUSR1", "SIGUSR2"])
    signals.install()
    signals.pass_on(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    signals.pass_on(signal.SIGUSR2)
    assert (got, signals.received) == ([], signal.SIGUSR1)
    signals.pass_on(signal.SIGUSR1)
    assert (got, signals.received) == ([signal.SIGUSR1], 0)
    signals.restore()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("name", ["SIGKILL", "USR1", "SIG_DFL", 10])
def test_what_is_no_signal(name):
    with pytest.raises(ValueError, match="on_signal names"):
        Signals([name])


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"folder": "gs://bucket/a"}, ValueError, "no renames and no fsync"),
        ({"folder": ""}, ValueError, "folder must be a folder"),
        ({"every_steps": 0}, ValueError, "every_steps must be positive, got 0"),
        ({"every_steps": 1.5}, TypeError, "every_steps must be a number"),
        ({"every_minutes": -1}, ValueError, "every_minutes must be positive"),
        ({"keep": 0}, ValueError, "keep must be positive"),
        ({"keep": None}, TypeError, "keep must be a number"),
        ({"on_signal": "SIGUSR1"}, TypeError, "must be a list of names"),
        ({"requeue": "yes"}, TypeError, "requeue must be True or False"),
        ({"resume": True}, ValueError, "resume must be one of auto, must, nev"),
    ],
)
def test_wrong_arguments(changed, error, said):
    right = {
        "folder": "a",
        "every_steps": None,
        "every_minutes": 10,
        "keep": 3,
        "on_signal": (),
        "resume": "auto",
        "strict": False,
        "requeue": False,
    }
    Settings(**right)
    with pytest.raises(error, match=said):
        Settings(**{**right, **changed})


def item(number, rule):
    return Item(str(number), rule, "", None, None)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_ranks_write_about_as_many_bytes(size):
    counts = [1000, 10, 10, 700, 300, 5, 0, 300]
    values = [tf.zeros(count) for count in counts]
    rules = [Rule.ALIKE] * len(counts)
    items = [item(n, rule) for n, rule in enumerate(rules)]
    own = [own_items(items, values, rank, size) for rank in range(size)]
    assert sorted(n for each in own for n in each) == list(range(len(counts)))
    largest = max(sum(counts[n] for n in each) for each in own)
    assert largest <= max(1000, sum(counts) / size * 1.2)


def test_every_rank_writes_what_is_its_own():
    items = [item(0, Rule.ALIKE), *(item(1 + n, r) for n, r in enumerate(Rule))]
    items = [each for each in items if each.key != "1"]
    values = [tf.zeros(3) for _ in items]
    others = list(range(1, len(items)))
    assert own_items(items, values, 0, 2) == [0, *others]
    assert own_items(items, values, 1, 2) == others


@pytest.mark.parametrize(
    "dtype",
    ["float32", "bfloat16", "float16", "int64", "bool", "uint8", "complex64"],
)
def test_a_copy_is_written_as_it_was(tmp_path, dtype):
    values = {
        "matrix": tf.cast(tf.reshape(tf.range(12), [3, 4]), dtype),
        "none": tf.zeros([0, 2], dtype),
        "scalar": tf.cast(1, dtype),
    }
    memory = HostCopy()
    for _ in range(2):  # The second uses the memory of the first.
        copies = memory.take({n: host_array(v) for n, v in values.items()})
    Files().write_tensors(tmp_path / "part", copies)
    read = Files().open_tensors(tmp_path / "part")
    for name, value in values.items():
        assert read(name).dtype == value.numpy().dtype
        np.testing.assert_array_equal(read(name), value.numpy())


# How a training changes a variable.
_CHANGES = {
    "assign": lambda v: v.assign(v * 2 + 1),
    "assign_add": lambda v: v.assign_add(tf.ones_like(v)),
    "rows": lambda v: v.scatter_nd_add([[0], [2]], tf.ones([2, v.shape[1]])),
    "slices": lambda v: v.scatter_sub(
        tf.IndexedSlices(tf.ones([1, v.shape[1]]), tf.constant([1]))
    ),
    "slice": lambda v: v[1:2].assign(tf.zeros([1, v.shape[1]])),
    "fused": lambda v: tf.raw_ops.ResourceApplyGradientDescent(
        var=v.handle, alpha=1.0, delta=tf.ones_like(v)
    ),
}


@pytest.mark.parametrize("traced", ["eagerly", "graph", "xla"])
@pytest.mark.parametrize("change", _CHANGES)
def test_a_value_stays_while_its_variable_changes(change, traced):
    # The shape is large enough for XLA to run in parallel.
    variable = tf.Variable(tf.random.normal([512, 1024]))
    expected = variable.numpy().copy()

    def step():
        _CHANGES[change](variable)

    if traced != "eagerly":
        step = tf.function(step, jit_compile=traced == "xla")
    held = {"variable": host_array(tf.convert_to_tensor(variable))}
    step()
    assert not np.array_equal(variable, expected)
    step()
    copies = HostCopy().take(held)
    assert not held
    step()
    np.testing.assert_array_equal(copies["variable"], expected)


def test_random_generators_go_on():
    states = callback_states.random_states()
    expected = np.random.random(3)
    np.random.random(5)
    callback_states.set_random_states(states)
    np.testing.assert_array_equal(np.random.random(3), expected)


class Noise(keras.layers.Layer):
    """A layer with a generator, which Keras does not know as a state."""

    def __init__(self):
        super().__init__()
        self.noise = tf.random.Generator.from_seed(3)

    def call(self, inputs):
        return inputs + self.noise.normal(tf.shape(inputs))


@pytest.mark.usefixtures("initialized")
def test_generators_of_layers_go_on():
    def draws():
        values = model(np.zeros((2, 2))), tf.random.get_global_generator()
        return np.stack([values[0], values[1].normal([2, 2])])

    model = keras.Sequential([keras.Input((2,)), Noise()])
    items = items_of_model(model, ())
    values = [np.array(item.value()) for item in items]
    expected = draws()
    assert np.all(draws() != expected)
    for item, value in zip(items, values, strict=True):
        item.assign(value)
    np.testing.assert_array_equal(draws(), expected)


class Counter:
    def __init__(self):
        self.count = 0

    def get_state(self):
        return {"count": np.int64(self.count)}

    def set_state(self, state):
        self.count = state["count"]


def test_states_of_callbacks_of_a_user():
    before, after = [Counter(), Counter()], [Counter(), Counter()]
    before[0].count, before[1].count = 3, 4
    states = callback_states.states_of([object(), *before])
    callback_states.set_states(after, states)
    assert [each.count for each in after] == [3, 4]


def test_steps_of_a_tensorboard(tmp_path):
    before = keras.callbacks.TensorBoard(tmp_path)
    before._global_train_batch = 17
    states = callback_states.states_of([before])
    after = keras.callbacks.TensorBoard(tmp_path)
    callback_states.set_states([after], states)
    assert after._global_train_batch == 17
