"""Reads the files that `tfring.start_timeline` records.

This command prints figures and draws a picture:

    python -m tfring.timeline summarize FILE
"""
