"""horovod.common.exceptions."""

from tfring.elastic import HorovodInternalError, HostsUpdatedInterrupt
