"""Compile kernels for a GPU that is not there, and read what they need; see `__main__`."""
