"""A checkpoint in a folder is whole or not there, whatever fails."""

import contextlib
import errno
import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from tfring._checkpoint import restoring
from tfring._checkpoint.files import Files
from tfring._checkpoint.folder import FORMAT, Folder

CHANGES = (
    "make_folder",
    "write_tensors",
    "write",
    "sync",
    "rename",
    "remove",
    "remove_folder",
)


class Failing(Files):
    """Counts calls, and lets one of them fail."""

    def __init__(self, fails_at, how):
        self.calls = 0
        self.fails_at, self.how = fails_at, how

    def _call(self, name, *arguments):
        self.calls += 1
        if self.calls != self.fails_at:
            return getattr(super(), name)(*arguments)
        if self.how != "before":
            getattr(super(), name)(*arguments)
        if self.how == "short" and name in ("write", "write_tensors"):
            for path in arguments[0].parent.glob(f"{arguments[0].name}*"):
                path.write_bytes(path.read_bytes()[:-1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Recording(Files):
    """Notes all changes, for `disk_after`."""

    def __init__(self):
        self.log = []

    def _call(self, name, *arguments):
        getattr(super(), name)(*arguments)
        if name == "write_tensors":
            for path in sorted(
                arguments[0].parent.glob(f"{arguments[0].name}.*")
            ):
                self.log.append(("write", path, path.read_bytes()))
        else:
            self.log.append((name, *arguments))


for kind in (Failing, Recording):
    for name in CHANGES:
        setattr(
            kind,
            name,
            lambda self, *arguments, name=name: self._call(name, *arguments),
        )


def save(folder, number, ranks=2):
    """Saves as the ranks of a job do, and tidies up."""
    parts = []
    for rank in range(ranks):
        value = tf.constant([float(number), float(rank)])
        files = folder.write_part(number, rank, {"value": value})
        parts.append({"rank": rank, "files": files, "items": []})
    manifest = {"format": FORMAT, "step": number, "parts": parts}
    folder.finish(number, {**manifest, "ranks": ranks})
    folder.remove_old(number, 2)


def newest(path):
    """The number of the newest checkpoint that is whole, with its values."""
    folder = Folder(path)
    for number in folder.numbers():
        if folder.problem(number) is None:
            parts = folder.manifest(number)["parts"]
            for rank in range(len(parts)):
                read = folder.open_part(number, rank)
                assert list(read("value")) == [number, rank]
            return number
    return None


@pytest.mark.parametrize("how", ["before", "after", "short"])
def test_each_call_fails_once(tmp_path, how):
    before = tmp_path / "before"
    save(Folder(before), 1)
    save(Folder(before), 2)
    for fails_at in itertools.count(1):
        path = tmp_path / str(fails_at)
        shutil.copytree(before, path)
        files = Failing(fails_at, how)
        with contextlib.suppress(OSError):
            save(Folder(path, files), 3)
        if files.calls < fails_at:  # There are no more calls.
            assert files.calls > 15
            return
        assert newest(path) in (2, 3)
        # The next one has another number, and is complete.
        number = Folder(path).next_number()
        save(Folder(path), number)
        assert newest(path) == number >= 3
        assert set(Folder(path).numbers()) <= {2, 3, number}


def test_parts_are_read_by_tensorflow_alone(tmp_path):
    save(Folder(tmp_path), 1)
    prefix = tmp_path / "checkpoint-00000001" / "part-00001"
    reader = tf.train.load_checkpoint(str(prefix))
    assert list(reader.get_tensor("value")) == [1, 1]


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["data-00000-of-00001", "index"])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (Path.unlink, "is missing"),
        (cut, "bytes, and not"),
        (flip, "another checksum"),
    ],
)
def test_what_is_wrong_with_a_part_is_said(tmp_path, spoil, reason, name):
    folder = Folder(tmp_path)
    save(folder, 1)
    save(folder, 2)
    spoil(folder.of_number(2) / f"part-00001.{name}")
    assert folder.problem(2, rank=0, size=2) is None
    problem = folder.problem(2, rank=1, size=2)
    assert reason in problem
    assert f"part-00001.{name}" in problem
    assert newest(tmp_path) == 1


@pytest.mark.usefixtures("initialized")
def test_a_folder_without_a_whole_checkpoint_is_no_new_one(tmp_path):
    folder = Folder(tmp_path)
    assert restoring.find(folder, "auto") is None
    with pytest.raises(RuntimeError, match="there is no checkpoint, for the 1"):
        restoring.find(folder, "must")
    save(folder, 1)
    (folder.of_number(1) / "part-00001.index").unlink()
    wrong = r"no checkpoint is whole \(rank 0: .*part-00001.index is missing\)"
    with pytest.raises(RuntimeError, match=wrong):
        restoring.find(folder, "auto")
    assert restoring.find(folder, "never") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}'])
def test_a_manifest_that_cannot_be_read(tmp_path, text):
    folder = Folder(tmp_path)
    save(folder, 1)
    (folder.of_number(1) / "manifest.json").write_text(text)
    assert "its manifest cannot be read" in folder.problem(1)


def test_a_part_that_rank_0_does_not_see(tmp_path):
    folder, elsewhere = Folder(tmp_path / "a"), Folder(tmp_path / "b")
    tensors = {"value": tf.zeros(2)}
    parts = [
        {"rank": rank, "files": where.write_part(1, rank, tensors)}
        for rank, where in enumerate([folder, elsewhere])
    ]
    with pytest.raises(
        OSError, match=r"rank 1 has .* one that all ranks share"
    ):
        folder.finish(1, {"format": FORMAT, "parts": parts})
    assert folder.numbers() == []


class Disk:
    """What a power cut may leave, by the changes before it.

    What has been synced is there. Of the rest all, nothing, or the names
    without the contents may be there.
    """

    def __init__(self, log, root):
        self.root = root
        self.contents = {}  # what is in memory
        self.synced = {}  # what is on the disk, by the name on the disk
        self.kept = {}  # contents that are on the disk, by the name in memory
        for name, *arguments in log:
            getattr(self, name)(*arguments)

    def make_folder(self, path):
        pass

    def write(self, path, data):
        self.contents[path] = data
        self.kept.pop(path, None)

    def sync(self, path):
        if path in self.contents:
            self.kept[path] = self.contents[path]
            return
        gone = [p for p in self.synced if p.parent == path]
        for each in gone:
            del self.synced[each]
        for each in self.contents:
            if each.parent == path:
                self.synced[each] = self.kept.get(each, b"")

    def rename(self, path, target):
        self.contents[target] = self.contents.pop(path)
        if path in self.kept:
            self.kept[target] = self.kept.pop(path)

    def remove(self, path):
        self.contents.pop(path, None)
        self.kept.pop(path, None)

    def remove_folder(self, path):
        for each in [p for p in self.contents if p.parent == path]:
            self.remove(each)

    def leaves(self):
        """Yields the files that may be on the disk."""
        yield self.synced
        yield self.contents
        yield {path: self.kept.get(path, b"") for path in self.contents}
        yield {**self.contents, **self.synced}
        yield {**self.synced, **self.kept}


def write_disk(files, root, target):
    shutil.rmtree(target, ignore_errors=True)
    for path, data in files.items():
        place = target / path.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def test_a_power_cut_at_any_call(tmp_path):
    root, target = tmp_path / "root", tmp_path / "after"
    files = Recording()
    folder = Folder(root, files)
    done = []
    for number in (1, 2, 3):
        save(folder, number)
        done.append(len(files.log))
    # The last save also removes an old one.
    for cut_at in range(done[1], len(files.log) + 1):
        complete = sum(count <= cut_at for count in done)
        seen = []
        for left in Disk(files.log[:cut_at], root).leaves():
            if left in seen:
                continue
            seen.append(left)
            write_disk(left, root, target)
            assert newest(target) in (complete, complete + 1), cut_at


def test_without_a_sync_before_the_rename_the_power_cut_is_noticed(tmp_path):
    """The test above would fail: it sees a manifest without contents."""
    root, target = tmp_path / "root", tmp_path / "after"
    files = Recording()
    save(Folder(root, files), 1)
    log = [each for each in files.log if each[0] != "sync"]
    seen = set()
    for left in Disk(log, root).leaves():
        write_disk(left, root, target)
        seen.add(newest(target))
    assert None in seen


def test_numbers_grow(tmp_path):
    folder = Folder(tmp_path)
    assert folder.next_number() == 1
    for number in itertools.islice(itertools.count(9), 3):
        folder.write_part(number, 0, {"value": tf.zeros(2)})
    assert folder.numbers() == []
    assert folder.next_number() == 12
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "other").write_text(json.dumps({}))
    assert folder.next_number() == 12
