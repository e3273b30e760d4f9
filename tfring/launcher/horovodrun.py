"""The command `horovodrun`: `tfringrun --horovod`, with Horovod's options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from tfring.launcher import cli, command_line

# Options of Horovod 0.28.1 that tfringrun lacks; docs/horovod.md has the
# reasons.
_SWITCHES = (
    *("--gloo", "--mpi", "--jsrun", "--tcp", "--disable-cache"),
    *("--stall-check", "--autotune", "--no-autotune", "--torus-allreduce"),
    *("--no-torus-allreduce", "--hierarchical-allreduce"),
    *("--no-hierarchical-allreduce", "--hierarchical-allgather"),
    *("--no-hierarchical-allgather", "--timeline-mark-cycles"),
    *("--no-timeline-mark-cycles", "--mpi-threads-disable"),
    *("--no-mpi-threads-disable", "--log-with-timestamp"),
    *("--log-without-timestamp", "--log-hide-timestamp"),
    *("--no-log-hide-timestamp", "-prefix-timestamp"),
    "--prefix-output-with-timestamp",
)
_WITH_A_VALUE = (
    *("-p", "--ssh-port", "-i", "--ssh-identity-file", "--config-file"),
    *("--network-interfaces", "--network-interface", "--output-filename"),
    *("--cycle-time-ms", "--cache-capacity", "--thread-affinity"),
    *("--autotune-log-file", "--autotune-warmup-samples"),
    *("--autotune-steps-per-sample", "--autotune-bayes-opt-max-samples"),
    *("--autotune-gaussian-process-noise", "--reset-limit"),
    *("--mpi-args", "--binding-args", "--num-nccl-streams"),
    *("--gloo-timeout-seconds", "--log-level"),
)


class _Ignored(argparse.Action):
    """An option without effect, which `main` names in a warning."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del parser, values
        namespace.ignored = [*namespace.ignored, option_string]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `horovodrun`; returns its exit status, which is `tfringrun`'s."""
    options = _parser().parse_args(arguments)
    options.horovod = True
    options.elastic = options.elastic or any(
        value is not None
        for value in (
            options.min_ranks,
            options.max_ranks,
            options.host_discovery_script,
        )
    )
    if options.ignored:
        print(
            "horovodrun: tfring has nothing for these, and ignores them: "
            f"{', '.join(options.ignored)}.",
            file=sys.stderr,
        )
    return cli.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = command_line.parser("horovodrun")
    parser.set_defaults(ignored=[])
    for option, variable in (
        ("--start-timeout", "TFRING_INIT_TIMEOUT_SECONDS"),
        ("--elastic-timeout", "TFRING_ELASTIC_TIMEOUT_SECONDS"),
    ):
        parser.add_argument(option, dest=variable, help=argparse.SUPPRESS)
    for number, names in (
        (0, _SWITCHES),
        (1, _WITH_A_VALUE),
        (2, ["--blacklist-cooldown-range"]),
    ):
        for name in names:
            parser.add_argument(
                name, action=_Ignored, nargs=number, help=argparse.SUPPRESS
            )
    return parser


if __name__ == "__main__":
    sys.exit(main())
