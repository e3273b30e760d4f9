"""Measures collectives on this machine, on the ranks that a launcher starts.

  tfringrun -np 2 tfring-bench allreduce --peers=mpi
  tfringrun -np 2 tfring-bench model --preset=resnet50 --json=resnet50.json
  tfring-bench predict --ranks=512 --per_node=8 --gbits=100

COMMAND is a collective, which is measured from 4 bytes to 64 MiB; or `model`,
which reduces all gradients of a known model as a training step does; or
`predict`, which computes how long that would take on a cluster, without ranks.

Results are checked before anything is timed. All contestants take turns in each
round. A time is the median over the rounds of the slowest rank's time. algbw is
bytes per time; busbw is algbw times the share of the bytes that has to leave
each rank, as in nccl-tests. CPU is the time of all threads of a rank for one
operation, and sent are the bytes of the rank's messages.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import tfring
from tfring.bench import peers, plots, predict, report, sizes
from tfring.bench.kinds import KINDS
from tfring.bench.measure import measure
from tfring.bench.statistics import Row

# Functions import the modules that need TensorFlow, so that flags are checked
# and --help is shown at once.

_MODES = ("eager", "function", "jit", "inplace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `tfring-bench` on this rank; returns its exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = _parse(arguments)
    if options.command == "predict":
        # Otherwise TensorFlow prints a message when it is loaded.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
        print(predict.run(options))
        return 0
    tfring.init()
    first = tfring.rank() == 0
    if tfring.size() == 1:
        print(
            "tfring-bench: one rank has nobody to talk to. Start several: "
            f"tfringrun -np 2 tfring-bench {' '.join(arguments)}",
            file=sys.stderr,
        )
        return 2
    machine = report.machine(tfring.size())
    if first:
        print(report.describe(machine), flush=True)
    run = _model if options.command == "model" else _collective
    rows = run(options)
    if first:
        print(report.table(rows), flush=True)
        if options.json:
            report.write_json(options.json, machine, arguments, rows)
        if options.plot:
            plots.plot(options.plot, report.describe(machine), rows)
    tfring.shutdown()
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses and checks the command line, before TensorFlow is loaded."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "predict":
        if options.ranks % options.per_node:
            parser.error(
                f"--ranks={options.ranks} is no multiple of "
                f"--per_node={options.per_node}."
            )
        return options
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}.")
    if options.plot and find_spec("matplotlib") is None:
        parser.error(
            "--plot needs matplotlib, which is not installed: pip install "
            "matplotlib. --json keeps the figures without it."
        )
    if options.command != "model":
        try:
            options.sizes = sizes.steps(
                options.min_bytes, options.max_bytes, options.factor
            )
        except ValueError as error:
            parser.error(str(error))
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tfring-bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True
    )
    for kind in KINDS:
        command = commands.add_parser(kind, help=f"{kind}, by size")
        _add_measurement(command)
        _add_sizes(command)
    model = commands.add_parser("model", help="all gradients of a known model")
    _add_measurement(model)
    model.add_argument(
        "--preset",
        choices=sizes.PRESETS,
        default="resnet50",
        help="the model whose gradients are reduced; default: %(default)s",
    )
    predict.add_arguments(
        commands.add_parser(
            "predict", help="a step's communication on a cluster, without ranks"
        )
    )
    return parser


def _add_measurement(command: argparse.ArgumentParser) -> None:
    """Adds what all commands take that measure."""
    command.add_argument(
        "--modes",
        type=_words_of(_MODES),
        default="eager,function,inplace",
        help="how tfring is called: eager, function (a tf.function), jit (one "
        "compiled by XLA), inplace (allreduces of tensors that nothing else "
        "uses); default: %(default)s",
    )
    command.add_argument(
        "--peers",
        type=_words_of(tuple(peers.PEERS)),
        default="",
        help="other libraries to measure in the same rounds: mpi (mpi4py), "
        "gloo (PyTorch)",
    )
    command.add_argument(
        "--rounds",
        type=int,
        default=9,
        help="the turns of each contestant; default: %(default)s",
    )
    command.add_argument(
        "--json", type=Path, help="a file for all figures, by rank 0"
    )
    command.add_argument(
        "--plot",
        type=Path,
        help="a PNG or SVG file in which rank 0 draws the figures; needs "
        "matplotlib",
    )


def _add_sizes(command: argparse.ArgumentParser) -> None:
    """Adds what the tensors of a collective are."""
    for flag, default, text in (
        ("min", "4", "the smallest size: 4, 64k, 16m or 1g, for example"),
        ("max", "64m", "the largest size"),
    ):
        command.add_argument(
            f"--{flag}_bytes",
            type=sizes.parse_bytes,
            default=default,
            help=f"{text}; default: %(default)s",
        )
    command.add_argument(
        "--factor",
        type=int,
        default=4,
        help="each size is the size before it times this; default: %(default)s",
    )
    command.add_argument(
        "--dtype",
        default="float32",
        help="the tensors' dtype, by TensorFlow's name; default: %(default)s",
    )


def _words_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Returns a parser of known words with commas between them."""

    def words(text: str) -> list[str]:
        found = list(filter(None, text.split(",")))
        if unknown := sorted(set(found) - set(known)):
            raise argparse.ArgumentTypeError(
                f"there is no {', '.join(unknown)}; known are "
                f"{', '.join(known)}."
            )
        return found

    return words


def _collective(options: argparse.Namespace) -> list[Row]:
    from tfring.bench import collectives

    kind = options.command
    present = _present_peers(options.peers, options.dtype)
    progress = _Progress(len(options.sizes) * options.rounds)
    rows = []
    for count_bytes in options.sizes:
        problem = collectives.Problem.of(
            kind, count_bytes, options.dtype, tfring.rank(), tfring.size()
        )
        contestants = collectives.contestants(problem, options.modes)
        for peer in present:
            contestants += peers.contestants(
                peer, kind, [problem.mine], [problem.expected]
            )
        rows += measure(
            contestants,
            rounds=options.rounds,
            case=sizes.format_bytes(problem.count_bytes),
            count_bytes=problem.count_bytes,
            bus_factor=KINDS[kind].bus_factor(tfring.size()),
            progress=progress,
        )
    return rows


def _model(options: argparse.Namespace) -> list[Row]:
    from tfring.bench import gradients

    mine, sums = gradients.arrays(
        sizes.PRESETS[options.preset](), tfring.rank(), tfring.size()
    )
    count_bytes = sum(array.nbytes for array in mine)
    contestants = gradients.contestants(mine, sums, options.modes)
    for peer in _present_peers(options.peers, "float32"):
        contestants += peers.contestants(peer, "allreduce", mine, sums)
    return measure(
        contestants,
        rounds=options.rounds,
        case=f"{options.preset}, {len(mine)} gradients, "
        f"{sizes.format_bytes(count_bytes)}",
        count_bytes=count_bytes,
        bus_factor=KINDS["allreduce"].bus_factor(tfring.size()),
        progress=_Progress(options.rounds),
    )


def _present_peers(names: Sequence[str], dtype: str) -> list[str]:
    present = []
    for peer in names:
        reason = peers.missing(peer, dtype)
        if reason is None:
            present.append(peer)
        elif tfring.rank() == 0:
            print(f"tfring-bench: without {reason}.", file=sys.stderr)
    return present


class _Progress:
    """A bar on rank 0's terminal; in a file, a line every five seconds."""

    def __init__(self, total: int) -> None:
        import keras

        self._bar = None
        if tfring.rank() == 0:
            self._bar = keras.utils.Progbar(
                total, interval=0.1 if sys.stdout.isatty() else 5
            )

    def __call__(self) -> None:
        if self._bar is not None:
            self._bar.add(1)
