"""Measures tfring on this machine, on the ranks that a launcher starts.

  tfringrun -np 2 tfring-bench allreduce --peers=mpi
  tfringrun -np 2 tfring-bench model --preset=resnet50 --json=resnet50.json
  tfringrun -np 2 tfring-bench step --model=mlp --jit
  tfringrun -np 2 tfring-bench roofline
  tfring-bench memory --model=vgg16 --policies=none,remat,all,conv,auto

  COLLECTIVE one collective, by size: 4 bytes to 64 MiB
  model      all gradients of a known model, as a training step reduces them
  step       training steps: all ranks, one alone, as many copies that do not
             communicate; each bound to one core
  roofline   the best that the memory can give: copy, add, and an allreduce
             that never waits
  memory     peak memory and time of training steps that offload feature maps,
             on one rank, or that share out the optimizer's states, on several

Results are checked before anything is timed. All contestants take turns in each
round. A time is the median over the rounds, of the slowest rank's time in each.
algbw is bytes by time; busbw is algbw times the share of the bytes that has to
leave each rank, as in nccl-tests. CPU is the time of all threads of a rank for
one operation; sent are the bytes of a rank's messages for it.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from absl import flags

import tfring
from tfring.bench import peers, plots, report, roofline, sizes
from tfring.bench.exchanges import exchanges
from tfring.bench.kinds import KINDS
from tfring.bench.measure import measure
from tfring.bench.statistics import Row

# Modules that need TensorFlow are imported in functions, so that flags are
# checked and --help is shown at once.

_COMMANDS = (*KINDS, "model", "step", "roofline", "memory")
# The models of each of these.
_MODELS = {"step": ("mlp", "cnn"), "memory": ("mlp", "vgg16", "unet", "gpt")}
_KNOWN_POLICIES = (
    *("none", "remat", "all", "conv", "auto"),
    *("whole", "sharded"),
)
_KNOWN_MODES = ("eager", "function", "jit", "inplace")

# Separate from the process's own flags, which include absl's.
_FLAGS = flags.FlagValues()  # type: ignore[no-untyped-call]
_FLAGS.set_gnu_getopt()  # flags may follow the command
# For --help, by the commands that take them.
_FLAGS_OF: dict[str, list[flags.FlagHolder[Any]]] = {}


def _flag(
    of: str, define: Callable[..., flags.FlagHolder[Any]], *words: Any
) -> flags.FlagHolder[Any]:
    flag = define(*words, flag_values=_FLAGS)
    _FLAGS_OF.setdefault(of, []).append(flag)
    return flag


_MIN_BYTES = _flag(
    "COLLECTIVE",
    flags.DEFINE_string,
    "min_bytes",
    "4",
    "The smallest size: 4, 64k, 16m or 1g, for example.",
)
_FACTOR = _flag(
    "COLLECTIVE",
    flags.DEFINE_integer,
    "factor",
    4,
    "Each size is the size before it times this.",
)
_DTYPE = _flag(
    "COLLECTIVE",
    flags.DEFINE_string,
    "dtype",
    "float32",
    "The tensors' dtype, by TensorFlow's name.",
)
_MAX_BYTES = _flag(
    "COLLECTIVE and roofline",
    flags.DEFINE_string,
    "max_bytes",
    "64m",
    "The largest size. roofline measures this one.",
)
_MODES = _flag(
    "COLLECTIVE and model",
    flags.DEFINE_list,
    "modes",
    "eager,function,inplace",
    "How tfring is called: eager, function (a tf.function), jit (one compiled "
    "by XLA), inplace (allreduces of tensors that nothing else uses).",
)
_PEERS = _flag(
    "COLLECTIVE and model",
    flags.DEFINE_list,
    "peers",
    "",
    "Other libraries to measure in the same rounds: mpi (mpi4py), gloo "
    "(PyTorch).",
)
_PRESET = _flag(
    "model",
    flags.DEFINE_enum,
    "preset",
    "resnet50",
    list(sizes.PRESETS),
    "The model whose gradients are reduced.",
)
_MODEL = _flag(
    "step and memory",
    flags.DEFINE_enum,
    "model",
    "mlp",
    sorted({model for models in _MODELS.values() for model in models}),
    "The model that is trained: mlp or cnn by step, all but cnn by memory.",
)
_BATCH_SIZE = _flag(
    "step and memory",
    flags.DEFINE_integer,
    "batch_size",
    64,
    "The samples of a step on each rank.",
)
_STEPS = _flag(
    "step and memory",
    flags.DEFINE_integer,
    "steps",
    10,
    "The training steps of one turn.",
)
_JIT = _flag(
    "step",
    flags.DEFINE_bool,
    "jit",
    False,
    "XLA compiles the step.",
)
_SYNC = _flag(
    "step",
    flags.DEFINE_list,
    "sync",
    "none",
    "How ranks train together, each with turns of its own: none (every step), "
    "localsgd:10, diloco:50 (rounds of so many steps), gossip:1.",
)
_COMPRESSION = _flag(
    "step",
    flags.DEFINE_list,
    "compression",
    "none",
    "Each with each --sync that takes it: none, fp16, bf16, powersgd:4 (of "
    "that rank).",
)
_WIDTH = _flag(
    "step",
    flags.DEFINE_integer,
    "width",
    2048,
    "The width of the hidden layers of mlp.",
)
_POLICIES = _flag(
    "memory",
    flags.DEFINE_list,
    "policies",
    "none,all,conv",
    "What is compared: none, remat (keras.remat of each block), tfring.Offload "
    "with its policies all, conv and auto, and Adam's states whole and "
    "sharded.",
)
_BUDGETS = _flag(
    "memory",
    flags.DEFINE_list,
    "budgets",
    "",
    "The bytes of feature maps that stay on the device under the policy auto: "
    "300m,600m, for example. Without it: a quarter, a half and three quarters "
    "of all.",
)
_ROUNDS = _flag(
    "every command",
    flags.DEFINE_integer,
    "rounds",
    9,
    "Each contestant has this many turns.",
)
_JSON = _flag(
    "every command",
    flags.DEFINE_string,
    "json",
    None,
    "Rank 0 writes all figures to this file.",
)
_PLOT = _flag(
    "every command",
    flags.DEFINE_string,
    "plot",
    None,
    "Rank 0 draws the figures into this PNG or SVG file. Needs matplotlib.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `tfring-bench` on this rank; returns its exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _FLAGS.unparse_flags()
    try:
        if {"-h", "--help"} & set(arguments) or not arguments:
            _FLAGS.mark_as_parsed()
            print(__doc__)
            print(f"COLLECTIVE is one of {', '.join(KINDS)}.")
            print(*_describe_flags(), sep="\n")
            return 0
        command = _parse(arguments)
    except (flags.Error, ValueError) as error:
        print(f"tfring-bench: {error}", file=sys.stderr)
        return 2
    return _run(command, arguments)


def _describe_flags() -> Iterator[str]:
    for command, its_flags in _FLAGS_OF.items():
        yield f"\nFlags of {command}:"
        for flag in its_flags:
            known = _FLAGS[flag.name]
            text = f"--{flag.name}: {known.help}"
            if known.default not in (None, []):
                default = str(known.default_as_str).strip("'")
                text += f" The default is {default}."
            yield textwrap.fill(
                text,
                width=78,
                initial_indent="  ",
                subsequent_indent="      ",
            )


def _parse(arguments: Sequence[str]) -> str:
    """Checks the command line, before TensorFlow is loaded for it."""
    _, *words = _FLAGS(["tfring-bench", *arguments])
    if len(words) != 1 or words[0] not in _COMMANDS:
        raise ValueError(
            f"expected one of the commands {', '.join(_COMMANDS)}, got "
            f"{' '.join(words) or 'none'}. --help says more."
        )
    _check_flags_of(words[0])
    numbers = (_ROUNDS, _STEPS, _BATCH_SIZE, _WIDTH)
    if any(each.value < 1 for each in numbers):
        raise ValueError(
            "--rounds, --steps, --batch_size and --width start from 1."
        )
    if _PLOT.value and find_spec("matplotlib") is None:
        raise ValueError(
            "--plot needs matplotlib, which is not installed: pip install "
            "matplotlib. --json keeps the figures without it."
        )
    for flag, known in (
        (_MODES, _KNOWN_MODES),
        (_PEERS, tuple(peers.PEERS)),
        (_POLICIES, _KNOWN_POLICIES),
    ):
        unknown = set(filter(None, flag.value)) - set(known)
        if unknown:
            raise ValueError(
                f"--{flag.name}: there is no {', '.join(sorted(unknown))}; "
                f"known are {', '.join(known)}."
            )
    models = _MODELS.get(words[0], (_MODEL.value,))
    if _MODEL.value not in models:
        raise ValueError(
            f"{words[0]} trains {' or '.join(models)}, got "
            f"--model={_MODEL.value}."
        )
    _sizes()
    _budgets()
    exchanges(_SYNC.value, _COMPRESSION.value)
    return str(words[0])


def _check_flags_of(command: str) -> None:
    kind = "COLLECTIVE" if command in KINDS else command
    for of, its_flags in _FLAGS_OF.items():
        if of == "every command" or kind in of.split(" and "):
            continue
        for flag in its_flags:
            if _FLAGS[flag.name].present:
                raise ValueError(
                    f"--{flag.name} is a flag of {of}, and not of {command}."
                )


def _budgets() -> list[int]:
    return [sizes.parse_bytes(text) for text in filter(None, _BUDGETS.value)]


def _sizes() -> list[int]:
    return sizes.steps(
        sizes.parse_bytes(_MIN_BYTES.value),
        sizes.parse_bytes(_MAX_BYTES.value),
        _FACTOR.value,
    )


def _run(command: str, arguments: Sequence[str]) -> int:
    if command == "step":
        from tfring.bench.step import use_one_core

        use_one_core()
    tfring.init()
    first = tfring.rank() == 0
    if tfring.size() == 1 and command not in ("roofline", "memory"):
        print(
            "tfring-bench: one rank has nobody to talk to. Start several: "
            f"tfringrun -np 2 tfring-bench {' '.join(arguments)}",
            file=sys.stderr,
        )
        return 2
    machine = report.machine(tfring.size())
    if first:
        print(report.describe(machine), flush=True)
    run = {
        "model": _model,
        "step": _step,
        "roofline": _roofline,
        "memory": _memory,
    }
    rows, summary = run[command]() if command in run else _collective(command)
    if first:
        print(report.table(rows), flush=True)
        for name, value in summary.items():
            print(f"{name}: {value:.3g}", flush=True)
        if _JSON.value:
            path = Path(_JSON.value)
            report.write_json(path, machine, arguments, rows, summary)
        if _PLOT.value:
            from tfring.bench import memory

            plot = memory.plot if command == "memory" else plots.plot
            plot(Path(_PLOT.value), report.describe(machine), rows)
    tfring.shutdown()
    return 0


_Measured = tuple[list[Row], dict[str, float]]


def _collective(kind: str) -> _Measured:
    from tfring.bench import collectives

    present = _present_peers(_DTYPE.value)
    all_sizes = _sizes()
    progress = _Progress(len(all_sizes) * _ROUNDS.value)
    rows = []
    for count_bytes in all_sizes:
        problem = collectives.Problem.of(
            kind, count_bytes, _DTYPE.value, tfring.rank(), tfring.size()
        )
        contestants = collectives.contestants(problem, _MODES.value)
        for peer in present:
            contestants += peers.contestants(
                peer, kind, [problem.mine], [problem.expected]
            )
        rows += measure(
            contestants,
            rounds=_ROUNDS.value,
            case=sizes.format_bytes(problem.count_bytes),
            count_bytes=problem.count_bytes,
            bus_factor=KINDS[kind].bus_factor(tfring.size()),
            progress=progress,
        )
    return rows, {}


def _model() -> _Measured:
    from tfring.bench import gradients

    mine, sums = gradients.arrays(
        sizes.PRESETS[_PRESET.value](), tfring.rank(), tfring.size()
    )
    count_bytes = sum(array.nbytes for array in mine)
    contestants = gradients.contestants(mine, sums, _MODES.value)
    for peer in _present_peers("float32"):
        contestants += peers.contestants(peer, "allreduce", mine, sums)
    rows = measure(
        contestants,
        rounds=_ROUNDS.value,
        case=f"{_PRESET.value}, {len(mine)} gradients, "
        f"{sizes.format_bytes(count_bytes)}",
        count_bytes=count_bytes,
        bus_factor=KINDS["allreduce"].bus_factor(tfring.size()),
        progress=_Progress(_ROUNDS.value),
    )
    return rows, {}


def _step() -> _Measured:
    from tfring.bench.step import measure_step

    return measure_step(
        _MODEL.value,
        batch_size=_BATCH_SIZE.value,
        jit_compile=_JIT.value,
        rounds=_ROUNDS.value,
        steps=_STEPS.value,
        width=_WIDTH.value,
        ways=exchanges(_SYNC.value, _COMPRESSION.value),
        progress=_Progress(_ROUNDS.value),
    )


def _roofline() -> _Measured:
    count_bytes = _sizes()[-1]
    rows = measure(
        roofline.contestants(count_bytes, tfring.size()),
        rounds=_ROUNDS.value,
        case=sizes.format_bytes(count_bytes),
        count_bytes=count_bytes,
        progress=_Progress(_ROUNDS.value),
    )
    return rows, {}


def _memory() -> _Measured:
    from tfring.bench.memory import measure_memory

    # Each budget is a contestant; by default there are three.
    policies = set(_POLICIES.value)
    contestants = len(policies - {"auto"})
    if "auto" in policies:
        contestants += len(_BUDGETS.value) or 3
    return measure_memory(
        _MODEL.value,
        batch_size=_BATCH_SIZE.value,
        policies=_POLICIES.value,
        budgets=_budgets(),
        rounds=_ROUNDS.value,
        steps=_STEPS.value,
        progress=_Progress(contestants * _ROUNDS.value),
    )


def _present_peers(dtype: str) -> list[str]:
    present = []
    for peer in filter(None, _PEERS.value):
        reason = peers.missing(peer, dtype)
        if reason is None:
            present.append(peer)
        elif tfring.rank() == 0:
            print(f"tfring-bench: without {reason}.", file=sys.stderr)
    return present


class _Progress:
    """A bar on rank 0, where people look; a line now and then in a file."""

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
