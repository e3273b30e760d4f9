"""Files that killed jobs leave behind are removed, and no other files."""

import mmap
import os
import subprocess

from tfring.launcher import leftovers


def _make(path, old=True):
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    if old:
        os.utime(path, (0, 0))
    return path


def test_only_what_nobody_uses_is_removed(tmp_path):
    mine = f"sm_segment.{os.uname().nodename}.{os.geteuid()}"
    unused = _make(tmp_path / f"{mine}.1a0001.0")
    young = _make(tmp_path / f"{mine}.1b0001.0", old=False)
    mapped = _make(tmp_path / f"{mine}.1c0001.0")
    other_host = _make(tmp_path / f"sm_segment.x{mine[11:]}.1d0001.0")
    ended = subprocess.Popen(["true"])
    ended.wait()
    folders = [
        tmp_path / name
        for name in (f"ompi.{ended.pid}", f"ompi.{os.getpid()}", "ompi.x.0")
    ]
    for folder in folders:
        (folder / "a").mkdir(parents=True)
        os.utime(folder, (0, 0))
    with mapped.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        removed = leftovers.remove(tmp_path, tmp_path)
    assert set(removed) == {unused, folders[0]}
    for path in (young, mapped, other_host, *folders[1:]):
        assert path.exists()
    assert not unused.exists()
    assert not folders[0].exists()
