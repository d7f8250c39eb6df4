"""Python's search for garbage, kept from holding up the steps of a GPU."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def present_objects_spared() -> Iterator[None]:
    """Around steps, once all is compiled and captured: what is there is not searched any more.

    Compilers leave hundreds of thousands of objects. A search through all takes a quarter of a
    second or more, in which no thread runs, and the many small objects of a checkpoint bring one
    about.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
