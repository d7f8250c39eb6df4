"""Dropout whose mask is a pure function of where it acts, for kernels and in plain torch.

Kernels of several ops call these functions. They are no op and have no backends.
"""
