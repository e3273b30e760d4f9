"""Makes Slurm start a job again after it has saved."""

from __future__ import annotations

import os
import subprocess

# A busy controller may take long; Slurm gives a job some minutes to end.
_SECONDS = 60.0


def requeue() -> str:
    """Runs `scontrol requeue` for this job; returns the outcome in words.

    One rank calls it when the checkpoint is complete, because Slurm then ends
    the job. A failure is not raised: the checkpoint is complete anyway.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return (
            "It is not requeued: SLURM_JOB_ID is not set, so this is no job of "
            "Slurm. Start it again by other means."
        )
    command = ["scontrol", "requeue", job]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        if done.returncode == 0:
            return f"Slurm has put job {job} back into its queue."
        reason = done.stderr.strip() or f"exit status {done.returncode}"
    return (
        f"It is not requeued: `{' '.join(command)}` has failed: {reason}. "
        "Submit it again."
    )
