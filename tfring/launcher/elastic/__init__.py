"""Elastic jobs: `tfringrun --elastic ...`.

`driver` runs a job in the launcher. It gives events to `membership`, whose
`rules` decide who trains; `generation`, `joiners`, `trainings` and `roster` are
parts of the rules, over the data of `host_table`, `workers` and `places`.
`server` has the sockets, and `screen` shows what workers write.

`supervisor` is a program on each host, which starts and kills the workers of
that host (`worker_process`) and talks to the launcher by `launcher_channels`.
`agents` starts the supervisors, and `discovery` runs the user's script, each as
a `child`: a program for which the launcher does not wait.
"""
