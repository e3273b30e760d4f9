"""The only package that changes Keras or imports its private modules.

`hooks.py` has the table of the functions of Keras that are changed. Other
packages use only what is public in Keras.
"""
