"""A stand-in for pyspark: tasks are threads, and functions are pickled.

It has what `tfring.spark` uses, and refuses what Spark refuses.
"""

import sys
import threading
import types

import cloudpickle

_tags = threading.local()
_task = threading.local()


class JavaError(Exception):
    """As py4j's: a page of Java."""


class Task:
    """Spark's context of a task, which only a thread of a task can get."""

    def __init__(self, attempt, conf):
        self._attempt = attempt
        self._conf = conf

    @classmethod
    def get(cls):
        assert isinstance(_task.context, cls), "not a task of a barrier stage"
        return _task.context

    def taskAttemptId(self):  # noqa: N802
        return self._attempt

    def cpus(self):
        return int(self._conf.get("spark.task.cpus", "1"))

    def resources(self):
        addresses = self._conf.get("gpus")
        gpu = types.SimpleNamespace(addresses=addresses)
        return {"gpu": gpu} if addresses else {}


class BarrierTask(Task):
    pass


class Rows:
    def __init__(self, context, count, *, is_barrier=False):
        self._context = context
        self._count = count
        self._is_barrier = is_barrier

    def barrier(self):
        # It has `mapPartitionsWithIndex`, and no `collect`.
        return Rows(self._context, self._count, is_barrier=True)

    def mapPartitionsWithIndex(self, function):  # noqa: N802
        task = cloudpickle.dumps(function)
        return types.SimpleNamespace(
            collect=lambda: self._context.run(
                task, self._count, is_barrier=self._is_barrier
            )
        )


class Context:
    """A session with `slots` slots, all of which are there at once."""

    pythonExec = "python3"  # noqa: N815
    master = "spark://head:7077"

    def __init__(self, slots, **conf):
        self.defaultParallelism = slots
        self._conf = {"spark.driver.host": "127.0.0.1", **conf}
        self.attempts = 0
        self._cancelled = {}
        profile = object()
        manager = types.SimpleNamespace(defaultResourceProfile=lambda: profile)
        spark = types.SimpleNamespace(
            resourceProfileManager=lambda: manager,
            maxNumConcurrentTasks=lambda asked: (
                slots if asked is profile else None
            ),
        )
        self._jsc = types.SimpleNamespace(sc=lambda: spark)

    def getConf(self):  # noqa: N802
        return self._conf

    def parallelize(self, rows, slices):
        assert len(rows) == slices
        return Rows(self, slices)

    def addJobTag(self, tag):  # noqa: N802
        assert threading.current_thread() is not threading.main_thread()
        _tags.tag = tag
        self._cancelled[tag] = threading.Event()

    def cancelJobsWithTag(self, tag):  # noqa: N802
        self._cancelled[tag].set()

    def cancel_all(self):
        for each in self._cancelled.values():
            each.set()

    def run(self, task, count, *, is_barrier):
        cancelled = self._cancelled[_tags.tag]
        rows, errors, threads = {}, [], []

        def run_task(index, attempt):
            cls = BarrierTask if is_barrier else Task
            _task.context = cls(attempt, self._conf)
            try:
                rows[index] = [*cloudpickle.loads(task)(index, iter([index]))]
            except Exception as error:
                errors.append(error)

        for index in range(count):
            self.attempts += 1
            threads.append(
                threading.Thread(target=run_task, args=(index, self.attempts))
            )
            threads[-1].start()
        while any(thread.is_alive() for thread in threads):
            if cancelled.wait(0.05):
                raise JavaError(
                    "Job 3 cancelled part of cancelled job tags\nat"
                )
        if errors:
            raise JavaError(f"{errors[0]}\n\tat org.apache.spark") from errors[
                0
            ]
        return [row for index in range(count) for row in rows[index]]


def install(monkeypatch, context):
    """Makes this `pyspark`, with an active session or None."""
    module = types.ModuleType("pyspark")
    module.SparkContext = types.SimpleNamespace(_active_spark_context=context)
    module.InheritableThread = threading.Thread
    module.TaskContext = Task
    module.BarrierTaskContext = BarrierTask
    monkeypatch.setitem(sys.modules, "pyspark", module)
