"""Times, checks and tunes the kernels: ``python -m scalefold_kernels.bench``."""
