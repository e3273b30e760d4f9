"""horovod.tensorflow.keras.elastic."""

from tfring.elastic import (
    CommitStateCallback,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    KerasState,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
    run,
)
