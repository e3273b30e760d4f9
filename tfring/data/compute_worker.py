"""A compute job: `tfringrun -np N python -m tfring.data.compute_worker FILE`.

Its ranks run the workers of tf.data's service, and usually its dispatchers. It
writes FILE, which training jobs read, and ends when one of them calls
`TfDataServiceConfig.read(FILE).compute_client().shutdown()`.
"""

from __future__ import annotations

import argparse

from tfring._core import runtime
from tfring._keras.init import init
from tfring.data.compute_service import TfDataServiceConfig, compute_worker_fn


def main(
    dispatchers: int,
    dispatcher_side: str,
    configfile: str,
    timeout: int,
    trusted_network: bool = False,
) -> None:
    """Runs one rank of a compute job, to its end. Collective.

    Args:
        dispatchers: The number of dispatchers, of which the number of ranks
            must be a multiple.
        dispatcher_side: See `TfDataServiceConfig`.
        configfile: The file that rank 0 writes, and removes in the end.
        timeout: See `TfDataServiceConfig`.
        trusted_network: See `TfDataServiceConfig`; must be True.

    Raises:
        TimeoutError: The training side has started no dispatcher in time.
        ValueError: The network is not trusted, or the ranks cannot be shared
            out among the dispatchers.
    """
    init()
    size = runtime.size()
    if dispatchers < 1 or size % dispatchers:
        raise ValueError(
            f"compute_worker: {size} ranks cannot be shared out among "
            f"{dispatchers} dispatchers. Start a multiple of them."
        )
    compute_worker_fn(
        TfDataServiceConfig(
            dispatchers,
            size // dispatchers,
            dispatcher_side,
            (),
            configfile,
            timeout,
            trusted_network,
        )
    )


def parser() -> argparse.ArgumentParser:
    """Returns the parser, whose names are those of `main`'s arguments."""
    made = argparse.ArgumentParser(
        prog="python -m tfring.data.compute_worker",
        description="Runs a rank of a compute job for tf.data's service.",
    )
    made.add_argument("configfile", help="the file for training jobs")
    made.add_argument(
        "--dispatchers", type=int, default=1, help="1, or one for each rank"
    )
    made.add_argument(
        "--dispatcher-side", default="compute", help="compute or training"
    )
    made.add_argument(
        "--timeout",
        type=int,
        default=60,
        help="seconds that each rank waits for a file of another",
    )
    made.add_argument(
        "--trusted-network",
        action="store_true",
        help="needed: everybody who reaches this machine may read files as "
        "this user, as TensorFlow's servers have no passwords",
    )
    return made


if __name__ == "__main__":
    main(**vars(parser().parse_args()))
