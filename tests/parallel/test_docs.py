"""Runs the examples of the documents: README, docstrings and the site."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tfring
import tfring.callbacks
import tfring.compression
import tfring.data
import tfring.elastic
import tfring.layers
from tfring._core.process_sets import added

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    str(path.relative_to(DOCS))
    for path in DOCS.rglob("*.md")
    if "```python" in path.read_text()
)


def _code_blocks(text: str) -> list[str]:
    return [
        textwrap.dedent(block)
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ]


def _documented() -> dict[str, Any]:
    modules = (
        *(tfring, tfring.callbacks, tfring.compression, tfring.data),
        *(tfring.elastic, tfring.layers, tfring.metrics),
    )
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in modules
        for name in dir(module)
        if "```python" in (getattr(getattr(module, name), "__doc__", "") or "")
    }


# The examples take a compiled model and its data as given.
def _context() -> dict[str, Any]:
    keras.utils.set_random_seed(0)  # the same weights on all ranks
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(tfring.DistributedOptimizer(optimizer), "mse")
    data = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)
    return {"keras": keras, "tfring": tfring, "model": model} | dict(
        zip("xy", data, strict=True)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", _documented())
def test_example_of(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some save files
    [*blocks] = _code_blocks(_documented()[name].__doc__)
    assert blocks
    for block in blocks:
        # Epochs enough to see a schedule, not to wait for it.
        exec(block.replace("epochs=90", "epochs=2"), _context())
    for process_set in added():
        tfring.remove_process_set(process_set)


# A page is one script: later blocks use the names of earlier blocks.
@pytest.mark.parametrize("page", PAGES)
def test_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = _context()
    for block in _code_blocks((DOCS / page).read_text()):
        exec(block, namespace)


def test_readme() -> None:
    [script] = _code_blocks((ROOT / "README.md").read_text())
    namespace: dict[str, Any] = {}
    exec(script, namespace)
    loss = namespace["model"].history.history["loss"]
    assert loss[-1] < loss[0]
    # Averaged over the ranks, so the same on each.
    assert np.ptp(tfring.allgather([loss[-1]]).numpy()) == 0
