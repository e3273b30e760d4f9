"""Steps that are recorded in a timeline, for elastic_overlap.py.

elastic_overlap_training.py FOLDER MODEL BATCH_SIZE STEPS JIT
"""

import sys
import time
from pathlib import Path

import steps

import tfring

WARM_UP_STEPS = 10


def main() -> None:
    folder = Path(sys.argv[1])
    batch_size, count, jit = map(int, sys.argv[3:])
    tfring.init()
    steps.bind(tfring.rank())
    train = steps.trainer(sys.argv[2], batch_size, bool(jit), 2048, {})
    for _ in range(WARM_UP_STEPS):
        train()
    tfring.start_timeline(str(folder / "timeline.json"))
    start = time.perf_counter()
    for _ in range(count):
        train()
    seconds = (time.perf_counter() - start) / count
    tfring.stop_timeline()
    if tfring.rank() == 0:
        (folder / "step_seconds").write_text(str(seconds))


if __name__ == "__main__":
    main()
