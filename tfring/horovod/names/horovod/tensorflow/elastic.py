"""horovod.tensorflow.elastic."""

from tfring.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    TensorFlowKerasState,
    TensorFlowState,
    run,
)
