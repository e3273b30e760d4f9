from horovod.tensorflow.keras.elastic import *
