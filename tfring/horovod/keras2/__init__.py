"""Horovod's Keras modules where `tf.keras` is Keras 2.

With `TF_USE_LEGACY_KERAS=1`, `tf.keras` is the package `tf_keras`.
`tfring.DistributedOptimizer` wraps its optimizers.
"""
