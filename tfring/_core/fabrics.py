"""Keeps MPI from waiting for fabrics that this machine does not have.

Open MPI 5 waits a second in `MPI_Init` while its transport `ofi` looks for
devices. tfring leaves `ofi` out where the kernel knows no devices, unless the
user has chosen transports.

Open MPI and MPICH may be built with UCX, which spends 40 ms on patching the C
library's memory functions when its library is opened. The patches tell UCX
which memory of a fabric or a GPU was freed. tfring leaves them out where there
is neither, unless the user has chosen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

# Where the kernel lists InfiniBand, RoCE, Omni-Path and EFA, and Slingshot.
_DEVICES = (Path("/sys/class/infiniband"), Path("/sys/class/cxi"))
# Where the drivers of NVIDIA and AMD list GPUs.
_GPUS = (
    Path("/proc/driver/nvidia/gpus"),
    Path("/sys/class/kfd/kfd/topology/nodes"),
)
_SETTING = "OMPI_MCA_btl"
# The values that tfring and tfringrun set themselves.
_OWN_CHOICES = ("^ofi", "^tcp,ofi")
# Further variables by which users choose Open MPI's transports.
_CHOICES = ("OMPI_MCA_pml", "OMPI_MCA_mtl", "UCX_TLS")
_UCX_HOOKS = "UCX_MEM_MMAP_HOOK_MODE"


def skip_absent(
    environment: MutableMapping[str, str],
    files: tuple[Path, ...],
    devices: tuple[Path, ...] = _DEVICES,
) -> None:
    """Tells Open MPI, by the environment, not to look for fabrics."""
    if _are_unknown(files, devices):
        environment.setdefault(_SETTING, "^ofi")


def are_absent(
    environment: Mapping[str, str],
    files: tuple[Path, ...],
    devices: tuple[Path, ...] = _DEVICES,
) -> bool:
    """Tells whether there is no fabric, and the user chooses no transport."""
    return (
        _are_unknown(files, devices)
        and environment.get(_SETTING, "^ofi") in _OWN_CHOICES
        and not any(name in environment for name in _CHOICES)
    )


@contextlib.contextmanager
def settings_of_ucx(
    environment: MutableMapping[str, str],
    devices: tuple[Path, ...] = (*_DEVICES, *_GPUS),
) -> Iterator[None]:
    """Sets UCX's variables while MPI's library, and UCX with it, is opened.

    UCX reads its settings only when it is opened.
    """
    # UCX remembers which addresses are a GPU's. It does not see all allocations
    # of TensorFlow, and would take them for host memory.
    environment.setdefault("UCX_MEMTYPE_CACHE", "n")
    is_chosen = any(
        name in environment for name in (_UCX_HOOKS, "UCX_MEM_EVENTS")
    )
    if is_chosen or any(map(_has_entries, devices)):
        yield
        return
    environment[_UCX_HOOKS] = "none"
    try:
        yield
    finally:
        # Programs started from here may run on a machine with a fabric.
        del environment[_UCX_HOOKS]


def files_of_settings(
    environment: MutableMapping[str, str],
) -> tuple[Path, ...]:
    """Returns the files where Open MPI looks for a user's settings."""
    home = environment.get("HOME", "/")
    files = [Path(home) / ".openmpi/mca-params.conf"]
    if prefix := environment.get("OPAL_PREFIX"):
        files.append(Path(prefix) / "etc/openmpi-mca-params.conf")
    return tuple(files)


def _are_unknown(files: tuple[Path, ...], devices: tuple[Path, ...]) -> bool:
    """Tells whether neither the kernel nor the user's files name a fabric."""
    return not any(map(_has_entries, devices)) and not any(map(_chooses, files))


def _has_entries(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _chooses(file: Path) -> bool:
    """Tells whether a file of settings names the transports."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.partition("=")[0].strip() == "btl" for line in lines)
