"""Datasets that are prepared by other processes, with tf.data's service.

TensorFlow has the servers (`tf.data.experimental.service`): workers run a
dataset's operations, and a dispatcher assigns them work. This module lets the
ranks of two jobs start them and find each other, with Horovod's names:

    tfringrun -np 4 python -m tfring.data.compute_worker \
        /shared/config.json --trusted-network
    tfringrun -np 2 python train.py   # reads that file

Both jobs communicate by the config file, and by files beside it if dispatchers
run on the training side. The compute job ends when the config file is removed.
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

import tensorflow as tf

from tfring._core import runtime
from tfring._keras.init import init
from tfring._ops.barrier import barrier
from tfring._ops.objects import allgather_object

_LOOK_SECONDS = 0.25


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """The configuration of a compute job, and where to find it.

    TensorFlow's servers listen on all interfaces without passwords: whoever
    reaches a server can let it run operations as the job's user, such as
    reading files. So `trusted_network` must be True.

    Attributes:
        dispatchers: 1 for all training ranks together, or one per training
            rank.
        workers_per_dispatcher: The number of workers per dispatcher.
        dispatcher_side: Where dispatchers run: "compute" or "training".
        addresses: The dispatchers, as "grpc://host:port"; none where they run
            on the training side.
        configfile: The config file, in a folder that both jobs can write.
        timeout: How many seconds each rank waits for a file of another rank.
        trusted_network: Everybody who reaches the machines of both jobs may
            read the files of their user.

    Raises:
        ValueError: `dispatcher_side` is neither "compute" nor "training", or
            the network is not trusted.
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
        if not self.trusted_network:
            raise ValueError(
                "TensorFlow's data service has no passwords and listens on all "
                "interfaces: whoever reaches it reads files as the job's user. "
                "On a network where everybody may, pass --trusted-network "
                "(trusted_network=True)."
            )

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Returns the compute job; `verbose` has no effect."""
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
        """Ends the compute job by removing its config file."""
        Path(self.configfile).unlink(missing_ok=True)


@contextlib.contextmanager
def tf_data_service(
    compute_config: TfDataServiceConfig, rank: int
) -> Iterator[str]:
    """Yields the address of the dispatcher that a training rank uses.

    With `dispatcher_side="training"` the dispatcher runs here, on rank 0 or on
    every rank, until the context ends: iterate over the dataset within it.

    Args:
        compute_config: The configuration that the compute job has written.
        rank: The training job's rank.

    Yields:
        "grpc://host:port", for `tf.data.experimental.service.distribute`.

    Raises:
        ConnectionError: The compute job does not exist, or has ended.
        IndexError: There are several dispatchers, but none for this rank.
        RuntimeError: The compute job has had a dispatcher of this rank.
        TimeoutError: The dispatcher or its workers have not started in time.
    """
    config = compute_config
    dispatcher = rank if config.dispatchers > 1 else 0
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
            if rank == dispatcher:
                if path.exists():
                    raise RuntimeError(
                        f"tf_data_service: {path} exists, and the workers know "
                        "no other dispatcher. Start the compute job again."
                    )
                _write(path, _start_dispatcher(servers))
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

    It is also a method of every `tf.data.Dataset`. It is not collective, but
    each rank that calls it gets its own elements.

    Args:
        dataset: The dataset; what follows the result runs on this rank.
        compute_config: The configuration that the compute job has written.
        rank: The training job's rank.
        size: The training job's size; needed for `round_robin`.
        processing_mode: See `tf.data.experimental.service.distribute`. With
            "distributed_epoch" the workers divide the elements among them; with
            "parallel_epochs" each worker has all elements.
        reuse_dataset: If true, all ranks of a dispatcher share one run of the
            dataset, and no element is taken twice. Otherwise each rank has a
            run of its own.
        round_robin: With `reuse_dataset`, whether ranks take turns in a fixed
            order; `dataset` must be infinite.

    Returns:
        The dataset, in whatever order the workers are ready.

    Raises:
        RuntimeError: The dispatchers are on the training side: use
            `tf_data_service`.
        ConnectionError: As for `tf_data_service`.
        IndexError: As for `tf_data_service`.
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

    Every rank runs a worker. With `dispatcher_side="compute"` the first rank of
    each dispatcher's workers also runs the dispatcher. Rank 0 writes the config
    file, and removes it if the job fails. Collective: every rank of the job
    must call it. The program `tfring.data.compute_worker` does all of this.

    Args:
        compute_config: The configuration without addresses, the same on every
            rank.

    Raises:
        TimeoutError: The training side has started no dispatcher in time.
    """
    init()
    config = compute_config
    rank = runtime.rank()
    on_compute_side = config.dispatcher_side == "compute"
    dispatcher, place = divmod(rank, config.workers_per_dispatcher)
    with contextlib.ExitStack() as servers:
        if rank == 0:
            # A killed job may have left files.
            _remove_files(config)
            servers.callback(_remove_files, config)
        starts_one = on_compute_side and place == 0
        own = _start_dispatcher(servers) if starts_one else None
        of_ranks = allgather_object(own, name="compute_worker.addresses")
        addresses = [each for each in of_ranks if each]
        config = dataclasses.replace(config, addresses=addresses)
        if on_compute_side:
            address = addresses[dispatcher]
        else:
            if rank == 0:
                config.write()
            path = _beside(config, f"dispatcher{dispatcher}")
            address = _wait_for(path, config)
        worker = tf.data.experimental.service.WorkerServer(
            tf.data.experimental.service.WorkerConfig(
                dispatcher_address=address.removeprefix("grpc://"),
                # TensorFlow replaces %port% by the port that it finds.
                worker_address=f"{_own_host()}:%port%",
                heartbeat_interval_ms=1000,
                dispatcher_timeout_ms=config.timeout * 1000,
            )
        )
        # In older TensorFlow only dispatchers have a public `stop`.
        servers.callback(worker._stop)
        barrier(name="compute_worker.started")
        if rank == 0 and on_compute_side:
            config.write()
        elif rank == 0:
            _write(_beside(config, "workers"), "")
        barrier(name="compute_worker.written")
        while Path(config.configfile).exists():
            time.sleep(_LOOK_SECONDS)
        barrier(name="compute_worker.ended")


def _start_dispatcher(servers: contextlib.ExitStack) -> str:
    """Runs a dispatcher until `servers` ends; returns its address."""
    server = tf.data.experimental.service.DispatchServer()
    servers.callback(server.stop)
    # The dispatcher calls itself localhost, by which other machines do not find
    # it.
    return f"grpc://{_own_host()}:{server.target.rpartition(':')[2]}"


def _own_host() -> str:
    name = socket.gethostname()
    ip = socket.gethostbyname(name)
    # Debian's installer maps a machine's name to 127.0.1.1.
    return name if ip.startswith("127.") else ip


def _check_answers(address: str, config: TfDataServiceConfig) -> None:
    """Raises an error if nobody answers; TensorFlow would retry forever."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), config.timeout).close()
    except OSError as error:
        raise ConnectionError(
            f"no dispatcher answers at {address}: {error}. Is "
            f"{config.configfile} that of a compute job which is running?"
        ) from error


def _beside(config: TfDataServiceConfig, name: str) -> Path:
    """Returns the path of a file of the training side's dispatchers.

    The file "dispatcher0" has the address of the first dispatcher. The file
    "workers" says that all workers have registered with their dispatchers.
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
    # Replace the file at once, so that no reader sees half of it.
    Path(unfinished).replace(path)
