"""horovod.keras.callbacks."""

from horovod.tensorflow.keras.callbacks import *
