"""Commits of shards: ranks leave and join, and each gets its shards again.

A test makes other jobs of the same processes, without one being killed; see
tests/jobs/test_elastic_tcp.py for jobs in which ranks are killed.
"""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import bits_of, thorough
from mpi4py import MPI

import tfring
from tfring import elastic
from tfring._core import mpi_job, runtime
from tfring._memory.parameters import parameter_share, parameters_of
from tfring.elastic import variables

pytestmark = pytest.mark.usefixtures("several_ranks")


@pytest.fixture
def job_of(monkeypatch):
    """Returns a function that begins a job of some of the processes.

    It returns whether this process is in it. The others are alone meanwhile.
    """
    monkeypatch.setattr(runtime, "may_grow", lambda: True)

    def begin(ranks):
        me = MPI.COMM_WORLD.rank
        tfring.shutdown()
        color, key = (0, ranks.index(me)) if me in ranks else (1 + me, 0)
        tfring.init(MPI.COMM_WORLD.Split(color, key))
        return me in ranks

    yield begin
    tfring.shutdown()
    tfring.init()


def make(kind):
    """A model in which parameters are sharded, or states alone."""
    optimizer = {
        "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "no states": lambda: keras.optimizers.SGD(0.1),
        "accumulation": lambda: keras.optimizers.Adam(
            0.01, gradient_accumulation_steps=2
        ),
    }.get(kind, lambda: keras.optimizers.Adam(0.01))()
    keras.utils.set_random_seed(3)
    with (
        contextlib.nullcontext()
        if kind == "states"
        else tfring.shard_parameters(
            min_elements=100, within="host" if kind == "within host" else None
        )
    ):
        model = keras.Sequential(
            [
                keras.Input((12,)),
                keras.layers.Dense(33),
                keras.layers.Dense(8),
                keras.layers.Dense(1),
            ]
        )
    model.layers[1].trainable = False
    model.compile(tfring.DistributedOptimizer(optimizer, shard_states=True))
    return model


def train(model, steps=1):
    """Updates a model with gradients that are drawn at random."""
    trained = model.trainable_variables
    for step in range(steps):
        rng = np.random.default_rng(step)
        wholes = [rng.normal(size=v.shape).astype("float32") for v in trained]
        # The gradients of sharded parameters come reduced to the optimizer,
        # and all others differ between the ranks.
        gradients = [
            tf.constant(whole + tfring.rank())
            if (share := parameter_share(variable)) is None
            else share.of(whole)
            for variable, whole in zip(trained, wholes, strict=True)
        ]
        model.optimizer.apply(gradients, trained)


def whole_bits(model):
    """The bits of all weights and states, which are the same on all ranks."""
    store = {}
    with tfring.whole_states(model):
        weights = model.get_weights()
        model.optimizer.save_own_variables(store)
    bits = bits_of([*weights, *store.values()])
    of_ranks = tfring.allgather_object(bits)
    assert of_ranks == [bits] * tfring.size()
    return bits


def begun(kind, steps=3):
    """A model and its state, after a commit."""
    model = make(kind)
    state = elastic.TensorFlowKerasState(model, step=0)
    state.share()
    train(model, steps)
    state.step = steps
    state.commit()
    return model, state


def new_start(state):
    state.restore()
    state.on_reset()
    state.share()


@pytest.mark.parametrize(
    "kind",
    [
        *("states", "parameters", thorough("accumulation")),
        *(thorough("momentum"), thorough("no states")),
    ],
)
def test_ranks_leave_and_join(job_of, size, kind):
    job_of(list(range(size)))
    # At an odd step, the mean of accumulated gradients is rounded again.
    model, state = begun(kind, 4 if kind == "accumulation" else 3)
    bits = whole_bits(model)
    train(model)  # These steps are lost with the rank.
    # The rank that leaves is rank 0.
    if job_of(list(range(1, size))):
        new_start(state)
        assert whole_bits(model) == bits
        train(model, 2)
        state.commit()
        bits = whole_bits(model)
    else:
        model = make(kind)  # A worker that joins builds alone.
        train(model)
        state = elastic.TensorFlowKerasState(model, step=0)
    job_of([*range(1, size), 0])
    new_start(state)
    assert tfring.broadcast_object(bits) == whole_bits(model)
    train(model)
    whole_bits(model)


def test_machines_share_out_until_their_ranks_differ(job_of, size, monkeypatch):
    of_machine = 2 if size == 4 else 1

    def nodes(self):
        return self.comm.allgather(MPI.COMM_WORLD.rank // of_machine)

    def ranks_of(model):
        [share, *_] = parameters_of(model.variables)
        return share.group.ranks.size

    monkeypatch.setattr(mpi_job.MpiJob, "nodes", nodes)
    job_of(list(range(size)))
    model, state = begun("within host")
    assert ranks_of(model) == of_machine
    bits = whole_bits(model)
    train(model)
    if job_of(list(range(size - 1))):
        new_start(state)
        assert ranks_of(model) == (3 if size == 4 else 1)
        assert whole_bits(model) == bits
        train(model)
        state.commit()
        bits = whole_bits(model)
    else:
        model = make("within host")
        state = elastic.TensorFlowKerasState(model, step=0)
    job_of(list(range(size)))
    new_start(state)
    assert ranks_of(model) == of_machine
    assert tfring.broadcast_object(bits) == whole_bits(model)
    train(model)
    whole_bits(model)


def test_a_restore_is_exact_and_keeps_copies_of_its_own(size):
    model, state = begun("parameters")
    bits = whole_bits(model)
    for _ in range(2):
        train(model)
        state.restore()
        assert whole_bits(model) == bits


def test_a_commit_keeps_two_shards_on_each_rank(rank, size):
    _, state = begun("parameters")
    copies = state._saved[variables._COPIES]
    assert list(copies) == [rank, (rank - 1) % size]
    for shard, own, other in zip(
        state._sharded.shards(), *copies.values(), strict=True
    ):
        assert own.is_of(shard)
        assert not np.shares_memory(own.values, shard.variable.numpy())
        assert other.number == (rank - 1) % size
    # No value in a commit is a whole parameter.
    wholes = state._saved[variables._VARIABLES]
    assert max(each.size for each in wholes if each is not None) < 100


class LostError(elastic.HorovodInternalError):
    pass


@pytest.mark.parametrize(
    ("confirmed", "last"),
    [
        ("by rank 0", True),
        ("by the last", True),
        ("by the last", False),
        thorough("by rank 0", False),
        thorough("by none", True),
        thorough("by none", False),
    ],
)
def test_a_rank_is_lost_in_a_commit(job_of, size, monkeypatch, confirmed, last):
    """The ranks go back to the same commit, whoever has confirmed another."""
    job_of(list(range(size)))
    model, state = begun("parameters")
    before = whole_bits(model)
    train(model)
    state.step = 4
    after = whole_bits(model)
    by = {"by rank 0": 0, "by the last": size - 1}.get(confirmed)
    gather = variables.gather_json

    def lost_gather(own, name):
        gathered = None if by is None else gather(own, name=name)
        if tfring.rank() != by:
            raise LostError
        return gathered

    with monkeypatch.context() as patch:
        patch.setattr(variables, "gather_json", lost_gather)
        if tfring.rank() == by:
            state.commit()
        else:
            with pytest.raises(LostError):
                state.commit()
    train(model)
    # If the only rank that has confirmed the commit is lost, nobody has.
    left = list(range(size - 1)) if last else list(range(size))
    if job_of(left):
        new_start(state)
        has_new = by in left
        assert whole_bits(model) == (after if has_new else before)
        assert state.step == (4 if has_new else 3)


def test_a_rank_is_lost_while_shards_are_cut_again(job_of, size, monkeypatch):
    job_of(list(range(size)))
    model, state = begun("parameters")
    bits = whole_bits(model)
    if not job_of(list(range(1, size))):
        state = elastic.TensorFlowKerasState(make("parameters"), step=0)
    job_of(list(range(size)))
    whole = variables.ShardedVariables._cut_optimizers

    def lose(self):
        raise LostError

    with monkeypatch.context() as patch:
        patch.setattr(variables.ShardedVariables, "_cut_optimizers", lose)
        state.restore()
        with pytest.raises(LostError):
            state.on_reset()
    assert variables.ShardedVariables._cut_optimizers is whole
    # The ranks are those of the commit again, except for the lost one.
    if job_of(list(range(1, size))):
        new_start(state)
        assert whole_bits(model) == bits


def test_a_later_state_has_the_copies_of_the_one_before(job_of, size):
    """A rank is lost between two functions of `elastic.run`."""
    job_of(list(range(size)))
    model, _ = begun("parameters")
    bits = whole_bits(model)
    state = elastic.TensorFlowKerasState(model, step=7)
    if job_of(list(range(1, size))):
        new_start(state)
        assert whole_bits(model) == bits
        assert state.step == 7


@pytest.mark.parametrize("kind", ["parameters", "states"])
def test_shares_are_lost_before_the_first_commit(job_of, size, kind):
    job_of(list(range(size)))
    model = make(kind)
    if kind == "states":
        state = elastic.TensorFlowKerasState(model)
        bits = whole_bits(model)
        if job_of(list(range(1, size))):
            new_start(state)  # They are initial states still.
            assert whole_bits(model) == bits
        job_of(list(range(size)))
        model = make(kind)
        train(model)
    state = elastic.TensorFlowKerasState(model)
    text = {"parameters": "the parameter '.*'", "states": "had made 1 steps"}
    if job_of(list(range(1, size))):
        state.restore()
        with pytest.raises(RuntimeError, match=f"first commit.*{text[kind]}"):
            state.on_reset()


@pytest.mark.thorough
def test_two_ranks_of_one_machine_are_lost(job_of, size, monkeypatch):
    if size < 4:
        pytest.skip("two machines with two ranks each")
    monkeypatch.setattr(
        mpi_job.MpiJob, "nodes", lambda self: [0, 0, 2, 2][: tfring.size()]
    )
    job_of([0, 1, 2, 3])
    model, state = begun("parameters")
    bits = whole_bits(model)
    if job_of([2, 3]):
        new_start(state)
        assert whole_bits(model) == bits


@pytest.mark.thorough
def test_a_share_is_lost_with_its_copy(job_of, size):
    if size < 3:
        pytest.skip("one rank has all shares")
    job_of(list(range(size)))
    _, state = begun("parameters")
    # The copy of rank 1's shares is on rank 2.
    if job_of([0, *range(3, size)]):
        state.restore()
        with pytest.raises(RuntimeError, match="both were lost at once"):
            state.on_reset()
