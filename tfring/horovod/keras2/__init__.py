"""Horovod's Keras modules where `tf.keras` is Keras 2.

`TF_USE_LEGACY_KERAS=1` makes it so: the package `tf_keras`.
`tfring.DistributedOptimizer` wraps its optimizers.
"""
