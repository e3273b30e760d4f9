"""horovod.mxnet, which tfring does not provide."""

raise ImportError(
    "horovod.mxnet: tfring, which has the name horovod here, trains TensorFlow "
    "and Keras models alone."
)
