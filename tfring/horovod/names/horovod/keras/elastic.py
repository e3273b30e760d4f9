"""horovod.keras.elastic."""

from horovod.tensorflow.keras.elastic import *
