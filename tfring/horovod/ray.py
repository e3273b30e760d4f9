"""`horovod.ray`: Horovod's arguments for `tfring.ray.RayExecutor`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tfring.ray
from tfring.horovod.spark import environment


@dataclasses.dataclass(frozen=True)
class Settings:
    """The result of `RayExecutor.create_settings`."""

    placement_group_timeout_s: float = 100.0


class RayExecutor(tfring.ray.RayExecutor):
    """`tfring.ray.RayExecutor` with Horovod's name and arguments."""

    def __init__(
        self,
        settings: Settings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
    ) -> None:
        if num_hosts is not None or num_workers_per_host != 1:
            raise ValueError(
                "horovod.ray.RayExecutor: tfring has no num_hosts and no "
                "num_workers_per_host. Pass num_workers; to spread the workers "
                "over hosts, run the program in a placement group."
            )
        workers = num_workers or min_workers
        if workers is None:
            raise ValueError(
                "horovod.ray.RayExecutor: how many workers? Pass num_workers."
            )
        found = settings or Settings()
        super().__init__(
            workers,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=(gpus_per_worker or 1) if use_gpu else 0,
            min_workers=min_workers,
            max_workers=max_workers,
            use_current_placement_group=use_current_placement_group,
            start_timeout=found.placement_group_timeout_s,
        )

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30.0,
        ssh_identity_file: Any = None,
        ssh_str: Any = None,
        placement_group_timeout_s: float = 100.0,
        nics: Any = None,
    ) -> Settings:
        """Returns settings. Only the placement group's timeout counts.

        The ranks of an executor need no ssh, and find one another by Ray.
        """
        return Settings(placement_group_timeout_s)

    def _environment(self, extra: Mapping[str, str]) -> Mapping[str, str]:
        return environment(extra)
