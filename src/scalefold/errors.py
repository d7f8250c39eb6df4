"""Errors that are the user's to mend."""


class InputError(ValueError):
    """Bad input: a file, key or shape that cannot be used.

    The message names the file or key, states what was found and what was expected, and says how to
    mend it. The command line prints it without a traceback.
    """


class ChecksumError(InputError):
    """Stored bytes do not have the hash that was recorded for them."""
