from tfring.horovod.ray import RayExecutor
