"""A dataset of Keras's that is read without tf.data's autotuning."""

import tensorflow as tf
from keras.src.trainers.data_adapters import py_dataset_adapter


class Untuned(py_dataset_adapter.PyDatasetAdapter):
    """A `PyDataset` that Keras reads without tf.data's autotuning.

    A tuned iterator may take up to 60 s to end: CancellationManager wakes the
    tuner before it reads as cancelled, and a tuner that looks in between sleeps
    for another period. All ranks would wait for that iterator's rank.
    """

    def get_tf_dataset(self) -> tf.data.Dataset:
        options = tf.data.Options()
        options.autotune.enabled = False
        return super().get_tf_dataset().with_options(options)
