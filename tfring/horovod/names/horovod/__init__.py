"""Horovod's names, implemented by tfring, for programs that import them."""

from tfring import run
from tfring.horovod import VERSION as __version__, check_alone

check_alone()
