"""horovod.mxnet: not there."""

raise ImportError(
    "horovod.mxnet: tfring, which has the name horovod here, trains TensorFlow "
    "and Keras models alone."
)
