"""Measures the best that this machine's memory can give.

  tfringrun -np 2 .venv/bin/python benchmarks/roofline.py

All ranks run at once, in NumPy, with one thread each. The last contestant,
"staged", does a ring allreduce's share of copies and additions between a tensor
in memory and a slot that stays in the cache, as ranks on one machine must. It
never waits: no allreduce through shared memory can be faster.
"""

from typing import Any

import numpy as np
import program

import tfring
from tfring.bench import sizes
from tfring.bench.measure import Contestant, Simple, measure

_SEGMENT_BYTES = 256 << 10


def contestants(count_bytes: int, size: int) -> list[Contestant]:
    """Returns contestants that work on `count_bytes` of float32."""
    source = np.ones(max(1, count_bytes // 4), np.float32)
    target = np.ones_like(source)
    slot = np.empty(_SEGMENT_BYTES // 4, np.float32)

    def copy() -> Any:
        np.copyto(target, source)
        return target

    def add() -> Any:
        return np.add(target, source, out=target)

    def staged(in_place: bool) -> Any:
        """Copies and adds what a rank of a ring of `size` ranks does.

        A chunk is a `size`-th of the tensor. Each chunk but the last is copied
        into the slot and added to the next chunk; the sum is copied into the
        slot and out of it.
        """
        chunk = len(source) // size
        initial = target if in_place else source
        for start in range(0, chunk * (size - 1), len(slot)):
            sent = slice(start, min(start + len(slot), chunk * (size - 1)))
            reduced = slice(sent.start + chunk, sent.stop + chunk)
            part = slot[: sent.stop - sent.start]
            # Reduce-scatter: send a part, then add the received part.
            np.copyto(part, initial[sent])
            np.add(initial[reduced], part, out=target[reduced])
            # Allgather.
            np.copyto(part, target[reduced])
            np.copyto(target[sent], part)
        return target

    return [
        Simple("copy", copy, np.ones_like(source)),
        Simple("add", add),
        Simple("staged", lambda: staged(in_place=False)),
        Simple("staged in place", lambda: staged(in_place=True)),
    ]


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument(
        "--bytes", type=sizes.parse_bytes, default="64m", help="of the tensor"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of each")
    options = parser.parse_args()
    tfring.init()
    rows = measure(
        contestants(options.bytes, tfring.size()),
        rounds=options.rounds,
        case=sizes.format_bytes(options.bytes),
        count_bytes=options.bytes,
    )
    program.show_rows(options, rows)


if __name__ == "__main__":
    main()
