"""A callback that gives all ranks the metrics of all data."""

from __future__ import annotations

from tfring._keras.metric_averages import MetricAverages
from tfring._ops.devices import checked_device


class MetricAverageCallback(MetricAverages):
    """Replaces the metrics of an epoch by the metrics of all ranks' data.

    Each rank sees its own part of the data, which may be larger than another's.
    The loss and Keras's own metrics, accuracy as well as AUC, become the values
    that one rank would have got from all the data together: sums, such as the
    number of samples, are added up over the ranks before the metric is
    computed. Other numbers and arrays of numbers in the logs, also of metric
    classes of your own, become averages over the ranks, weighted by the samples
    that each has seen. All become floats, or float64 arrays.

    Put it before callbacks that read metrics; callbacks before it see the
    rank's own metrics. If one of Keras's callbacks decides by metrics
    (`ReduceLROnPlateau`, `EarlyStopping`, any with `save_best_only`), `fit`
    with a `DistributedOptimizer` has this one act first, even if it is not in
    the list. Collective: pass it on every rank.

    Horovod's callback weights all ranks alike, however little data they have.

    Args:
        device: The device for the sums, such as "/cpu:0". By default TensorFlow
            chooses it.

    Raises:
        NotImplementedError: tfring has no kernels for `device`.
        TypeError: `device` is not a string.
        ValueError: There is no such device. At the end of an epoch, on every
            rank, if the ranks have different metrics.

    Example:

    ```python
    model.fit(x, y, callbacks=[
        tfring.callbacks.MetricAverageCallback(),
        keras.callbacks.EarlyStopping("loss")])
    ```
    """

    def __init__(self, device: str = "") -> None:
        device = checked_device("MetricAverageCallback", "device", device)
        super().__init__(device, strict=True)
