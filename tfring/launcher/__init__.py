"""`tfringrun`: starts a job on this machine or on several.

```
tfringrun -np 4 python train.py
```

`cli` is the command, `command_line` its options. `prepare` decides how the job
is started, `mpi_launchers` finds the MPI launcher and speaks its options,
`running_job` runs it to the end, and `output` shows the ranks' lines.
`function` is `tfring.run`, which starts a function on ranks from a program,
through the interface of `placed`. `orders` tells child processes what to do.
Only `check_build` and `self_test` import TensorFlow or MPI, in processes of
their own, so the launcher starts at once.
"""
