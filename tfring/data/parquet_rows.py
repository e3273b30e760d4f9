"""Rows of Parquet files, as batches of each rank.

Note [The order of rows]: an epoch takes the row groups in an order that follows
from the seed and the epoch, and the rows of each group in an order that follows
from the group's number, too. So the order is the same for any number of ranks.
Each rank has a run of this sequence, and so reads few row groups that other
ranks read, too.
"""

from __future__ import annotations

import bisect
import hashlib
import threading
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import Any

import keras
import numpy as np

from tfring._core import runtime
from tfring.data.sharding import gather_same

# A batch may begin in one row group and end in the next.
_GROUPS_KEPT = 2


def parquet(
    path: str | PathLike[str] | Sequence[str],
    *,
    batch_size: int,
    columns: Sequence[str] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    transform: Callable[[dict[str, Any]], Any] | None = None,
    of_all_ranks: bool = False,
) -> ParquetBatches:
    """Returns this rank's batches of the rows of Parquet files.

    They are for `fit`, `evaluate` and `predict`; in loops of your own take
    `batches[n]` for each `n` below `len(batches)`, and call
    `batches.on_epoch_end()` then. Pass `shuffle=False` to `fit`: rows are
    shuffled here, and batches are read fastest in their order.

    Each rank reads a row group at a time, and keeps two. All ranks have equally
    many batches, and no row in common. The rows that are left over at the end
    of an epoch, fewer than `batch_size * size()`, are dropped; with a new order
    in every epoch they differ each time.

    With `tfring.callbacks.Checkpoint` a job goes on with the next batch. For
    `tfring.elastic.fit` pass `of_all_ranks=True`: it shares the batches out.

    Collective, unless `of_all_ranks`: every rank must call it, with the same
    arguments and the same files.

    Args:
        path: A folder, a file, or a list of files; with a scheme, such as
            "s3://bucket/folder", as pyarrow takes it. In a folder, names that
            begin with "." or "_" are left out.
        batch_size: The rows of a batch, on each rank.
        columns: The names of the columns to read; None reads all.
        shuffle: True gives each epoch another order of rows.
        seed: The seed of the orders.
        transform: Makes of a dict of arrays what `fit` takes as a batch, such
            as a tuple of inputs and targets. None leaves it a dict. The arrays
            are by column, of `batch_size` rows; a column of lists has one
            dimension more for each level of lists. Numbers keep their type.
        of_all_ranks: True if they are batches of all ranks.

    Raises:
        ImportError: pyarrow is not installed; `tfring[parquet]` has it.
        FileNotFoundError: There are no such files.
        RuntimeError: The job is elastic, and `of_all_ranks` False.
        ValueError: A column is not in the files, there are too few rows for a
            batch of each rank, `batch_size` is not positive, or, on every rank,
            the ranks have different files or arguments. Later, from a batch: a
            column has nulls, or lists of different lengths.

    Example:

    ```python
    rows = tfring.data.parquet(
        "s3://bucket/train",
        batch_size=256,
        transform=lambda row: (row["features"], row["label"]),
    )
    model.fit(rows, epochs=3, shuffle=False)
    ```
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "tfring.data.parquet takes the package pyarrow, which cannot be "
            f"imported ({error}): pip install pyarrow"
        ) from error
    if batch_size < 1:
        raise ValueError(
            f"parquet: batch_size must be positive, got {batch_size}."
        )
    files = _Files(path, columns)
    rank, size = 0, 1
    if not of_all_ranks and runtime.is_initialized():
        if runtime.may_grow():
            raise RuntimeError(
                "parquet: the ranks of an elastic job change, and with them "
                "their shares. Pass of_all_ranks=True, and the result to "
                "tfring.elastic.fit, which shares the batches out."
            )
        place = runtime.place()
        rank, size = place.rank, place.size
        gather_same(
            "parquet",
            {
                "files": files.digest(),
                "rows": sum(files.rows),
                "columns": files.columns,
                "batch_size": batch_size,
                "shuffle": shuffle,
                "seed": seed,
            },
        )
    steps = sum(files.rows) // (batch_size * size)
    if steps == 0:
        raise ValueError(
            f"parquet: {path} has {sum(files.rows)} rows, too few for a batch "
            f"of {batch_size} on each of {size} ranks."
        )
    return ParquetBatches(
        files,
        first_row=rank * steps * batch_size,
        steps=steps,
        batch_size=batch_size,
        seed=int(seed) if shuffle else None,
        transform=transform,
    )


class _Files:
    """The row groups of Parquet files."""

    def __init__(self, path: Any, columns: Sequence[str] | None) -> None:
        from pyarrow import dataset

        if isinstance(path, str | PathLike):
            path = fspath(path)
        found = dataset.dataset(path, format="parquet")
        unknown = sorted({*(columns or ())} - {*found.schema.names})
        if unknown:
            raise ValueError(
                f"parquet: {path} has no columns {unknown}. It has "
                f"{found.schema.names}."
            )
        self.columns = list(found.schema.names if columns is None else columns)
        self._schema = found.schema
        # Files are sorted by their names, so that all ranks number them alike.
        self._groups = [
            group
            for file in sorted(found.get_fragments(), key=lambda f: f.path)
            for group in file.split_by_row_group()
        ]
        self.rows = [group.row_groups[0].num_rows for group in self._groups]

    def digest(self) -> str:
        """Returns a fingerprint of the row groups, but not of their folder."""
        names = [group.path.rpartition("/")[2] for group in self._groups]
        facts = repr((names, self.rows, self._schema.to_string()))
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    def read(self, number: int) -> dict[str, Any]:
        """Returns the columns of a row group as arrays."""
        group = self._groups[number]
        table = group.to_table(columns=self.columns, schema=self._schema)
        where = f"row group {group.row_groups[0].id} of {group.path}"
        return {
            name: _as_array(
                table[name].combine_chunks(), f"column '{name}' in {where}"
            )
            for name in self.columns
        }


class ParquetBatches(keras.utils.PyDataset):
    """Batches of rows; see `tfring.data.parquet`, which makes it."""

    def __init__(
        self,
        files: _Files,
        *,
        first_row: int,
        steps: int,
        batch_size: int,
        seed: int | None,
        transform: Callable[[dict[str, Any]], Any] | None,
    ) -> None:
        super().__init__()
        self._files = files
        self._first_row = first_row
        self._steps = steps
        self._batch_size = batch_size
        self._seed = seed
        self._transform = transform
        self._lock = threading.Lock()
        self.set_epoch(0)

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> Any:
        first = self._first_row + index * self._batch_size
        # Keras may have several threads.
        with self._lock:
            parts = self._rows(first, first + self._batch_size)
        # Copy even a single part, because `transform` may change the batch in
        # place, and Keras asks for the first batches twice.
        batch = {
            name: np.concatenate([part[name] for part in parts])
            for name in self._files.columns
        }
        return batch if self._transform is None else self._transform(batch)

    def on_epoch_end(self) -> None:
        """Goes on to the order of the next epoch."""
        self.set_epoch(self._epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Goes on to the order of an epoch; the first has the number 0."""
        with self._lock:
            self._epoch = epoch
            count = len(self._files.rows)
            self._groups = list(range(count))
            if self._seed is not None:
                generator = np.random.default_rng([self._seed, epoch])
                self._groups = generator.permutation(count).tolist()
            # The number of each group's first row in the epoch, and of the end.
            self._starts = [0]
            for group in self._groups:
                self._starts.append(self._starts[-1] + self._files.rows[group])
            self._kept: dict[int, dict[str, Any]] = {}

    def _rows(self, begin: int, end: int) -> list[dict[str, Any]]:
        """Returns the rows of the epoch from `begin` to `end`, by group."""
        parts = []
        place = bisect.bisect_right(self._starts, begin) - 1
        while begin < end:
            start, stop = self._starts[place], self._starts[place + 1]
            rows = slice(begin - start, min(end, stop) - start)
            group = self._read(self._groups[place])
            parts.append({name: each[rows] for name, each in group.items()})
            begin, place = min(end, stop), place + 1
        return parts

    def _read(self, number: int) -> dict[str, Any]:
        if number not in self._kept:
            while len(self._kept) >= _GROUPS_KEPT:
                self._kept.pop(next(iter(self._kept)))
            group = self._files.read(number)
            if self._seed is not None:
                generator = np.random.default_rng(
                    [self._seed, self._epoch, number]
                )
                order = generator.permutation(self._files.rows[number])
                group = {name: each[order] for name, each in group.items()}
            self._kept[number] = group
        return self._kept[number]


def _as_array(column: Any, where: str) -> Any:
    """Returns a column as an array; lists of equal length become dimensions.

    Raises:
        ValueError: It has nulls, or lists of different lengths.
    """
    from pyarrow import compute, types

    if column.null_count:
        raise ValueError(
            f"parquet: {column.null_count} nulls are in {where}. Fill them, or "
            "leave those rows out, where the files are written."
        )
    kind = column.type
    if not (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    ):
        return column.to_numpy(zero_copy_only=False)
    lengths = compute.list_value_length(column).unique().to_pylist()
    if len(lengths) > 1:
        raise ValueError(
            f"parquet: lists of {min(lengths)} to {max(lengths)} elements are "
            f"in {where}. Pad them where the files are written."
        )
    elements = _as_array(column.flatten(), where)
    return elements.reshape(len(column), *lengths, *elements.shape[1:])
