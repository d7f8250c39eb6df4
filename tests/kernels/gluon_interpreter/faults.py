"""What the interpreter says of kernels that would go wrong on a GPU."""


class KernelError(Exception):
    """A kernel does what it must not: it may work on a GPU at times, and not at others."""


class DeadlockError(KernelError):
    """Every partition of a program waits, and nothing is under way that would end it."""
