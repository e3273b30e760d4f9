"""tfring: train Keras 3 and TensorFlow models on many processes.

Every process (rank) runs the same script; gradients are averaged between them
by a ring allreduce over MPI while backpropagation goes on.

Example:

```python
import keras
import tfring

tfring.init()
x, y = x[tfring.rank()::tfring.size()], y[tfring.rank()::tfring.size()]
model.compile(
    tfring.DistributedOptimizer(keras.optimizers.Adam(1e-3 * tfring.size())),
    "sparse_categorical_crossentropy",
)
model.fit(x, y, callbacks=[
    tfring.callbacks.BroadcastGlobalVariablesCallback(0),
    tfring.callbacks.MetricAverageCallback(),
])
```
"""

import ast
import importlib
from pathlib import Path
from typing import Any

from tfring._core import abi

__version__ = "0.1.0"

abi.check_at_import()


def _public_names() -> dict[str, str]:
    """Returns the module of each public name, which `__init__.pyi` declares."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text())
    return {
        alias.name: str(statement.module)
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


_MODULE_OF = _public_names()

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    # Load a module when it is first used, so that `import tfring` neither loads
    # TensorFlow nor starts MPI: the launcher, which is in this package, needs
    # neither.
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tfring' has no attribute {name!r}")
    module = _MODULE_OF[name]
    if module == __name__:
        value: Any = importlib.import_module(f"{module}.{name}")
    else:
        value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
