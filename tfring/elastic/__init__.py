"""Training that survives lost ranks, with Horovod's elastic API.

Under `tfringrun --elastic` lost ranks are replaced, and hosts may join and
leave. All ranks then start again from the last commit. In any other job a lost
rank ends the job.
"""

from tfring._core.errors import (
    HorovodInternalError as HorovodInternalError,
    HostsUpdatedInterrupt as HostsUpdatedInterrupt,
)
from tfring.elastic.callbacks import (
    CommitStateCallback as CommitStateCallback,
    UpdateBatchStateCallback as UpdateBatchStateCallback,
    UpdateEpochStateCallback as UpdateEpochStateCallback,
)
from tfring.elastic.fitting import fit as fit
from tfring.elastic.running import run as run
from tfring.elastic.state import (
    HostUpdateResult as HostUpdateResult,
    ObjectState as ObjectState,
    State as State,
)
from tfring.elastic.variables import (
    KerasState as KerasState,
    TensorFlowKerasState as TensorFlowKerasState,
    TensorFlowState as TensorFlowState,
)
