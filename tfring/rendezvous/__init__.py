"""How the processes of an elastic job talk to one another over TCP.

`handshake` proves that both ends of a connection have the job's token, `frames`
are messages on it, and `wire` has the connections: `connect`, `Listener` and
`Channel`. `addresses` has the sockets, by name. Nothing here imports
TensorFlow, MPI or another part of tfring: the launcher, its supervisors and the
workers use the same code.
"""
