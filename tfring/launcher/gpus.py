"""How the ranks of a machine share the memory of its GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# One for each GPU that a machine, or a container, has.
DEVICE_FILES = "/dev/nvidia[0-9]*"

# A shell script, because it runs on the machine of the rank, which may have
# other GPUs than this one. It costs a rank a millisecond. An elastic job, Open
# MPI, MPICH or Slurm gives the number of ranks on the machine. Slurm's has the
# form "4(x2),3": the first number is taken.
_SCRIPT = """
share_gpus() {
  ranks=${TFRING_ELASTIC_SLOTS:-$OMPI_COMM_WORLD_LOCAL_SIZE}
  ranks=${ranks:-$MPI_LOCALNRANKS}
  ranks=${ranks:-$SLURM_STEP_TASKS_PER_NODE}
  ranks=${ranks%%%%[!0-9]*}
  gpus=0
  for file in %s; do
    if [ -e "$file" ]; then gpus=$((gpus + 1)); fi
  done
  if [ "$gpus" -gt 0 ] && [ -n "$CUDA_VISIBLE_DEVICES" ]; then
    gpus=$(IFS=,; set -- $CUDA_VISIBLE_DEVICES; echo $#)
  fi
  if [ "$gpus" -gt 0 ] && [ "${ranks:-1}" -gt "$gpus" ] &&
     [ -z "${TF_FORCE_GPU_ALLOW_GROWTH+set}" ]; then
    export TF_FORCE_GPU_ALLOW_GROWTH=true
  fi
}
share_gpus
unset ranks gpus file
exec "$@"
"""


def may_exist(device_files: str = DEVICE_FILES) -> bool:
    """Tells if this machine has a GPU of NVIDIA's."""
    pattern = Path(device_files)
    return any(pattern.parent.glob(pattern.name))


def share_memory(
    command: Sequence[str], device_files: str = DEVICE_FILES
) -> list[str]:
    """Returns `command` after a script that lets ranks share a GPU's memory.

    If a machine has more ranks than GPUs, or than CUDA_VISIBLE_DEVICES names,
    TensorFlow is told to allocate memory as needed. Otherwise the first rank
    would take all of it. TF_FORCE_GPU_ALLOW_GROWTH does not change if it is
    set. `tfring.init` does the same for other launchers, but too late for a
    script that uses TensorFlow before. It also chooses each rank's GPU.
    """
    return ["/bin/sh", "-c", _SCRIPT % device_files, "tfringrun", *command]
