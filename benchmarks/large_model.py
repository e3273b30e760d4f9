r"""Trains, saves and loads a GPT-2 that does not fit into the memory of a rank.

  tfringrun -np 3 python benchmarks/large_model.py --shard=parameters

The weights are random, 304 million with the defaults; the data are random
words. The program needs keras_hub. `--shard=nothing` trains the same model with
plain data parallelism, `--shard=states` with `shard_states=True` alone.
docs/guides/large-models.md has the commands that limit each rank's memory.
"""

import argparse
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import keras_hub
import numpy as np
import program

import tfring
from tfring.bench.measure import memory_bytes


def language_model(options: argparse.Namespace) -> Any:
    """Returns a model that predicts each next word; embeddings are tied."""
    body = keras_hub.models.GPT2Backbone(
        vocabulary_size=options.words,
        num_layers=options.layers,
        num_heads=options.width // 64,
        hidden_dim=options.width,
        intermediate_dim=4 * options.width,
        dropout=0.0,
        max_sequence_length=options.length,
    )
    logits = body.token_embedding(body.output, reverse=True)
    return keras.Model(body.input, logits)


def batches(options: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    count = options.steps * options.batch
    rng = np.random.default_rng(tfring.rank())
    words = rng.integers(0, options.words, (count, options.length + 1), "int32")
    ones = np.ones((count, options.length), "int32")
    return {"token_ids": words[:, :-1], "padding_mask": ones}, words[:, 1:]


class Seconds(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        report(f"step {batch + 1}", self.began)


def report(what: str, began: float) -> None:
    """Prints the peak of each rank's resident set since the last report."""
    seconds = time.perf_counter() - began
    peak = memory_bytes("VmHWM") / 2**30
    peaks = tfring.allgather_object(f"{peak:.2f}")
    if tfring.rank() == 0:
        print(f"{what}: {seconds:.1f} s, peaks {', '.join(peaks)} GiB")
    Path("/proc/self/clear_refs").write_text("5")


def compiled_model(options: argparse.Namespace) -> Any:
    """Returns the model of a file, or a new one, with an optimizer."""
    shards = {"shard_states": options.shard != "nothing"}
    if options.load:
        return tfring.load_model(options.load, **shards)
    model = language_model(options)
    optimizer = tfring.DistributedOptimizer("adam", **shards)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    optimizer.build(model.trainable_variables)
    return model


def run(options: argparse.Namespace) -> None:
    keras.utils.set_random_seed(1)
    is_sharded = options.shard == "parameters"
    began = time.perf_counter()
    with tfring.shard_parameters() if is_sharded else nullcontext():
        model = compiled_model(options)
    what = "loaded" if options.load else "built"
    report(f"{what}, {model.count_params() / 1e6:.0f} million weights", began)
    if options.steps:
        x, y = batches(options)
        model.fit(
            x, y, batch_size=options.batch, verbose=0, callbacks=[Seconds()]
        )
    if options.save:
        began = time.perf_counter()
        with tfring.whole_states(model, root_rank=0):
            if tfring.rank() == 0:
                model.save(options.save)
        size_bytes = Path(options.save).stat().st_size
        report(f"saved {size_bytes / 2**30:.2f} GiB", began)


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--words", type=int, default=50257)
    parser.add_argument("--length", type=int, default=256, help="of a sequence")
    parser.add_argument("--batch", type=int, default=2, help="of a rank")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument(
        "--shard",
        choices=("nothing", "states", "parameters"),
        default="parameters",
    )
    parser.add_argument("--save", help="a .keras file, after the steps")
    parser.add_argument("--load", help="such a file, in place of a new model")
    options = parser.parse_args()
    tfring.init()
    run(options)
    tfring.barrier()


if __name__ == "__main__":
    main()
