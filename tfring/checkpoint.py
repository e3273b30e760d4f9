"""Lists the checkpoints of a job, and makes a Keras file of one.

    python -m tfring.checkpoint FOLDER
    python -m tfring.checkpoint FOLDER --to model.keras

It is for the folders of `tfring.callbacks.Checkpoint`, runs in one process, and
changes nothing in the folder.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfring._checkpoint.folder import Folder
    from tfring._checkpoint.restoring import Saved

# Modules that need TensorFlow are imported in functions, after the settings
# that silence its messages.


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tfring.checkpoint", description=__doc__.split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="the folder of a Checkpoint")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="FILE.keras",
        help="write the model of a checkpoint to this file",
    )
    parser.add_argument(
        "--number",
        type=int,
        help="which one; by default the newest that is whole",
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    from tfring._checkpoint.folder import Folder
    from tfring._checkpoint.restoring import Saved

    folder = Folder(options.folder)
    numbers = folder.numbers()
    if options.number is not None:
        numbers = [each for each in numbers if each == options.number]
    if not numbers:
        return _fail(f"there is no such checkpoint in {options.folder}")
    if options.to is None:
        for number in reversed(numbers):
            print(_describe(folder, number))
        return 0
    for number in numbers:
        problem = folder.problem(number)
        if problem is None:
            try:
                _write(Saved(folder, number), options.to)
            except ValueError as error:
                return _fail(str(error))
            print(f"checkpoint {number}: written to {options.to}")
            return 0
        print(f"checkpoint {number}: {problem}", file=sys.stderr)
    return _fail(f"no checkpoint in {options.folder} is whole")


def _fail(reason: str) -> int:
    print(f"tfring.checkpoint: {reason}.", file=sys.stderr)
    return 1


def _describe(folder: Folder, number: int) -> str:
    from tfring._checkpoint.folder import PartFile

    problem = folder.problem(number)
    if problem is not None:
        return f"checkpoint {number}: {problem}"
    manifest = folder.manifest(number)
    place = manifest["parts"][0]["place"]
    files = [
        PartFile._make(file)
        for part in manifest["parts"]
        for file in part["files"]
    ]
    size_bytes = sum(file.size_bytes for file in files)
    return (
        f"checkpoint {number}: step {manifest['step']}, epoch "
        f"{place['epoch']}, batch {place['batch']}, {manifest['ranks']} ranks, "
        f"{size_bytes / 1e6:.1f} MB"
    )


def _write(saved: Saved, path: Path) -> None:
    """Writes a Keras file, with the optimizer's own class and state.

    Raises:
        ValueError: Keras cannot make the model by itself.
    """
    import keras

    import tfring.layers
    from tfring._state.model_state import without_metrics
    from tfring._state.whole_states import states_of

    config = saved.manifest["parts"][0].get("model")
    if config is None:
        raise ValueError(
            f"{saved.path} has no description of its model, which Keras could "
            "not give. Build the model in a script, and take its weights by "
            "tf.train.load_checkpoint"
        )
    if "tfring>" in config:
        # A layer of tfring needs a job; this one has one rank.
        tfring.init()
    try:
        model: Any = keras.models.model_from_json(config)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Keras cannot make the model of {saved.path}: {error}. Classes of "
            "your own must be registered: do it in a script, which calls "
            "tfring.checkpoint.main"
        ) from None
    groups = {"model": without_metrics(model)}
    if model.optimizer is not None:
        model.optimizer.build(model.trainable_variables)
        groups["optimizer-0"] = states_of(model.optimizer)
    known = saved.items()
    for group, variables in groups.items():
        for number, variable in enumerate(variables):
            if f"{group}/{number}" in known:
                variable.assign(saved.whole(f"{group}/{number}"))
    model.save(path)


if __name__ == "__main__":
    sys.exit(main())
