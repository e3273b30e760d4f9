"""Datasets that are prepared by other processes, with tf.data's service.

TensorFlow has the servers (`tf.data.experimental.service`): workers run a
dataset's operations, and a dispatcher assigns them work. This module lets the
ranks of two jobs start them and find each other, with Horovod's names:

    tfringrun -np 4 python -m tfring.data.compute_worker /shared/config.json
    tfringrun -np 2 python train.py   # reads that file

Both jobs find everything by files: by the config file, and by some beside it
if dispatchers run on the training side. The compute job ends when the config
file is removed.

TensorFlow's servers ask nobody for a password, and whoever reaches them has
them run operations, such as reading files, as the job's user. So a compute job
serves its own machine alone, by the loopback interface; other users who are
logged in there still reach it. `--trusted-network` lets jobs span machines: all
servers then listen on all interfaces, and everybody on those networks is
trusted. Nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from tfring._core import runtime
from tfring._ops.barrier import barrier
from tfring._ops.objects import allgather_object
from tfring._training.init import init
from tfring.data._loopback import bind_to_loopback

_LOOK_SECONDS = 0.25


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """How a compute job is made, and where it is found.

    Attributes:
        dispatchers: 1 for all training ranks together, or one for each.
        workers_per_dispatcher: How many workers each has.
        dispatcher_side: Where dispatchers run: "compute" or "training".
        addresses: The dispatchers, as "grpc://host:port"; none where they run
            on the training side.
        configfile: The config file, in a folder that both jobs can write.
        timeout: Seconds that each rank waits for a file of another.
        trusted_network: If true, the dispatchers and workers listen on all
            interfaces, for everybody who reaches them. Otherwise on the
            loopback interface: both jobs then run on one machine.

    Raises:
        ValueError: `dispatcher_side` is neither of them.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Sequence[str]
    configfile: str
    timeout: int = 60
    trusted_network: bool = False

    def __post_init__(self) -> None:
        if self.dispatcher_side not in ("compute", "training"):
            raise ValueError(
                "TfDataServiceConfig: dispatcher_side must be 'compute' or "
                f"'training', got {self.dispatcher_side!r}."
            )

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """The compute job, for `shutdown()`; `verbose` has no effect."""
        return ComputeClient(self.configfile)

    def write(self) -> None:
        """Writes the config file, which only this user may read."""
        _write(Path(self.configfile), json.dumps(dataclasses.asdict(self)))

    @staticmethod
    def read(
        filename: str, wait_for_file_creation: bool = False
    ) -> TfDataServiceConfig:
        """Reads the config file of a compute job.

        Args:
            filename: The file.
            wait_for_file_creation: If true, wait until the file exists.
        """
        path = Path(filename)
        while wait_for_file_creation and not path.exists():
            time.sleep(_LOOK_SECONDS)
        fields = json.loads(path.read_text())
        return TfDataServiceConfig(**{**fields, "configfile": filename})


@dataclasses.dataclass(frozen=True)
class ComputeClient:
    """A compute job, as a training job sees it."""

    configfile: str

    def shutdown(self) -> None:
        """Ends the compute job, by removing its config file."""
        Path(self.configfile).unlink(missing_ok=True)


@contextlib.contextmanager
def tf_data_service(
    compute_config: TfDataServiceConfig, rank: int
) -> Iterator[str]:
    """The address of the dispatcher that a training rank uses.

    With `dispatcher_side="training"` the dispatcher runs here, on rank 0 or on
    every rank, until the context ends: iterate over the dataset within it. It
    serves this machine alone, unless the network is trusted.

    Args:
        compute_config: The configuration that the compute job has written.
        rank: The training job's rank.

    Yields:
        "grpc://host:port", for `tf.data.experimental.service.distribute`.

    Raises:
        ConnectionError: There is no such compute job (any more).
        IndexError: There are several dispatchers, but none for this rank.
        RuntimeError: The dispatcher cannot be kept to this machine, or the
            compute job has had one of this rank.
        TimeoutError: The dispatcher or its workers have not started in time.
    """
    config = compute_config
    several = config.dispatchers > 1
    dispatcher = rank if several else 0
    if dispatcher >= config.dispatchers:
        raise IndexError(
            f"tf_data_service: rank {rank} has none of the "
            f"{config.dispatchers} dispatchers. Start the compute job with "
            "--dispatchers 1, or one for each training rank."
        )
    with contextlib.ExitStack() as servers:
        if config.dispatcher_side == "compute":
            address = config.addresses[dispatcher]
        else:
            path = _beside(config, f"dispatcher{dispatcher}")
            if several or rank == 0:
                if path.exists():
                    raise RuntimeError(
                        f"tf_data_service: {path} exists, and the workers know "
                        "no other dispatcher. Start the compute job anew."
                    )
                _write(path, servers.enter_context(_dispatcher(config)))
            address = _wait_for(path, config)
            _wait_for(_beside(config, "workers"), config)
        _check_answers(address, config)
        yield address


def send_to_data_service(
    dataset: tf.data.Dataset,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> tf.data.Dataset:
    """Lets the compute job run a dataset's operations up to here.

    Also a method of every `tf.data.Dataset`. Not a collective, but each rank
    that calls it gets its own elements.

    Args:
        dataset: The dataset; what follows the result runs on this rank.
        compute_config: The configuration that the compute job has written.
        rank: The training job's rank.
        size: Its size; needed for `round_robin`.
        processing_mode: See `tf.data.experimental.service.distribute`. With
            "distributed_epoch" the workers share out the dataset's elements;
            with "parallel_epochs" each has all of them.
        reuse_dataset: If true, all ranks of a dispatcher share one run of the
            dataset, each taking other elements than the others. Otherwise each
            has one for itself.
        round_robin: With `reuse_dataset`, whether ranks take turns in a fixed
            order; `dataset` must be infinite.

    Returns:
        The dataset, in whatever order the workers are ready.

    Raises:
        RuntimeError: The dispatchers are on the training side: use
            `tf_data_service`.
        ConnectionError: See `tf_data_service`.
        IndexError: See `tf_data_service`.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service: the dispatchers run on the training side. "
            "Use `with tf_data_service(...) as address`, and "
            "tf.data.experimental.service.distribute."
        )
    takes_turns = reuse_dataset and round_robin
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name="job" if reuse_dataset else None,
                consumer_index=rank if takes_turns else None,
                num_consumers=size if takes_turns else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Serves as a rank of a compute job, until the config file is removed.

    Every rank runs a worker. With `dispatcher_side="compute"` the first of each
    dispatcher's runs that, too. Rank 0 writes the config file, and removes it
    if the job fails. Collective: every rank of the job must call it;
    `tfring.data.compute_worker` does all of it.

    Args:
        compute_config: The same on every rank, without addresses.

    Raises:
        RuntimeError: The servers cannot be kept to this machine.
        TimeoutError: The training side has started no dispatcher in time.
        ValueError: The ranks are on several machines, and the network is not
            trusted.
    """
    init()
    config = compute_config
    rank, size = runtime.rank(), runtime.size()
    local_size = runtime.local_size()
    if size != local_size and not config.trusted_network:
        raise ValueError(
            f"the compute job has {size} ranks, {local_size} of them on this "
            "machine. TensorFlow's data service has no passwords: whoever "
            "reaches it over a network reads files as the job's user. Run it "
            "on one machine, or where everybody is trusted pass "
            "--trusted-network (trusted_network=True)."
        )
    dispatcher, place = divmod(rank, config.workers_per_dispatcher)
    with contextlib.ExitStack() as servers:
        if rank == 0:
            # A job that was killed may have left some.
            _remove_files(config)
            servers.callback(_remove_files, config)
        own = None
        if config.dispatcher_side == "compute" and place == 0:
            own = servers.enter_context(_dispatcher(config))
        of_ranks = allgather_object(own, name="compute_worker.addresses")
        addresses = [each for each in of_ranks if each is not None]
        config = dataclasses.replace(config, addresses=addresses)
        if config.dispatcher_side == "compute":
            address = addresses[dispatcher]
        else:
            if rank == 0:
                config.write()
            address = _wait_for(
                _beside(config, f"dispatcher{dispatcher}"), config
            )
        worker = tf.data.experimental.service.WorkerServer(
            tf.data.experimental.service.WorkerConfig(
                dispatcher_address=address.removeprefix("grpc://"),
                # %port% is TensorFlow's, for the port that it finds.
                worker_address=f"{_own_host(config)}:%port%",
                heartbeat_interval_ms=1000,
                dispatcher_timeout_ms=config.timeout * 1000,
            )
        )
        servers.enter_context(_serving(worker, config))
        logging.info("tfring: worker %d of dispatcher %d", rank, dispatcher)
        barrier(name="compute_worker.started")
        if rank == 0 and config.dispatcher_side == "compute":
            config.write()
        elif rank == 0:
            _write(_beside(config, "workers"), "")
        barrier(name="compute_worker.written")
        while Path(config.configfile).exists():
            time.sleep(_LOOK_SECONDS)
        barrier(name="compute_worker.ended")


@contextlib.contextmanager
def _dispatcher(config: TfDataServiceConfig) -> Iterator[str]:
    """Runs a dispatcher, and yields its address."""
    server = tf.data.experimental.service.DispatchServer()
    with _serving(server, config) as port:
        # It calls itself localhost, which it is not to other machines.
        yield f"grpc://{_own_host(config)}:{port}"


@contextlib.contextmanager
def _serving(server: Any, config: TfDataServiceConfig) -> Iterator[int]:
    """Keeps a server to this machine, yields its port and stops it."""
    try:
        # Workers have no public `target`, as dispatchers do.
        port = int(server._address.rpartition(":")[2])
        if not config.trusted_network:
            bind_to_loopback(port)
        yield port
    finally:
        # TensorFlow's public `stop` is for dispatchers alone.
        server._stop()
        server.join()


def _own_host(config: TfDataServiceConfig) -> str:
    if not config.trusted_network:
        return "127.0.0.1"
    name = socket.gethostname()
    ip = socket.gethostbyname(name)
    # Debian's installer has a machine call itself 127.0.1.1.
    return name if ip.startswith("127.") else ip


def _check_answers(address: str, config: TfDataServiceConfig) -> None:
    """Raises an error where TensorFlow would try again and again."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), config.timeout).close()
    except OSError as error:
        raise ConnectionError(
            f"no dispatcher answers at {address}: {error}. Is "
            f"{config.configfile} that of a compute job which is running? "
            "Without --trusted-network it serves its own machine alone."
        ) from error


def _beside(config: TfDataServiceConfig, name: str) -> Path:
    """A file of the training side's dispatchers.

    "dispatcher0" has the address of that one; "workers" says that all workers
    have registered with theirs.
    """
    return Path(f"{config.configfile}.{name}")


def _remove_files(config: TfDataServiceConfig) -> None:
    for number in range(config.dispatchers):
        _beside(config, f"dispatcher{number}").unlink(missing_ok=True)
    _beside(config, "workers").unlink(missing_ok=True)
    config.compute_client().shutdown()


def _wait_for(path: Path, config: TfDataServiceConfig) -> str:
    deadline = time.monotonic() + config.timeout
    while not path.exists():
        if time.monotonic() >= deadline:
            raise TimeoutError(
                f"{path} did not appear within {config.timeout} s. Start both "
                "jobs, and have each training rank enter tf_data_service, or "
                "start the compute job with a longer --timeout."
            )
        time.sleep(_LOOK_SECONDS)
    return path.read_text()


def _write(path: Path, text: str) -> None:
    """Writes a file that only this user may read."""
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    # Nobody shall see half of it.
    Path(unfinished).replace(path)
