"""The calls of the file system that checkpoints make, in one class.

Tests replace it to let a call fail or a machine lose its power.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

_BLOCK_BYTES = 1 << 22


class Files:
    """The file system. Each method raises OSError if it fails."""

    def make_folder(self, path: Path) -> None:
        """Makes a folder and its parents, unless they exist."""
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """Returns the names in a folder; none if there is no such folder."""
        try:
            return [each.name for each in path.iterdir()]
        except FileNotFoundError:
            return []

    def write_tensors(self, prefix: Path, tensors: Mapping[str, Any]) -> None:
        """Writes a checkpoint of TensorFlow, with no graph of objects."""
        try:
            tf.raw_ops.SaveV2(
                prefix=str(prefix),
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=list(tensors.values()),
            )
        except tf.errors.OpError as error:
            raise OSError(f"{prefix}: {error.message}") from None

    def open_tensors(self, prefix: Path) -> Callable[[str], Any]:
        """Returns a function that reads a tensor by its name."""
        try:
            reader = tf.train.load_checkpoint(str(prefix))
        except (tf.errors.OpError, RuntimeError) as error:
            raise OSError(f"{prefix}: {error}") from None

        def read(name: str) -> Any:
            try:
                return np.asarray(reader.get_tensor(name))
            except (tf.errors.OpError, RuntimeError) as error:
                raise OSError(f"{prefix}, '{name}': {error}") from None

        return read

    def read_variant(self, prefix: Path, name: str) -> tf.Tensor:
        """Returns a tensor of variants, a dtype that NumPy lacks."""
        try:
            [value] = tf.raw_ops.RestoreV2(
                prefix=str(prefix),
                tensor_names=[name],
                shape_and_slices=[""],
                dtypes=[tf.variant],
            )
        except tf.errors.OpError as error:
            raise OSError(f"{prefix}, '{name}': {error.message}") from None
        return value

    def write(self, path: Path, data: bytes) -> None:
        """Writes a file."""
        path.write_bytes(data)

    def read(self, path: Path) -> bytes:
        """Returns the contents of a file."""
        return path.read_bytes()

    def size_bytes(self, path: Path) -> int:
        """Returns the size of a file."""
        return path.stat().st_size

    def crc32(self, path: Path) -> int:
        """Returns the checksum of a file."""
        checksum = 0
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                checksum = zlib.crc32(block, checksum)
        return checksum

    def sync(self, path: Path) -> None:
        """Waits until a file, or the names in a folder, are on the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        """Gives a file another name, in one step."""
        path.replace(target)

    def remove(self, path: Path) -> None:
        """Removes a file, which may be gone already."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Removes a folder with all in it; it may be gone already."""
        if path.exists():
            shutil.rmtree(path)
