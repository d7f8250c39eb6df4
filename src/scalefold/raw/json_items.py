"""Large JSON objects, item by item."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scalefold.errors import InputError
from scalefold.raw.compressed import read_text_pieces

_KEY: Final = re.compile(r'[\s,]*("(?:[^"\\]|\\.)*")\s*:\s*')
_MAX_ITEM: Final = 1 << 24


def json_items(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the items of a JSON object of objects one by one, whatever the file's size.

    Raises
    ------
    InputError
        The file is not such an object, is cut off, or has an item of more than 16 MiB.
    """
    decoder, buffer, is_open = json.JSONDecoder(), "", False
    for piece in read_text_pieces(path):
        buffer = buffer + piece if is_open else (buffer + piece).lstrip().removeprefix("{")
        is_open, at = True, 0
        while match := _KEY.match(buffer, at):
            try:
                name = json.loads(match[1])
                value, at = decoder.raw_decode(buffer, match.end())
            except ValueError:  # the rest comes with the next piece, or is no JSON
                break
            except RecursionError as error:
                raise InputError(f"{path}: nested too deeply for a file of OpenFold's") from error
            if not isinstance(value, dict):
                raise InputError(
                    f"{path}: item {match[1][:80]} is no JSON object, as those of OpenFold's "
                    "caches are. Name another file."
                )
            yield name, value
        buffer = buffer[at:]
        if len(buffer) > _MAX_ITEM:
            break
    if buffer.strip(" \t\r\n,") != "}":
        raise InputError(
            f"{path}: not readable as JSON from {buffer.strip()[:60]!r} on, or cut there. Make it "
            "or download it again."
        )
