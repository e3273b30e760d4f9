"""`horovod.ray`: Horovod's arguments for `tfring.ray.RayExecutor`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tfring.ray
from tfring import horovod


@dataclasses.dataclass(frozen=True)
class Settings:
    """Horovod's settings. Only the placement group's timeout counts.

    The ranks of an executor need no ssh, and find one another by Ray.
    """

    timeout_s: float = 30.0
    ssh_identity_file: Any = None
    ssh_str: Any = None
    placement_group_timeout_s: float = 100.0
    nics: Any = None


class RayExecutor(tfring.ray.RayExecutor):
    """`tfring.ray.RayExecutor` with Horovod's name and arguments."""

    create_settings = Settings

    def __init__(
        self,
        settings: Settings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        **options: Any,
    ) -> None:
        if num_hosts is not None or num_workers_per_host != 1:
            raise ValueError(
                "horovod.ray.RayExecutor: tfring has no num_hosts and no "
                "num_workers_per_host. Pass num_workers; to spread the workers "
                "over hosts, run the program in a placement group."
            )
        settings = settings or Settings()
        super().__init__(
            num_workers or options.get("min_workers", 0),
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=(gpus_per_worker or 1) if use_gpu else 0,
            start_timeout=settings.placement_group_timeout_s,
            **options,
        )

    def _environment(self, extra: Mapping[str, str]) -> Mapping[str, str]:
        return {**extra, **horovod.settings(extra)}
