"""horovod.torch, which tfring does not provide."""

raise ImportError(
    "horovod.torch: tfring, which has the name horovod here, trains TensorFlow "
    "and Keras models alone."
)
