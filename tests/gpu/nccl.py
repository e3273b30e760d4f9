"""The engine by NCCL, at one rank: that the library is found, and is called.

Two ranks on one GPU are no ranks of NCCL.
"""

from __future__ import annotations

import numpy as np
import pytest

import bare_gpu


def test_sums(gpu, world, record_property):
    version = bare_gpu.nccl_version()
    if version == 0:
        pytest.skip("no NCCL of version 2.14 or later")
    record_property("NCCL", version)
    for dtype in ("float32", "float16", "int64"):
        for count in (1, 7, 1_000_003):
            a = np.arange(count).astype(dtype)
            memory = gpu.array(a)
            name = f"{dtype} of {count}"
            gpu.allreduce(name, [memory.address], [count], dtype)
            np.testing.assert_array_equal(memory.get(a), a)
    if bare_gpu.is_fake():
        assert bare_gpu.nccl_collectives() > 0
