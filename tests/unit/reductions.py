"""Fakes of the collectives for tests of what reduces gradients."""

import tensorflow as tf

from tfring._gradients import reducer
from tfring._gradients.gradient_options import GradientOptions
from tfring._ops.allgather import Gathering
from tfring._ops.ordering import Started
from tfring._ops.slices import SlicesInFlight


def reduce_gradients(gradients, variables, **options):
    return reducer.reduce_gradients(
        gradients, variables, GradientOptions(**options)
    )


class Recorder:
    """Takes the place of the collectives; what it "reduces" is unchanged."""

    def __init__(self):
        self.events = []
        self.starts = []

    def start_allreduce(self, tensors, *, previous, **arguments):
        before = [] if previous is None else [previous.handle]
        with tf.control_dependencies([*tensors, *before]):
            # Stateful, as the true one is.
            handle = tf.random.uniform([], maxval=1, dtype=tf.int64)
        started = Started(handle, chain=None, process_set_id=0)
        self.starts.append(
            arguments
            | {"tensors": tensors, "previous": previous, "started": started}
        )
        self.events.append("start")
        return list(tensors), started

    def finish(self, buffers, *_, **__):
        self.events.append("done")
        return list(buffers)

    def allreduce(self, tensor, **_):
        self.events.append("dense")
        return tensor

    def start_slices(self, _, slices, *, previous, **arguments):
        values = [each.values for each in slices]
        _, started = self.start_allreduce(
            values, previous=previous, **arguments
        )
        self.events[-1] = "start slices"
        gathering = Gathering([(None, started)])
        return SlicesInFlight(None, slices, None, 1.0, None, [], gathering)

    def finish_slices(self, in_flight):
        self.events.append("done slices")
        return list(in_flight.slices)


def variables_of_chain(count):
    return [tf.Variable([1.0] * 8, name=f"layer_{i}") for i in range(count)]


def gradients_of_chain(variables):
    with tf.GradientTape() as tape:
        value = tf.ones([8])
        for variable in variables:
            value = tf.tanh(value * variable)
    return tape.gradient(value, variables)
