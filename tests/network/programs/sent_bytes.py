"""The bytes of allreduces, by tfring's counter and by the link's own."""

import sys
from pathlib import Path

import tensorflow as tf

import tfring


def main():
    tfring.init()
    x = tf.ones([2 << 20])
    tfring.allreduce(x)  # The links are measured and open by now.
    tfring.barrier()
    counted, passed = tfring.statistics(), link_bytes()
    for _ in range(3):
        tfring.allreduce(x)
    tfring.barrier()
    more, passed = tfring.statistics(), link_bytes() - passed
    between = more.sent_bytes_between_machines
    before = counted.sent_bytes_between_machines
    sent = {kind: between[kind] - before[kind] for kind in between}
    print(
        f"rank {tfring.rank()} sent {sum(sent.values())} bytes, of them "
        f"{sent['allreduce']} in allreduces; its link sent {passed}",
        flush=True,
    )
    tfring.shutdown()


def link_bytes():
    """Returns the bytes that the interface has sent, by the kernel's count."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "eth0":
            return int(figures.split()[8])
    raise RuntimeError("this host has no eth0")


if __name__ == "__main__":
    sys.exit(main())
