"""horovod.tensorflow.util."""
