"""The public wrappers: optimizers of Keras 3, Keras 2, TensorFlow 1, tapes."""
