"""Features drawn at random beside each other train as ranks in one process.

The reference is plain Keras: a model and an optimizer for each rank, all in one
process, whose gradients or weights NumPy averages where the ranks would.
"""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    all_thorough_but,
    assert_each_close,
    assert_same_on_all_ranks,
)

import tfring

IN_GATE, ALL = 2, 200
WORDS, BATCH, BATCHES, EPOCHS = 13, 4, 6, 2
TEACHER_KEEPS = 0.9

OPTIMIZERS = {
    "sgd": lambda **how: keras.optimizers.SGD(0.1, momentum=0.8, **how),
    "adam": lambda **how: keras.optimizers.Adam(0.01, epsilon=1e-3, **how),
}


@dataclasses.dataclass(frozen=True)
class Training:
    optimizer: str
    place: str  # where the model has the optimizer
    sync: str
    every: int
    start: int
    passes: int
    local: bool  # the first dense layer is each rank's own
    frozen: bool  # a layer that nothing changes
    teacher: str  # no, frozen, or trainable and without an optimizer
    table: bool
    masked: bool
    validation: str
    saver: str
    jit_compile: bool


def drawn(seed):
    draw = random.Random(seed)
    sync = draw.choice(["", "LocalSGD", "DiLoCo", "Gossip"])
    table = not sync and draw.random() < 0.5
    validation = ["none", "even", "uneven", "rank 0"]
    return Training(
        optimizer=draw.choice(sorted(OPTIMIZERS)),
        place=draw.choice(["compile", "attribute", "object", "list"]),
        sync=sync,
        every=draw.choice([1, 2, 4]),
        start=draw.choice([0, 3]),
        passes=draw.choice([1, 1, 2]),
        local=draw.random() < 0.3,
        frozen=draw.random() < 0.5,
        teacher=draw.choice(["no", "no", "frozen", "trainable"]),
        table=table,
        # A rank's own count is as good in rounds.
        masked=not sync and draw.random() < 0.5,
        # All ranks look rows up, and take the mean with Gossip.
        validation=draw.choice(
            validation[:2] if table or sync == "Gossip" else validation
        ),
        saver=draw.choice(["none", "weights", "tree"]),
        jit_compile=not table and sync != "Gossip" and draw.random() < 0.3,
    )


class Model(keras.Model):
    def __init__(self, training, embedding):
        super().__init__(name="model")
        keras.utils.set_random_seed(7)
        self.training = training
        self.embedding = embedding
        self.own = keras.layers.Dense(5, "tanh", name="own")
        self.frozen = keras.layers.Dense(
            5, "tanh", trainable=not training.frozen, name="frozen"
        )
        self.head = keras.layers.Dense(1, name="head")
        self.teacher = None
        if training.teacher != "no":
            self.teacher = keras.layers.Dense(
                1, trainable=training.teacher != "frozen", name="teacher"
            )
        self.own.build((None, 6))
        self.frozen.build((None, 5))
        for each in self.heads():
            each.build((None, 5))
        if not embedding.built:
            embedding.build((None, 2))
        self.built = True

    def heads(self):
        return [each for each in (self.head, self.teacher) if each is not None]

    def call(self, words):
        rows = tf.reshape(self.embedding(words), (-1, 6))
        hidden = self.frozen(self.own(rows))
        outputs = [each(hidden) for each in self.heads()]
        # The teacher's output has a part in the loss, and no gradient.
        return outputs[0] + 0.1 * tf.stop_gradient(outputs[-1])

    def trained(self):
        variables = self.trainable_variables
        own = {id(v) for v in self.teacher.variables} if self.teacher else ()
        return [v for v in variables if id(v) not in own]

    def follow(self):
        if self.teacher is None:
            return
        for one, other in zip(
            self.teacher.variables, self.head.variables, strict=True
        ):
            one.assign(TEACHER_KEEPS * one + (1 - TEACHER_KEEPS) * other)

    def find_optimizer(self):
        return {
            "compile": lambda: self.optimizer,
            "attribute": lambda: self.its_optimizer,
            "object": lambda: self.part.optimizer,
            "list": lambda: self.part.all[0]["of the model"],
        }[self.training.place]()

    def train_step(self, batch):
        x, y = batch[:2]
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
        variables = self.trained()
        gradients = tape.gradient(loss, variables)
        self.find_optimizer().apply(gradients, variables)
        self.follow()
        return {"loss": loss}


class Saver(keras.callbacks.Callback):
    """Reads all states at each epoch's end, as other packages' callbacks do."""

    save_freq = "epoch"

    def on_epoch_end(self, epoch, logs=None):
        tree = self.model.get_state_tree(value_format="numpy_array")
        self.trained = tree["trainable_variables"]


def squares(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)


def masked_loss(labels, outputs):
    return tfring.global_mean(squares(labels, outputs), labels[:, 0] > 0)


def data_of(rank):
    rng = np.random.default_rng([3, rank])
    x = rng.integers(0, WORDS, (BATCH * BATCHES, 2))
    y = np.sin(x.sum(1, keepdims=True) + rank).astype("float32")
    return x, y


def first_rows():
    rng = np.random.default_rng(1)
    return rng.normal(size=(WORDS, 3)).astype("float32")


def plain_model(training):
    embedding = keras.layers.Embedding(WORDS, 3)
    embedding.build()
    embedding.embeddings.assign(first_rows())
    return Model(training, embedding)


def sync_of(training):
    kinds = {
        "LocalSGD": tfring.LocalSGD,
        "DiLoCo": tfring.DiLoCo,
        "Gossip": lambda every, start: tfring.Gossip("ring", every, start),
    }
    make = kinds.get(training.sync)
    return make and make(every=training.every, start=training.start)


def trained(training, rank, folder):
    """Returns the model after `fit`, and what its callbacks have seen."""
    if training.table:
        embedding = tfring.layers.ShardedEmbedding(WORDS, 3)
        embedding.build()
        embedding.set_table(first_rows())
        model = Model(training, embedding)
    else:
        model = plain_model(training)
    optimizer = tfring.DistributedOptimizer(
        OPTIMIZERS[training.optimizer](),
        sync=sync_of(training),
        backward_passes_per_step=training.passes,
        average_aggregated_gradients=True,
        sparse_as_dense=True,
    )
    if training.local:
        for variable in model.own.variables:
            optimizer.register_local_var(variable)
    model.its_optimizer = optimizer if training.place == "attribute" else None
    held = SimpleNamespace(
        optimizer=optimizer if training.place == "object" else None,
        all=[{"of the model": optimizer}] if training.place == "list" else [],
    )
    model.part = held
    model.compile(
        optimizer if training.place == "compile" else "sgd",
        masked_loss if training.masked else "mse",
        jit_compile=training.jit_compile,
    )
    given = [tfring.callbacks.BroadcastGlobalVariablesCallback(0)]
    saver, path = Saver(), f"{folder}/last.weights.h5"
    if training.saver == "tree":
        given.append(saver)
    elif training.saver == "weights":
        given.append(
            keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
        )
    x, y = data_of(rank)
    count = BATCH * (2 if training.validation == "uneven" and rank == 0 else 1)
    validates = training.validation in ("even", "uneven") or (
        training.validation == "rank 0" and rank == 0
    )
    history = model.fit(
        *(x, y),
        batch_size=BATCH,
        epochs=EPOCHS,
        validation_data=(x[:count], y[:count]) if validates else None,
        validation_batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=given,
    )
    if validates:
        assert np.isfinite(history.history["val_loss"]).all()
    return model, saver, path


def as_ranks(training, size):
    """Returns the models of all ranks, trained in this process."""
    ranks = [plain_model(training) for _ in range(size)]
    how = {}
    if training.passes > 1:
        how["gradient_accumulation_steps"] = training.passes
    optimizers = [OPTIMIZERS[training.optimizer](**how) for _ in ranks]
    rounds = Rounds(training, ranks) if training.sync else None
    for step in range(EPOCHS * BATCHES):
        begin = step % BATCHES * BATCH
        batches = [
            [each[begin : begin + BATCH] for each in data_of(r)]
            for r in range(size)
        ]
        # Masks divide by the ranks' mean count.
        count = np.mean([(y > 0).sum() for _, y in batches])
        gradients = []
        for model, (x, y) in zip(ranks, batches, strict=True):
            with tf.GradientTape() as tape:
                losses = squares(y, model(x))
                if training.masked:
                    weights = tf.cast(y[:, 0] > 0, tf.float32)
                    loss = tf.reduce_sum(losses * weights) / max(count, 1e-9)
                else:
                    loss = tf.reduce_mean(losses)
            of_rank = tape.gradient(loss, model.trained())
            gradients.append([tf.convert_to_tensor(each) for each in of_rank])
        is_common = rounds is None or step < training.start * training.passes
        if not is_common:
            rounds.before_step()
        means = [sum(each) / size for each in zip(*gradients, strict=True)]
        for model, optimizer, own in zip(
            ranks, optimizers, gradients, strict=True
        ):
            variables = model.trained()
            local = {id(v) for v in model.own.variables if training.local}
            used = [
                one / size if id(v) in local else (mean if is_common else one)
                for v, one, mean in zip(variables, own, means, strict=True)
            ]
            optimizer.apply(used, variables)
        if rounds is not None and not is_common:
            rounds.after_step()
        for model in ranks:
            model.follow()
        if rounds is not None and (step + 1) % BATCHES == 0:
            rounds.end_epoch()
    if rounds is not None:
        rounds.end()
    return ranks


def give_mean(of_ranks):
    for same in zip(*of_ranks, strict=True):
        mean = np.mean([np.asarray(v) for v in same], 0)
        for variable in same:
            variable.assign(mean)


class Rounds:
    """What LocalSGD, DiLoCo and Gossip do at meetings, in NumPy."""

    def __init__(self, training, models):
        self.training = training
        self.models = models
        # The broadcast builds a compiled optimizer for all that is trainable.
        self.exchanges_teacher = (
            training.teacher == "trainable" and training.place == "compile"
        )
        self.of_ranks = [list(self.exchanged(model)) for model in models]
        self.steps = 0
        self.base = None
        self.velocity = [0.0] * len(self.of_ranks[0])

    def exchanged(self, model):
        local = model.own.variables if self.training.local else ()
        yield from (
            v for v in model.trained() if not any(v is own for own in local)
        )
        if self.exchanges_teacher:
            yield from model.teacher.variables

    def take_base(self):
        self.base = [np.asarray(v) for v in self.of_ranks[0]]

    def before_step(self):
        if self.steps == 0:
            self.take_base()

    def after_step(self):
        self.steps += 1
        if self.steps == self.training.every * self.training.passes:
            self.steps = 0
            self.meet()

    def meet(self):
        values = [[np.asarray(v) for v in each] for each in self.of_ranks]
        size = len(values)
        for i, variables in enumerate(zip(*self.of_ranks, strict=True)):
            if self.training.sync == "Gossip":
                hops = sorted({1 % size, (size - 1) % size} - {0})
                for rank, variable in enumerate(variables):
                    seen = [0, *hops]
                    variable.assign(
                        np.mean([values[rank - hop][i] for hop in seen], 0)
                    )
                continue
            mean = np.mean([each[i] for each in values], 0)
            if self.training.sync == "DiLoCo":
                change = self.base[i] - mean
                self.velocity[i] = 0.7 * self.velocity[i] - 0.9 * change
                mean = self.base[i] + 0.7 * self.velocity[i] - 0.9 * change
            for variable in variables:
                variable.assign(mean)

    def end_epoch(self):
        if self.training.teacher != "no" and not self.exchanges_teacher:
            give_mean([model.teacher.variables for model in self.models])

    def end(self):
        if self.training.sync == "Gossip" or self.steps:
            give_mean(self.of_ranks)


@pytest.mark.filterwarnings("ignore::tfring.NotDistributedWarning")
@pytest.mark.parametrize("seed", all_thorough_but(range(IN_GATE), range(ALL)))
def test_as_ranks_in_one_process(seed, rank, size, shared_path):
    training = drawn(seed)
    model, saver, path = trained(training, rank, shared_path)
    expected = as_ranks(training, size)[rank]
    note = str(training)
    for name in ("own", "frozen", "head", "teacher"):
        layer = getattr(model, name)
        if layer is None:
            continue
        if not (training.local and name == "own"):
            assert_same_on_all_ranks(layer.variables)
        try:
            assert_each_close(
                layer.variables,
                getattr(expected, name).variables,
                rtol=2e-4,
                atol=2e-5,
            )
        except AssertionError as error:
            raise AssertionError(f"{note}, {name}: {error}") from error
    table = (
        model.embedding.table()
        if training.table
        else model.embedding.embeddings.numpy()
    )
    np.testing.assert_allclose(
        table, expected.embedding.embeddings, rtol=2e-4, atol=2e-5, err_msg=note
    )
    if training.saver == "weights" and rank == 0:
        check_file(training, model, path)
    elif training.saver == "tree":
        shapes = set(map(np.shape, keras.tree.flatten(saver.trained)))
        assert (WORDS, 3) in shapes, note
    tfring.barrier()


def check_file(training, model, path):
    """Plain Keras reads whole tables, and without rounds the last weights."""
    again = plain_model(training)
    again.compile("sgd", "mse")
    again.load_weights(path, skip_mismatch=True)
    if not training.sync:
        assert_each_close(again.head.variables, model.head.variables, rtol=1e-6)
