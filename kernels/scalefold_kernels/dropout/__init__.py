"""Dropout whose mask is a pure function of where it acts, for kernels and in plain torch."""
