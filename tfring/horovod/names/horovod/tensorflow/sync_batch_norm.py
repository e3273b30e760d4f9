from tfring.horovod.keras import IS_KERAS2

if IS_KERAS2:
    from tfring.horovod.keras2.layers import SyncBatchNormalization
else:
    from tfring import SyncBatchNormalization
