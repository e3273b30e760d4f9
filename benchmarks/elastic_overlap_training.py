"""Steps that are recorded in a timeline, for elastic_overlap.py.

elastic_overlap_training.py FOLDER MODEL BATCH_SIZE STEPS JIT
"""

import os
import sys
import time
from pathlib import Path

import tfring
from tfring.bench.step import trainer

WARM_UP_STEPS = 10


def use_one_core(number: int) -> None:
    """Binds this process to a core: hosts of one machine share them."""
    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        os.sched_setaffinity(int(thread), {cores[number % len(cores)]})


def main() -> None:
    folder = Path(sys.argv[1])
    batch_size, steps, jit = map(int, sys.argv[3:])
    tfring.init()
    use_one_core(tfring.rank())
    train = trainer(sys.argv[2], batch_size, bool(jit), 2048, {})
    for _ in range(WARM_UP_STEPS):
        train()
    tfring.start_timeline(str(folder / "timeline.json"))
    start = time.perf_counter()
    for _ in range(steps):
        train()
    seconds = (time.perf_counter() - start) / steps
    tfring.stop_timeline()
    if tfring.rank() == 0:
        (folder / "step_seconds").write_text(str(seconds))


if __name__ == "__main__":
    main()
