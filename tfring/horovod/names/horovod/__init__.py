"""Horovod's names, for programs that import them: tfring has their meaning."""

from tfring import run
from tfring.horovod import VERSION as __version__, check_alone

check_alone()
