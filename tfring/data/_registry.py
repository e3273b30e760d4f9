"""The registry by which the servers of tf.data's service find each other.

A small server of our own, on one rank of the compute job: dispatchers and
workers register their addresses with it, others wait for them there. Both ends
prove that they have the same key (HMAC, by `multiprocessing.connection`); later
messages are JSON, neither encrypted nor signed. The key guards this server
alone: TensorFlow's dispatchers and workers serve whoever reaches them.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any, TypeAlias

LOCALHOST = "127.0.0.1"

# So long may the other end take to prove that it has the key.
_HANDSHAKE_SECONDS = 10.0
_ACCEPT_AGAIN_SECONDS = 0.1
# Tests have others.
_Timer = threading.Timer
_sleep = time.sleep

Addresses = Mapping[str, Sequence[tuple[str, int]]]

_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error for error in (IndexError, ValueError, TimeoutError)
}


def make_key() -> bytes:
    return secrets.token_bytes(32)


_Connection: TypeAlias = "connection.Connection[Any, Any]"

_REFUSALS = (EOFError, OSError, multiprocessing.AuthenticationError)


class ComputeService:
    """The server, in threads of this process, until `shutdown`.

    Args:
        dispatchers: How many there will be.
        workers_per_dispatcher: How many there will be of each.
        key: The secret that clients must have, too.
        trusted_network: If true, it listens on all interfaces, so that other
            machines reach it, too.

    Raises:
        ValueError: One of the numbers is not positive.
    """

    def __init__(
        self,
        dispatchers: int,
        workers_per_dispatcher: int,
        key: bytes,
        trusted_network: bool = False,
    ) -> None:
        for name, number in (
            ("dispatchers", dispatchers),
            ("workers_per_dispatcher", workers_per_dispatcher),
        ):
            if number < 1:
                raise ValueError(f"{name} must be positive, got {number}.")
        self._dispatchers: list[str | None] = [None] * dispatchers
        self._workers: list[set[int]] = [set() for _ in range(dispatchers)]
        self._workers_per_dispatcher = workers_per_dispatcher
        self._key = key
        self._over = False
        self._changed = threading.Condition()
        self._trusted_network = trusted_network
        self._socket = socket.create_server(
            ("" if trusted_network else LOCALHOST, 0)
        )
        threading.Thread(target=self._accept, daemon=True).start()

    def addresses(self) -> Addresses:
        """By the name of this machine: those at which clients may try."""
        port = self._socket.getsockname()[1]
        name = socket.gethostname()
        if not self._trusted_network:
            return {name: [(LOCALHOST, port)]}
        found = [
            str(info[4][0])
            for info in socket.getaddrinfo(
                name, None, socket.AF_INET, socket.SOCK_STREAM
            )
        ]
        return {name: [(ip, port) for ip in dict.fromkeys([*found, LOCALHOST])]}

    def shutdown(self) -> None:
        """Ends `wait_for_shutdown` everywhere, and the server."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                if self._over:
                    return
                # Strangers may have all file descriptors, but not for long.
                _sleep(_ACCEPT_AGAIN_SECONDS)
                continue
            threading.Thread(
                target=self._serve, args=(accepted,), daemon=True
            ).start()

    def _serve(self, accepted: socket.socket) -> None:
        # Strangers, and clients that are gone, are no business of ours.
        strangers = contextlib.suppress(*_REFUSALS)
        with strangers, connection.Connection(accepted.detach()) as client:
            with _deadline(client):
                connection.deliver_challenge(client, self._key)
                connection.answer_challenge(client, self._key)
                request = client.recv_bytes()
            answer = self._answer(*json.loads(request))
            client.send_bytes(json.dumps(answer).encode())

    def _answer(self, call: str, arguments: list[Any]) -> Any:
        handlers: dict[str, Callable[..., Any]] = {
            "register_dispatcher": self._register_dispatcher,
            "wait_for_dispatcher": self._wait_for_dispatcher,
            "register_worker": self._register_worker,
            "wait_for_workers": self._wait_for_workers,
            "wait_for_shutdown": self._wait_for_shutdown,
            "shutdown": self.shutdown,
        }
        try:
            return {"result": handlers[call](*arguments)}
        except tuple(_ERRORS.values()) as error:
            return {"error": type(error).__name__, "text": str(error)}

    def _check_id(self, dispatcher_id: int) -> None:
        if not 0 <= dispatcher_id < len(self._dispatchers):
            raise IndexError(
                f"there is no dispatcher {dispatcher_id}: they are numbered "
                f"from 0 to {len(self._dispatchers) - 1}."
            )

    def _register_dispatcher(self, dispatcher_id: int, address: str) -> None:
        self._check_id(dispatcher_id)
        with self._changed:
            known = self._dispatchers[dispatcher_id]
            if known not in (None, address):
                raise ValueError(
                    f"dispatcher {dispatcher_id} is at {known} already, and "
                    f"cannot be at {address}, too."
                )
            self._dispatchers[dispatcher_id] = address
            self._changed.notify_all()

    def _register_worker(self, dispatcher_id: int, worker_id: int) -> None:
        self._check_id(dispatcher_id)
        with self._changed:
            self._workers[dispatcher_id].add(worker_id)
            self._changed.notify_all()

    def _wait_for_dispatcher(
        self, dispatcher_id: int, timeout: float | None
    ) -> str | None:
        self._check_id(dispatcher_id)
        self._wait(
            lambda: self._dispatchers[dispatcher_id] is not None,
            timeout,
            f"dispatcher {dispatcher_id}",
        )
        return self._dispatchers[dispatcher_id]

    def _wait_for_workers(
        self, dispatcher_id: int, timeout: float | None
    ) -> None:
        self._check_id(dispatcher_id)
        expected = self._workers_per_dispatcher
        self._wait(
            lambda: len(self._workers[dispatcher_id]) >= expected,
            timeout,
            f"the {expected} workers of dispatcher {dispatcher_id}",
        )

    def _wait(
        self, condition: Callable[[], bool], timeout: float | None, what: str
    ) -> None:
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._over, timeout)
            if not condition():
                raise TimeoutError(
                    f"{what} did not come within {timeout} s. Start the "
                    "compute job, or raise timeout."
                )

    def _wait_for_shutdown(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._over)


class ComputeClient:
    """Sends requests to a `ComputeService`, from any process.

    Args:
        compute_addresses: Its `addresses()`.
        key: Its key.
        verbose: Accepted as Horovod's. Without effect.

    Raises:
        ConnectionError: From every method: it cannot be reached, or has ended.
    """

    def __init__(
        self, compute_addresses: Addresses, key: bytes, verbose: int = 1
    ) -> None:
        self._machines = list(compute_addresses)
        self._addresses = [
            (ip, port)
            for addresses in compute_addresses.values()
            for ip, port in addresses
        ]
        self._key = key

    def register_dispatcher(
        self, dispatcher_id: int, dispatcher_address: str
    ) -> None:
        self._ask("register_dispatcher", dispatcher_id, dispatcher_address)

    def wait_for_dispatcher_registration(
        self, dispatcher_id: int, timeout: float | None
    ) -> str:
        return str(self._ask("wait_for_dispatcher", dispatcher_id, timeout))

    def register_worker_for_dispatcher(
        self, dispatcher_id: int, worker_id: int
    ) -> None:
        self._ask("register_worker", dispatcher_id, worker_id)

    def wait_for_dispatcher_worker_registration(
        self, dispatcher_id: int, timeout: float | None
    ) -> None:
        self._ask("wait_for_workers", dispatcher_id, timeout)

    def shutdown(self) -> None:
        """Lets the compute job end."""
        self._ask("shutdown")

    def wait_for_shutdown(self) -> None:
        """Returns when someone has called `shutdown`."""
        self._ask("wait_for_shutdown")

    def own_ip(self) -> str:
        """This machine's address, as the service's machine sees it."""
        with (
            self._connect() as server,
            socket.socket(fileno=os.dup(server.fileno())) as end,
        ):
            return str(end.getsockname()[0])

    def _ask(self, call: str, *arguments: Any) -> Any:
        with self._connect() as server:
            try:
                server.send_bytes(json.dumps([call, arguments]).encode())
                answer = json.loads(server.recv_bytes())
            except EOFError:
                raise ConnectionError(
                    "the compute service has ended, or its process."
                ) from None
        if "error" in answer:
            raise _ERRORS[answer["error"]](answer["text"])
        return answer["result"]

    def _connect(self) -> _Connection:
        failures = []
        for ip, port in self._addresses:
            try:
                return self._connect_to(ip, port)
            except EOFError:
                failures.append(f"{ip}:{port}: it hung up, or said nothing")
            except _REFUSALS as error:
                failures.append(f"{ip}:{port}: {error}")
        here = socket.gethostname()
        elsewhere = ""
        if here not in self._machines and all(
            ip == LOCALHOST for ip, _ in self._addresses
        ):
            elsewhere = (
                f" It serves {', '.join(self._machines)} alone, and this is "
                f"{here}: on a network where everybody is trusted, start it "
                "with --trusted-network."
            )
        raise ConnectionError(
            f"no compute service answers at {'; '.join(failures)}. Is the "
            f"config file that of a compute job which is running?{elsewhere}"
        )

    def _connect_to(self, ip: str, port: int) -> _Connection:
        end = socket.create_connection((ip, port), _HANDSHAKE_SECONDS)
        end.settimeout(None)  # or reads of the descriptor would not block
        server = connection.Connection(end.detach())
        try:
            with _deadline(server):
                connection.answer_challenge(server, self._key)
                connection.deliver_challenge(server, self._key)
        except BaseException:
            server.close()
            raise
        return server


@contextlib.contextmanager
def _deadline(end: _Connection) -> Iterator[None]:
    """Ends a connection, as for EOF, unless the context ends in time."""
    with socket.socket(fileno=os.dup(end.fileno())) as twin:

        def hang_up() -> None:
            with contextlib.suppress(OSError):  # the other end has done so
                twin.shutdown(socket.SHUT_RDWR)

        timer = _Timer(_HANDSHAKE_SECONDS, hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
