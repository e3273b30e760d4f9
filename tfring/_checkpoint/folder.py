"""The folder of a job's checkpoints: parts, and a manifest that comes last.

    FOLDER/checkpoint-00000007/part-00000.index
                               part-00000.data-00000-of-00001
                               part-00001...
                               manifest.json

Note [Whole or not there]: a checkpoint exists once its manifest does. Each rank
writes its part, and syncs the part's files and the folder that has their names.
When all ranks have reported that, the manifest is written under another name,
synced and renamed, and the folder is synced again. So a process or a machine
may stop at any byte: either there is no manifest yet, or all files that it
lists are on the disk. Checkpoints are numbered, and no number is used twice, so
no part of an interrupted checkpoint is taken for a part of a later one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfring._checkpoint.files import Files

FORMAT = 1
_MANIFEST = "manifest.json"
_FOLDER_NAME = re.compile(r"checkpoint-(\d{8})")


class PartFile(NamedTuple):
    """A manifest's entry for a file of a part."""

    name: str
    size_bytes: int
    crc32: int


class Folder:
    """The checkpoints in a folder. No method is collective.

    Args:
        path: The folder, which need not exist yet.
        files: The file system.
    """

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()

    def of_number(self, number: int) -> Path:
        """Returns the folder of one checkpoint."""
        return self.path / f"checkpoint-{number:08d}"

    def numbers(self) -> list[int]:
        """Returns the numbers of complete checkpoints, the newest first."""
        return [
            number
            for number in reversed(self._all_numbers())
            if _MANIFEST in self._files.names(self.of_number(number))
        ]

    def next_number(self) -> int:
        """Returns a number that no checkpoint has had, complete or not."""
        return max(self._all_numbers(), default=0) + 1

    def _all_numbers(self) -> list[int]:
        found = map(_FOLDER_NAME.fullmatch, self._files.names(self.path))
        return sorted(int(match[1]) for match in found if match)

    def write_part(
        self, number: int, rank: int, tensors: Mapping[str, Any]
    ) -> list[PartFile]:
        """Writes a rank's part, and waits until it is on the disk.

        Raises:
            OSError: It has not been written.
        """
        folder = self.of_number(number)
        self._files.make_folder(folder)
        for above in (self.path, self.path.parent):
            self._files.sync(above)
        prefix = _prefix(folder, rank)
        self._files.write_tensors(prefix, tensors)
        written = []
        for name in sorted(self._files.names(folder)):
            if not name.startswith(f"{prefix.name}."):
                continue
            path = folder / name
            self._files.sync(path)
            written.append(
                PartFile(
                    name, self._files.size_bytes(path), self._files.crc32(path)
                )
            )
        self._files.sync(folder)
        return written

    def finish(self, number: int, manifest: Mapping[str, Any]) -> None:
        """Writes the manifest; see Note [Whole or not there].

        Raises:
            OSError: It has not been written, or another rank's part is not in
                this folder.
        """
        folder = self.of_number(number)
        for part in manifest["parts"]:
            for file in map(PartFile._make, part["files"]):
                self._check_is_here(folder / file.name, part["rank"], file)
        new = folder / f"{_MANIFEST}.new"
        self._files.write(new, json.dumps(manifest).encode())
        self._files.sync(new)
        self._files.rename(new, folder / _MANIFEST)
        self._files.sync(folder)

    def _check_is_here(self, path: Path, rank: int, file: PartFile) -> None:
        try:
            found = self._files.size_bytes(path)
        except FileNotFoundError:
            raise OSError(
                f"rank {rank} has written {path}, and rank 0 does not see it. "
                "The folder must be one that all ranks share, such as one on "
                "a network file system"
            ) from None
        if found != file.size_bytes:
            raise OSError(
                f"rank {rank} has written {file.size_bytes} bytes to {path}, "
                f"and rank 0 sees {found}"
            )

    def manifest(self, number: int) -> dict[str, Any]:
        """Returns the manifest of a checkpoint.

        Raises:
            OSError: It cannot be read.
            ValueError: It is not one that this version of tfring can read.
        """
        path = self.of_number(number) / _MANIFEST
        found = json.loads(self._files.read(path))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(
                f"{path} is not a manifest of format {FORMAT}, which this "
                "version of tfring reads"
            )
        return found

    def problem(self, number: int, rank: int = 0, size: int = 1) -> str | None:
        """Returns what is wrong with a checkpoint, or None if nothing is.

        `rank` checks its share of the parts if `size` ranks share them out.
        """
        folder = self.of_number(number)
        try:
            parts = self.manifest(number)["parts"]
        except (OSError, ValueError, KeyError) as error:
            return f"its manifest cannot be read: {error}"
        for part in parts[rank::size]:
            for file in map(PartFile._make, part["files"]):
                wrong = self._wrong_with(folder / file.name, file)
                if wrong is not None:
                    return f"{folder / file.name} {wrong}"
        return None

    def _wrong_with(self, path: Path, file: PartFile) -> str | None:
        try:
            found = self._files.size_bytes(path)
            if found != file.size_bytes:
                return f"has {found} bytes, and not {file.size_bytes}"
            if self._files.crc32(path) != file.crc32:
                return "has another checksum than the manifest says"
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read: {error}"
        return None

    def open_part(self, number: int, rank: int) -> Callable[[str], Any]:
        """Returns a function that reads a tensor of a rank's part by its name.

        Raises:
            OSError: The part cannot be read.
        """
        return self._files.open_tensors(_prefix(self.of_number(number), rank))

    def read_variant(self, number: int, rank: int, name: str) -> Any:
        """Returns a tensor of variants of a rank's part.

        Raises:
            OSError: The part cannot be read.
        """
        prefix = _prefix(self.of_number(number), rank)
        return self._files.read_variant(prefix, name)

    def remove(self, number: int) -> None:
        """Removes a checkpoint; its manifest goes first.

        Raises:
            OSError: Some of it is still there.
        """
        folder = self.of_number(number)
        if _MANIFEST in self._files.names(folder):
            self._files.remove(folder / _MANIFEST)
            self._files.sync(folder)
        self._files.remove_folder(folder)

    def remove_old(self, newest: int, keep: int) -> None:
        """Removes all but the newest checkpoints, and incomplete ones.

        Args:
            newest: The number of the last checkpoint, which is complete.
            keep: How many complete checkpoints remain.

        Raises:
            OSError: Some are still there.
        """
        kept = self.numbers()[:keep]
        for number in self._all_numbers():
            if number < newest and number not in kept:
                self.remove(number)


def _prefix(folder: Path, rank: int) -> Path:
    return folder / f"part-{rank:05d}"
