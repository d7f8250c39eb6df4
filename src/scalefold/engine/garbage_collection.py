"""Keeping Python's garbage collection out of a GPU's steps."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def present_objects_spared() -> Iterator[None]:
    """Around steps, once all is compiled and captured: objects that exist then are not searched any
    more.

    Compilers leave hundreds of thousands of objects. The many small objects of a checkpoint start a
    collection, which takes a quarter of a second or more, and no thread runs meanwhile.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
