"""The options of `tfringrun`.

It uses argparse, while the examples use absl.flags: everything from the user's
command on belongs to that command, even if it looks like a flag. absl would
parse the whole line, or require a `--` before the command.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping
from pathlib import Path

from tfring.launcher import hosts as hosts_lib
from tfring.launcher.hosts import Host

_DESCRIPTION = """\
Runs a command as the ranks of one job:

  tfringrun -np 4 python train.py
  tfringrun -np 8 -H node1:4,node2:4 python train.py

Without -H or --hostfile all ranks run on this machine, or on those that the
batch system has allotted. On other machines, which must be reachable by ssh
without a password, the command and this Python must exist at the same paths.
They get this shell's environment, except what belongs to a login or a machine.
The ranks' standard input is empty.
"""

_EPILOG = """\
Each rank is bound to its share of this machine's cores if that is two or more,
and TensorFlow then starts a thread for each. With fewer, or on other machines,
ranks are not bound and each starts a thread for every core; set
TF_NUM_INTRAOP_THREADS if that is too many.

tfring.init gives each rank one GPU of its machine, unless the script chooses.
Where ranks share one, TensorFlow takes its memory as it grows
(TF_FORCE_GPU_ALLOW_GROWTH=true), unless that is set.

Memory comes in huge pages where the kernel has them for those who ask
(GLIBC_TUNABLES=glibc.malloc.hugetlb=1), unless GLIBC_TUNABLES is set.

The ranks get SIGUSR1 and SIGUSR2. They also get SIGINT and SIGTERM, and have a
grace to save and to end in; a second SIGINT or SIGTERM ends them at once.

The exit status is 0, or that of the rank that failed first: 128 + n if signal n
ended it. It is 1 if a host was lost or cannot be reached. After signal n it is
128 + n, unless all ranks have ended with one status within the grace.
"""

_MEBIBYTE = 1 << 20
_DEFAULT_GRACE_SECONDS = 30.0


def parser(command: str = "tfringrun") -> argparse.ArgumentParser:
    """Returns the parser of `tfringrun`, under the name of a command."""
    from tfring import __version__

    parser = argparse.ArgumentParser(
        prog=command,
        usage=f"{command} [-np N] [-H HOST:SLOTS,...] [options] command ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-v", "--version", action="version", version=f"tfringrun {__version__}"
    )
    _add_ranks(parser)
    _add_elastic(parser)
    parser.add_argument(
        "--grace",
        dest="TFRING_GRACE_SECONDS",
        metavar="SECONDS",
        help="how long the ranks have after SIGINT or SIGTERM to save and to "
        f"end; by default {_DEFAULT_GRACE_SECONDS:g} "
        "(TFRING_GRACE_SECONDS)",
    )
    parser.add_argument(
        "--horovod",
        action="store_true",
        help="let the ranks import tfring by the name horovod",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="say how the job is started, and where the seconds of its start "
        "and end went; show MPI's own words when a rank fails",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "-cb",
        "--check-build",
        action="store_true",
        help="say what this build of tfring has, and exit",
    )
    what.add_argument(
        "--self-test",
        action="store_true",
        help="run each collective on these ranks, and say what works and how "
        "fast the links are",
    )
    _add_settings(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS
    )
    return parser


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which ranks there are, and where."""
    parser.add_argument(
        "-np",
        "-n",
        "--num-proc",
        dest="ranks",
        type=_positive,
        metavar="N",
        help="number of ranks; by default one for each slot of the hosts",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-H",
        "--hosts",
        type=_hosts,
        metavar="HOST:SLOTS,...",
        help="machines and how many ranks each takes: node1:4,node2:4",
    )
    where.add_argument(
        "-hostfile",
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="the same as a file with a line for each: 'node1 slots=4'",
    )
    parser.add_argument(
        "-x",
        dest="exports",
        action="append",
        default=[],
        type=_variable,
        metavar="NAME[=VALUE]",
        help="give all ranks this environment variable, with this shell's "
        "value or the one here; may be repeated",
    )


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="do not end the job when ranks or machines are lost: "
        "tfring.elastic.run goes on with the others, and new ones join",
    )
    group = parser.add_argument_group(
        "elastic jobs",
        "With --elastic. The ranks use no MPI.",
    )
    for option, meaning in (
        ("min", "the fewest ranks to train with; by default 1"),
        ("max", "the most ranks; by default one for each slot"),
    ):
        group.add_argument(
            f"--{option}-np",
            f"--{option}-num-proc",
            dest=f"{option}_ranks",
            type=_positive,
            metavar="N",
            help=meaning,
        )
    group.add_argument(
        "--host-discovery-script",
        metavar="FILE",
        help="a program that prints the machines as lines, 'node1:4'; it runs "
        "each second, in place of -H",
    )
    group.add_argument(
        "--spares",
        type=_positive,
        metavar="K",
        help="start K ranks more, which wait to take a lost one's place",
    )
    group.add_argument(
        "--rendezvous",
        type=_address,
        metavar="HOST:PORT",
        help="in place of -H, where a batch system starts this line on each "
        "machine: the one whose address this is leads the job, the others "
        "join it; takes TFRING_ELASTIC_TOKEN",
    )
    group.add_argument(
        "--slots-per-host",
        type=_positive,
        metavar="N",
        help="with --rendezvous: how many ranks this machine takes; by "
        "default 1",
    )


def check_elastic(options: argparse.Namespace) -> None:
    """Checks the options of elastic jobs.

    Raises:
        ValueError: An option is for elastic jobs, and `--elastic` is missing.
    """
    asked = [
        name
        for name, value in (
            ("--min-np", options.min_ranks),
            ("--max-np", options.max_ranks),
            ("--host-discovery-script", options.host_discovery_script),
            ("--spares", options.spares),
            ("--rendezvous", options.rendezvous),
            ("--slots-per-host", options.slots_per_host),
        )
        if value is not None
    ]
    if options.slots_per_host is not None and options.rendezvous is None:
        raise ValueError(
            "--slots-per-host is for --rendezvous. Elsewhere -H and the "
            "script have each machine's, as in node1:4."
        )
    if asked and not options.elastic:
        raise ValueError(
            f"{asked[0]} is for elastic jobs: pass --elastic, too."
        )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the options of horovodrun that are environment variables here."""
    group = parser.add_argument_group(
        "settings", "As environment variables, and as horovodrun has them."
    )

    def setting(option: str, metavar: str, variable: str) -> None:
        group.add_argument(
            option, dest=variable, metavar=metavar, help=variable
        )

    group.add_argument(
        "--fusion-threshold-mb",
        dest="TFRING_FUSION_THRESHOLD",
        type=lambda text: str(_whole(text, 0) * _MEBIBYTE),
        metavar="MIB",
        help="TFRING_FUSION_THRESHOLD, in MiB",
    )
    setting("--timeline-filename", "FILE", "TFRING_TIMELINE")
    setting(
        "--stall-check-warning-time-seconds",
        "SECONDS",
        "TFRING_STALL_CHECK_TIME_SECONDS",
    )
    setting(
        "--stall-check-shutdown-time-seconds",
        "SECONDS",
        "TFRING_STALL_SHUTDOWN_TIME_SECONDS",
    )
    group.add_argument(
        "--no-stall-check",
        action="store_true",
        help="both times 0: wait forever, and do not warn",
    )


def settings(options: argparse.Namespace) -> dict[str, str]:
    """Returns the environment variables that the options set."""
    found = {
        name: value
        for name, value in vars(options).items()
        if name.startswith("TFRING_") and value is not None
    }
    if options.no_stall_check:
        found["TFRING_STALL_CHECK_TIME_SECONDS"] = "0"
        found["TFRING_STALL_SHUTDOWN_TIME_SECONDS"] = "0"
    return found


def grace_seconds(environment: Mapping[str, str]) -> float:
    """Returns how long the ranks have after a signal that asks them to end.

    Raises:
        ValueError: The setting is no number of seconds.
    """
    text = environment.get("TFRING_GRACE_SECONDS", "")
    try:
        seconds = float(text) if text else _DEFAULT_GRACE_SECONDS
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 1e7:
        raise ValueError(
            f"TFRING_GRACE_SECONDS='{text}' (--grace) must be a number of "
            "seconds from 0."
        )
    return seconds


def _positive(text: str) -> int:
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from {least}, got {text!r}."
        )
    return int(text)


def _hosts(text: str) -> list[Host]:
    try:
        return hosts_lib.parse_hosts(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(
            f"expected HOST:PORT, as in node1:29500, got {text!r}."
        )
    return host, int(port)


def _variable(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"expected NAME or NAME=VALUE, got {text!r}."
        )
    return name, value if equals else None
