"""The build of tfring: finding TensorFlow and MPI, and PEP 517.

Runs before anything is installed: only the standard library, and setuptools
in `backend`.
"""
