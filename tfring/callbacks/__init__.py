"""Keras callbacks for training on several ranks."""

from tfring.callbacks.broadcast import (
    BroadcastGlobalVariablesCallback as BroadcastGlobalVariablesCallback,
)
from tfring.callbacks.checkpoint import (
    BestModelCheckpoint as BestModelCheckpoint,
)
from tfring.callbacks.consistency import (
    ConsistencyCheckCallback as ConsistencyCheckCallback,
)
from tfring.callbacks.job_checkpoint import Checkpoint as Checkpoint
from tfring.callbacks.join import JoinCallback as JoinCallback
from tfring.callbacks.learning_rate import (
    LearningRateScheduleCallback as LearningRateScheduleCallback,
    LearningRateWarmupCallback as LearningRateWarmupCallback,
)
from tfring.callbacks.metric_average import (
    MetricAverageCallback as MetricAverageCallback,
)
from tfring.callbacks.monitor import MonitorCallback as MonitorCallback
