"""Names of entries and chains: ``1abc`` and its chain key ``1abc_A``."""

from __future__ import annotations

import re
from typing import Final

# Files and folders get these names: neither part may lead to another folder, nor the entry's hash.
# File systems take 255 characters, and endings are added.
_CHAIN_KEY: Final = re.compile(r"(?=.{6,200}\Z)[a-z0-9_-]{4,}_[A-Za-z0-9.+-]+")
_FOUR_CHARACTERS: Final = re.compile(r"[0-9][a-z0-9]{3}")
_EXTENDED: Final = re.compile(r"pdb_0000[0-9][a-z0-9]{3}(?:_|$)")


def is_chain_key(text: str) -> bool:
    """Whether a text is ``<entry>_<author chain>``, safe as the name of a file."""
    return _CHAIN_KEY.fullmatch(text) is not None


def entry_of(chain_key: str) -> str:
    """Return the entry id of a chain key, ``1abc`` of ``1abc_A``.

    The entry is everything before the last underscore: extended ids such as ``pdb_00001abc`` have
    one of their own, author chain names have none.
    """
    return chain_key.rpartition("_")[0]


def short_form(name: str) -> str:
    """Return an entry or a chain key with the entry's four characters, if it has them.

    ``pdb_00001abc`` and ``1abc`` are one entry, in wwPDB's extended and in its first form.
    """
    return name[8:] if _EXTENDED.match(name) else name


def extended_form(entry_id: str) -> str:
    """Return ``pdb_00001abc`` of ``1abc``; other names stay."""
    return f"pdb_0000{entry_id}" if _FOUR_CHARACTERS.fullmatch(entry_id) else entry_id
