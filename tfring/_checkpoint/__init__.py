"""Checkpoints of a whole job: each rank writes a part, a manifest comes last.

| module           | what it does                                             |
|------------------|----------------------------------------------------------|
| files            | the calls of the file system, which tests let fail       |
| folder           | the parts and the manifest of each checkpoint            |
| contents         | what a training consists of, and which rank writes what  |
| host_copy        | the copy in host memory that a thread writes             |
| callback_states  | the states of Keras's callbacks and of random generators |
| schedule         | when a checkpoint is due: steps, time, signals           |
| requeue          | has Slurm start a job again                              |
| coordinator      | when all ranks save, and how they learn that it is done  |
| restoring        | which checkpoint is taken, and how values are assigned   |
| saver            | all of these together, for `fit` and for loops           |
| loop             | `tfring.Checkpoint`, for loops                           |
"""
