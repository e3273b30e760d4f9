"""How ranks train together: --sync and --compression of the benchmarks."""

import argparse
import dataclasses
from collections.abc import Collection
from typing import Any

import tfring

# The classes of tfring, by the word on the command line.
_SYNCS = {"localsgd": "LocalSGD", "diloco": "DiLoCo", "gossip": "Gossip"}
_KNOWN_SYNCS = ("none", *_SYNCS)
_KNOWN_COMPRESSIONS = ("none", "fp16", "bf16", "powersgd")


@dataclasses.dataclass(frozen=True)
class Exchange:
    """How ranks synchronize, and how they compress.

    Attributes:
        sync: "none" or a key of `_SYNCS`.
        every: The number of steps in a round; 1 for "none".
        compression: "none", "fp16", "bf16" or "powersgd".
        rank: The rank of PowerSGD's factors.
    """

    sync: str
    every: int
    compression: str
    rank: int

    @property
    def name(self) -> str:
        """The words on the command line, which are empty for the default."""
        words = []
        if self.sync != "none":
            words.append(f"{self.sync}:{self.every}")
        if self.compression == "powersgd":
            words.append(f"powersgd:{self.rank}")
        elif self.compression != "none":
            words.append(self.compression)
        return ", ".join(words)

    def options(self, start: int = 0) -> dict[str, Any]:
        """Returns arguments of `tfring.DistributedOptimizer`.

        Args:
            start: The number of first steps that exchange whole gradients.
        """
        options: dict[str, Any] = {}
        if self.sync != "none":
            kind = getattr(tfring, _SYNCS[self.sync])
            options["sync"] = kind(every=self.every, start=start)
        if self.compression == "powersgd":
            options["compression"] = tfring.PowerSGD(self.rank, start=start)
        elif self.compression != "none":
            options["compression"] = getattr(
                tfring.Compression, self.compression
            )
        return options


def add_flags(
    parser: argparse.ArgumentParser,
    sync: str = "none",
    compression: str = "none",
) -> None:
    """Adds --sync and --compression, with their defaults."""
    parser.add_argument(
        "--sync",
        default=sync,
        help="each of these is measured: none (gradients in every step), "
        "localsgd:10, diloco:50 (rounds of so many steps), gossip:1; default: "
        "%(default)s",
    )
    parser.add_argument(
        "--compression",
        default=compression,
        help="each of these, with each --sync that takes it: none, fp16, bf16, "
        "powersgd:4 (of that rank); default: %(default)s",
    )


def exchanges(options: argparse.Namespace) -> list[Exchange]:
    """Returns the exchanges of the flags of `add_flags`.

    Raises:
        SystemExit: One of them is unknown, or no pair is possible.
    """
    found = [
        Exchange(
            *_parsed(sync, _KNOWN_SYNCS), *_parsed(each, _KNOWN_COMPRESSIONS)
        )
        for sync in options.sync.split(",")
        for each in options.compression.split(",")
    ]
    found = [each for each in found if _is_taken(each)]
    if not found:
        raise SystemExit(
            f"--sync={options.sync} takes no "
            f"--compression={options.compression}."
        )
    return found


def _parsed(text: str, known: Collection[str]) -> tuple[str, int]:
    """Returns the word and the number of a text such as "diloco:50"."""
    word, _, number = text.partition(":")
    if word not in known or (number and not number.isdecimal()):
        raise SystemExit(
            f"there is no {text}; known are {', '.join(known)}, some with a "
            "number as in diloco:50 and powersgd:4."
        )
    return word, int(number or 1)


def _is_taken(each: Exchange) -> bool:
    if each.compression == "powersgd":
        return each.sync == "none"
    return each.compression == "none" or each.sync != "gossip"
