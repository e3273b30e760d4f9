from horovod.keras import callbacks, elastic
from horovod.tensorflow.keras import *
