"""A stand-in for Ray: actors are processes, and all that is sent is pickled.

It has what `tfring.ray` uses, of one node, and refuses what Ray refuses.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import types
from concurrent.futures import Future

import cloudpickle

_SERVE = """
import os, struct, sys
import cloudpickle, fake_ray
replies = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
fake_ray.serve(sys.stdin.buffer, replies)
"""


class RayError(Exception):
    """What `get` raises."""


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause

    def as_instance_of_cause(self):
        cause = type(self.cause)
        both = type(
            f"RayTaskError({cause.__name__})", (RayTaskError, cause), {}
        )
        return both(self.cause)


class RayActorError(RayError):
    """The actor has died."""


def _send(pipe, value):
    data = cloudpickle.dumps(value)
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def _receive(pipe):
    count = pipe.read(8)
    if len(count) < 8:
        raise EOFError
    return cloudpickle.loads(pipe.read(int.from_bytes(count, "little")))


def serve(calls, replies):
    """Runs the methods of an actor, in its process."""
    sys.modules["ray"] = Ray(cpus=0)
    actor = None
    with contextlib.suppress(EOFError):
        while True:
            try:
                method, args, kwargs = _receive(calls)
                if method is None:
                    cls, *args = args
                    actor = cls(*args, **kwargs)
                    result = None
                else:
                    result = getattr(actor, method)(*args, **kwargs)
                _send(replies, (True, result))
            except EOFError:
                raise
            except Exception as error:
                _send(replies, (False, error))


class Reference:
    def __init__(self):
        self._future = Future()

    def future(self):
        return self._future


class Actor:
    """A handle; calls are done in order."""

    def __init__(self, ray, cpus, bundle, args, kwargs):
        self._ray, self._cpus, self._bundle = ray, cpus, bundle
        self._calls = queue.SimpleQueue()
        self._process = None
        made = self._call(None, args, kwargs)
        self.made = made
        threading.Thread(target=self._run, daemon=True).start()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return types.SimpleNamespace(
            remote=lambda *args, **kwargs: self._call(name, args, kwargs)
        )

    def _call(self, method, args, kwargs):
        reference = Reference()
        data = cloudpickle.dumps((method, args, kwargs))
        self._calls.put((reference, data))
        return reference

    def _run(self):
        self._ray.take_room(self._cpus, self._bundle)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            start_new_session=True,
        )
        while True:
            reference, data = self._calls.get()
            try:
                pipe = self._process.stdin
                pipe.write(len(data).to_bytes(8, "little") + data)
                pipe.flush()
                good, value = _receive(self._process.stdout)
                if good:
                    reference.future().set_result(value)
                else:
                    error = RayTaskError(value).as_instance_of_cause()
                    reference.future().set_exception(error)
            except (OSError, EOFError):
                error = RayActorError("The actor died.")
                reference.future().set_exception(error)

    def kill(self):
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Group:
    def __init__(self, bundles, has_room):
        self.bundles = bundles
        self._has_room = has_room

    def wait(self, timeout_seconds):
        return self._has_room


class Ray(types.ModuleType):
    """The module `ray`, connected to a cluster of `cpus` CPUs."""

    def __init__(self, cpus):
        super().__init__("ray")
        self.cpus = cpus
        self.groups = []
        self.current_group = None
        self.actors = []
        self.options = []
        self.exceptions = types.SimpleNamespace(
            RayError=RayError,
            RayTaskError=RayTaskError,
            RayActorError=RayActorError,
        )
        self.util = types.ModuleType("ray.util")
        self.util.get_node_ip_address = lambda: "127.0.0.1"
        self.util.get_current_placement_group = lambda: self.current_group
        self.util.placement_group = self.placement_group
        self.util.remove_placement_group = self.groups.remove
        self.util.scheduling_strategies = types.SimpleNamespace(
            PlacementGroupSchedulingStrategy=lambda group: group
        )

    def take_room(self, cpus, bundle):
        assert cpus <= self.cpus if bundle is None else bundle["CPU"] >= cpus

    def placement_group(self, bundles, strategy="PACK"):
        needed = sum(bundle["CPU"] for bundle in bundles)
        self.groups.append(Group(bundles, needed <= self.cpus))
        return self.groups[-1]

    def get_runtime_context(self):
        return types.SimpleNamespace(
            get_worker_id=lambda: f"{os.getpid():08}ff"
        )

    def remote(self, cls):
        def options(
            *,
            num_cpus,
            num_gpus,
            scheduling_strategy=None,
            max_restarts=0,
            max_task_retries=0,
        ):
            def make(*args, **kwargs):
                self.options.append((num_cpus, num_gpus, max_restarts))
                bundle = None
                if scheduling_strategy is not None:
                    bundle = scheduling_strategy.bundles.pop()
                actor = Actor(self, num_cpus, bundle, (cls, *args), kwargs)
                self.actors.append(actor)
                return actor

            return types.SimpleNamespace(remote=make)

        return types.SimpleNamespace(options=options)

    def get(self, references):
        return [reference.future().result() for reference in references]

    def kill(self, actor):
        actor.kill()
        self.actors.remove(actor)


def install(monkeypatch, cpus):
    """Makes this `ray`, and returns it."""
    ray = Ray(cpus)
    for module in (ray, ray.util):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return ray
