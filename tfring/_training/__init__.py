"""Optimizers and tapes, and how ranks agree in Keras's fit."""
