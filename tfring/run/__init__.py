"""`tfringrun`: starts a job on this machine or on several.

```
tfringrun -np 4 python train.py
```

`launcher` reads the command line, `mpi_launchers` finds the MPI launcher and
speaks its options, `job` runs it to the end, and `output` says which rank wrote
what. Nothing here imports TensorFlow or MPI, so that it starts at once; only
`check_build` and `self_test` do, each in processes of its own.
"""
