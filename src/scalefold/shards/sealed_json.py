"""JSON files that carry a hash of their own, so that no damage to them goes unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from scalefold.errors import ChecksumError, InputError

_SEAL: Final = "sha256"


def sealed(tree: Mapping[str, Any]) -> bytes:
    """Return the content of a file: the tree, and as its last entry the hash of the rest."""
    digest = hashlib.sha256(_text(tree)).hexdigest()
    return _text({**tree, _SEAL: digest})


def read_sealed(path: Path, fix: str) -> dict[str, Any]:
    """Read such a file; one of an earlier version has no hash.

    Parameters
    ----------
    fix
        How the file is fixed, for errors.

    Raises
    ------
    InputError
        It is no JSON, or no keys are at its top.
    ChecksumError
        It is not what was written.
    FileNotFoundError
    """
    content = path.read_bytes()
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error}). {fix}") from error
    if not isinstance(tree, dict):
        raise InputError(f"{path}: expected keys, found {type(tree).__name__}. {fix}")
    seal = tree.pop(_SEAL, None)
    if seal is not None and not _is_whole(content, seal):
        raise ChecksumError(f"{path}: damaged: it does not have the sha256 that it states. {fix}")
    return tree


def check_keys(path: Path, tree: Mapping[str, Any], keys: Collection[str], fix: str) -> None:
    """Raise an InputError if other keys than these are at the top, as the hash's own, damaged."""
    if unknown := [ascii(key) for key in tree if key not in keys]:
        raise InputError(f"{path}: unknown entry {', '.join(unknown)}. {fix}")


def _is_whole(content: bytes, seal: object) -> bool:
    """Whether a file's content is what `sealed` gave; to write its tree again would take longer."""
    end = f',\n "{_SEAL}": "{seal}"\n}}\n'.encode()
    rest = content.removesuffix(end) + b"\n}\n"
    return content.endswith(end) and hashlib.sha256(rest).hexdigest() == seal


def _text(tree: Mapping[str, Any]) -> bytes:
    return (json.dumps(tree, indent=1) + "\n").encode()
