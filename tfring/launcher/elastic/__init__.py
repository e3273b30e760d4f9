"""Elastic jobs: `tfringrun --elastic ...`.

`driver` runs a job in the launcher: `membership` has the rules by which workers
belong to it, with `generation`, `joiners` and `roster`, over `host_table`,
`workers` and `places`, which are data;
`server` has the sockets. `supervisor` is a program, one on each host, that
starts and kills that host's workers (`worker_process`), and talks to the
launcher by `launcher_channels`. `agents` starts the supervisors, and
`discovery` the user's script, each by a `child`: a program for which the
launcher does not wait.
`screen` shows what workers write.
"""
