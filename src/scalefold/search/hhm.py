"""Read HH-suite's profile HMMs (hhm).

Shapes: ``L`` match states.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scalefold.chem.residues import RESTYPES
from scalefold.errors import InputError

TRANSITIONS: Final = ("M->M", "M->I", "M->D", "I->M", "I->I", "D->M", "D->D")
_LETTERS: Final = "ACDEFGHIKLMNPQRSTVWY"  # the order of a file's columns
_ORDER: Final = [_LETTERS.index(letter) for letter in RESTYPES]
_FIELD: Final = re.compile(r"^(NAME|LENG|NEFF) +(\S+)", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class ProfileHmm:
    """A profile HMM.

    Parameters
    ----------
    name
        First word of the title.
    sequence
        ``L`` letters, or ``-``, of the alignment's first sequence that is not the consensus.
    neff
        Diversity of the alignment: mean number of effective sequences.
    emissions
        ``[L, 20]`` float32: probability of each residue type in a match state, in AlphaFold2's
        order. Rows sum to about 1.
    transitions
        ``[L + 1, 7]`` float32: probabilities of :data:`TRANSITIONS`; row 0 is the begin state's.
    column_neff
        ``[L]`` float32: effective sequences in each match state.
    """

    name: str
    sequence: str
    neff: float
    emissions: NDArray[np.float32]
    transitions: NDArray[np.float32]
    column_neff: NDArray[np.float32]

    def __len__(self) -> int:
        """Return the number of match states."""
        return len(self.emissions)


def parse_hhm(text: str, source: str) -> ProfileHmm:
    """Parse an hhm file.

    Raises
    ------
    InputError
        Not an hhm file, cut off, or of another length than it states. ``source`` names the file.
    """
    if not text.startswith("HHsearch"):
        raise InputError(f"{source}: does not begin with 'HHsearch': no hhm file. Make it again")
    head, separator, body = text.partition("\n#\n")
    states = body.split("\nHMM ", 1)[-1].split("\n")
    ends = [number for number, line in enumerate(states) if line.strip() == "//"]
    if not separator or not ends:
        raise InputError(f"{source}: does not end with '//': it is cut off. Make it again")
    facts = {match[1]: match[2] for match in _FIELD.finditer(head)}
    lines = [line.split() for line in states[1 : ends[0]] if line.strip()]
    # Transition names; the begin state's transitions; of each state two lines.
    emitted, moved = lines[2::2], lines[1::2]
    length = len(emitted)
    sequence = _first_sequence(head)
    try:
        stated, neff = int(facts["LENG"]), float(facts["NEFF"])
        emissions = _probabilities([row[2:22] for row in emitted], 20)[:, _ORDER]
        transitions = _probabilities([row[:7] for row in moved], 7)
        column_neff = np.array([float(row[7]) / 1000.0 for row in moved[1:]], np.float32)
    except (ArithmeticError, LookupError, ValueError) as error:
        raise InputError(f"{source}: is damaged ({error}). Make it again") from error
    if not stated == length == len(sequence) == len(moved) - 1:
        raise InputError(
            f"{source}: states {stated} match states, has {length}, and a sequence of "
            f"{len(sequence)}. It is damaged: make it again"
        )
    return ProfileHmm(facts.get("NAME", ""), sequence, neff, emissions, transitions, column_neff)


def _probabilities(rows: Sequence[Sequence[str]], width: int) -> NDArray[np.float32]:
    """Return probabilities of -1000 log2 p; ``*`` stands for 0."""
    bits = [[np.inf if field == "*" else int(field) / 1000.0 for field in row] for row in rows]
    if any(len(row) != width for row in bits):
        raise ValueError(f"a line of fewer than {width} numbers")
    return np.exp2(-np.array(bits, np.float32).reshape(len(bits), width))


def _first_sequence(head: str) -> str:
    """Return the letters of the first sequence that is no annotation."""
    for record in head.split("\n>")[1:]:
        title, _, body = record.partition("\n")
        name = (title.split() or [""])[0]
        if name != "Consensus" and not name.startswith(("ss_", "sa_")):
            return "".join(symbol for symbol in body if symbol.isupper() or symbol == "-")
    return ""
