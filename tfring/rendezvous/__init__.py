"""How the processes of an elastic job talk to one another over TCP.

`handshake` proves that both ends of a connection have the job's token, `frames`
are messages on it, and `wire` has the sockets: `connect`, `Listener` and
`Channel`. Nothing here imports TensorFlow, MPI or another part of tfring: the
launcher, its supervisors and the workers use the same code.
"""
