"""What tfring adds to Keras: the one place that changes or imports its parts.

`hooks.py` has the table of the functions that it adds to. All else of Keras
that other packages use is public.
"""
