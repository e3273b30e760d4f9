"""horovod.runner."""

from tfring import run
