"""Triton's cache beside one that an image brings, which no user can write.

The image names both: ``TRITON_CACHE_MANAGER=scalefold.engine.shipped_kernels:CacheBesideShipped``,
and ``TRITON_OVERRIDE_DIR``, a folder that Triton otherwise reads only where it is told to replace
what it compiles.
"""

from __future__ import annotations

from triton.runtime.cache import FileCacheManager


class CacheBesideShipped(FileCacheManager):
    """Files of one kernel, of the user's cache or else of the image. New ones go to the user's."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        self._shipped = FileCacheManager(key, override=True)

    def get_file(self, filename: str) -> str | None:
        """Path of a file of the kernel, if there is one."""
        return super().get_file(filename) or self._shipped.get_file(filename)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths of all files of the kernel by name, if there are any."""
        return super().get_group(filename) or self._shipped.get_group(filename)
