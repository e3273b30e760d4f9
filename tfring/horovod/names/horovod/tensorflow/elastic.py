from tfring.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    TensorFlowState,
    run,
)
from tfring.horovod.keras import IS_KERAS2

if IS_KERAS2:
    from tfring.horovod.keras2.elastic import TensorFlowKerasState
else:
    from tfring.elastic import TensorFlowKerasState
