"""After `init`, malloc keeps freed memory for reuse."""

import os

import pytest
from programs import run_python

# Prints the page faults of a second use of 64 MiB.
SCRIPT = """
import ctypes, resource, tfring
tfring.init()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
# Where huge pages are always on, a fault would bring 512 pages.
PR_SET_THP_DISABLE = 41
libc.prctl(PR_SET_THP_DISABLE, *map(ctypes.c_ulong, (1, 0, 0, 0)))

def faults(size=64 << 20):
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    memory = libc.malloc(size)
    libc.memset(memory, 1, size)
    libc.free(memory)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

faults()
print(faults())
"""
FAULTS = (64 << 20) // 4096


def faults(**environment):
    """The page faults of memory that has been freed and is taken again."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name != "GLIBC_TUNABLES" and not name.startswith("MALLOC_")
    }
    done = run_python("-c", SCRIPT, env={**inherited, **environment})
    return int(done.stdout)


def test_what_is_freed_is_kept():
    assert faults() < FAULTS / 100


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072"),
        *(
            pytest.param(*setting, marks=pytest.mark.thorough)
            for setting in (
                ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1048576"),
                ("MALLOC_MMAP_THRESHOLD_", "1048576"),
                ("MALLOC_TRIM_THRESHOLD_", "131072"),
            )
        ),
    ],
)
def test_settings_of_the_user_s_own_count(name, value):
    assert faults(**{name: value}) > FAULTS / 2
