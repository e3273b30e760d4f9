"""Epochs that a `fit` begins in the middle."""

# Among the parameters of callbacks: how many steps of its first epoch were done
# before a `fit` of `tfring.elastic` began.
STEPS_BEFORE = "tfring_steps_before"
