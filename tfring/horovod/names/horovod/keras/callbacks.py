from horovod.tensorflow.keras.callbacks import *
