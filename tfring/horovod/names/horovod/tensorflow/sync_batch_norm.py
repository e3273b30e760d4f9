"""horovod.tensorflow.sync_batch_norm."""

from tfring import SyncBatchNormalization
