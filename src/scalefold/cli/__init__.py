"""The command line, ``scalefold``: thin commands over the library.

Each command imports what it needs when it runs, so that ``scalefold --help`` is immediate.
"""

from scalefold.cli.application import app

__all__ = ["app"]
