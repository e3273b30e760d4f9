"""`tfring-bench`: how fast collectives and training steps are, here and now.

    tfringrun -np 2 tfring-bench allreduce --peers=mpi

`cli` is the command line; `collectives`, `gradients`, `step` and `roofline` are
its subcommands, over `measure`, which takes the times, `peers`, with which they
are compared, and `report`, which shows them.
"""
