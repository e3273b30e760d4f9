"""This process in the job: library, settings, errors, MPI, process sets."""
