"""One GPU for each rank of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# One for each GPU that a machine, or a container, has.
DEVICE_FILES = "/dev/nvidia[0-9]*"

# In the shell, as it runs on the machine of the rank, which may have other GPUs
# than this one, and costs a rank a millisecond. CUDA counts the GPUs that it
# may use from 0. The names of the ranks' variables are Open MPI's, MPICH's and
# Slurm's.
_SCRIPT = """
set_gpu() {
  local_rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$SLURM_LOCALID}}
  local_size=${OMPI_COMM_WORLD_LOCAL_SIZE:-${MPI_LOCALNRANKS:-1}}
  gpus=0
  for file in %s; do
    if [ -e "$file" ]; then gpus=$((gpus + 1)); fi
  done
  if [ "$gpus" -eq 0 ] || [ -z "$local_rank" ]; then return; fi
  if [ -z "${CUDA_VISIBLE_DEVICES+set}" ]; then
    export CUDA_VISIBLE_DEVICES=$((local_rank %% gpus))
    if [ "$local_size" -gt "$gpus" ] &&
       [ -z "${TF_FORCE_GPU_ALLOW_GROWTH+set}" ]; then
      export TF_FORCE_GPU_ALLOW_GROWTH=true
    fi
  fi
}
set_gpu
unset local_rank local_size gpus file
exec "$@"
"""


def may_exist(device_files: str = DEVICE_FILES) -> bool:
    """Tells if this machine has a GPU of NVIDIA's."""
    pattern = Path(device_files)
    return any(pattern.parent.glob(pattern.name))


def one_for_each_rank(
    command: Sequence[str], device_files: str = DEVICE_FILES
) -> list[str]:
    """Returns `command`, preceded by what gives each rank its GPU.

    By its place among the ranks of its machine, round and round if there are
    more ranks than GPUs; then TensorFlow is also told to take memory as it
    grows, or the first rank would leave the others none. Variables that are set
    are left alone: CUDA_VISIBLE_DEVICES, also to nothing, and
    TF_FORCE_GPU_ALLOW_GROWTH.
    """
    return ["/bin/sh", "-c", _SCRIPT % device_files, "tfringrun", *command]
