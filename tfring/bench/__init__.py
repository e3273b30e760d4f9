"""`tfring-bench`: how fast collectives are, here and now.

    tfringrun -np 2 tfring-bench allreduce --peers=mpi

`cli` is the command line. Its subcommands are `collectives` and `gradients`,
over `measure`, which takes the times, `peers`, with which they are compared,
and `report` and `plots`, which show them.
"""
