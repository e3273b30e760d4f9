"""horovod.tensorflow.data."""
