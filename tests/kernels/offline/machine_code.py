"""Machine code of Hopper GPUs: a mistake of ptxas that no test on a CPU could find."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SHORTEST_LOOP = 30
"""Instructions; shorter ones wait for a barrier."""

_NO_RESULT = (
    "ST", "BAR", "BRA", "UTM", "SYNCS", "RED", "WARP", "NOP", "EXIT", "FENCE", "MEMBAR",
    "ISETP", "FSETP", "DEPBAR",
)  # fmt: skip


class Instruction(NamedTuple):
    """Address, and text without its predicate."""

    address: int
    text: str


def overwritten_operands(listing: str) -> list[str]:
    """Matrix products whose left operand a loop has in registers from before, and overwrites.

    ptxas 12.8 did this to a kernel of a loop of two turns, whose results were then wrong by some
    per cent from the second turn on. The listing does not tell it from an operand that is made for
    the next turn: such a loop has to be written in another way, too.

    Parameters
    ----------
    listing : str
        What ``cuobjdump -sass`` prints of one kernel.

    Returns
    -------
    list of str
        ``<address of the product>: R<register>, overwritten at <address>``.
    """
    found = {}
    for body in _loops(_instructions(listing)):
        results = [_results(x.text) for x in body]
        written: set[int] = set()
        for place, instruction in enumerate(body):
            for register in _left_operand(instruction.text) - written:
                for later in range(place + 1, len(body)):
                    if register in results[later]:
                        key = f"{instruction.address:#x}: R{register}"
                        found[key] = f"{key}, overwritten at {body[later].address:#x}"
                        break
            written |= results[place]
    return sorted(found.values())


def _instructions(listing: str) -> list[Instruction]:
    pattern = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+ )?([^;]*?)\s*;", re.MULTILINE)
    return [Instruction(int(m[1], 16), m[2]) for m in pattern.finditer(listing)]


def _loops(code: Sequence[Instruction]) -> Iterator[Sequence[Instruction]]:
    """Everything from the target of a branch backwards to the branch."""
    place = {x.address: i for i, x in enumerate(code)}
    for end, branch in enumerate(code):
        target = re.match(r"BRA (?:`\(|)0x([0-9a-f]+)", branch.text)
        start = place.get(int(target[1], 16), end) if target else end
        # A wait that has to try again lies behind the code that it returns to.
        returns = any("TRYWAIT" in x.text for x in code[max(0, end - 3) : end])
        if end - start >= SHORTEST_LOOP and not returns:
            yield code[start : end + 1]


def _left_operand(text: str) -> set[int]:
    """Registers of the left operand of a matrix product."""
    found = re.match(r"HGMMA\S+ R\d+, R(\d+),", text)
    return set(range(int(found[1]), int(found[1]) + 4)) if found else set()


def _results(text: str) -> set[int]:
    """Registers that an instruction writes."""
    name = text.split(" ")[0]
    found = re.match(r"\S+ (?:U?P\w+, )*R(\d+)\b", text)
    if found is None or name.startswith(_NO_RESULT):
        return set()
    return set(range(int(found[1]), int(found[1]) + _width(name)))


def _width(name: str) -> int:
    """Of an instruction's result, in registers."""
    if product := re.match(r"HGMMA\.64x(\d+)", name):
        return int(product[1]) // 2
    if name.startswith("LDSM"):
        return 4 if ".4" in name else 2 if ".2" in name else 1
    if name.startswith("CS2R"):
        return 1 if ".32" in name else 2
    if ".128" in name:
        return 4
    return 2 if "WIDE" in name or (".64" in name and name.startswith("LD")) else 1
