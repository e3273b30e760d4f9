from tfring.elastic import HorovodInternalError, HostsUpdatedInterrupt, run
from tfring.horovod.keras import IS_KERAS2

if IS_KERAS2:
    from tfring.horovod.keras2.elastic import (
        CommitStateCallback,
        KerasState,
        UpdateBatchStateCallback,
        UpdateEpochStateCallback,
    )
else:
    from tfring.elastic import (
        CommitStateCallback,
        KerasState,
        UpdateBatchStateCallback,
        UpdateEpochStateCallback,
    )
