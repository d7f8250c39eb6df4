"""Write a mirror of made-up chains, of any size, to measure how data are packed.

    python -m tools.synthetic_mirror FOLDER --chains 300

Lengths, depths of alignments, numbers of template hits and of chains a sequence are like those of
OpenProteinSet. Each file is a function of the seed and the chain's number, so a larger mirror holds
a smaller one. Structures are valid mmCIF files of one chain each, whose atoms are a random walk.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import gemmi
import numpy as np
from numpy.typing import NDArray

from scalefold.raw.raw_folder import folder_hash

CHAINS_OF_A_SEQUENCE: Final = 4
"""OpenProteinSet has 131,000 alignments for 634,000 chains."""
MOST_HITS: Final = 500
DEPTHS: Final = {
    "uniref90_hits": (2000, 10_000),
    "bfd_uniclust_hits": (1200, 20_000),
    "mgnify_hits": (300, 5000),
}
"""Median and most rows of an alignment, whose logarithms have a deviation of `_SPREAD`."""
_SPREAD: Final = 1.2
_LETTERS: Final = np.frombuffer(b"ARNDCQEGHILKMFPSTWYV", np.uint8)
_FREQUENCIES: Final = np.array(
    [83, 55, 41, 55, 14, 39, 68, 71, 23, 60, 97, 58, 24, 39, 47, 66, 54, 11, 29, 69], float
)  # of Swiss-Prot, per mille
_BACKBONE: Final = (("N", "N"), ("CA", "C"), ("C", "C"), ("O", "O"))


def entry_name(number: int) -> str:
    """Return the entry of a chain, which is its chain A."""
    return f"s{number:07d}"


def sequence_number(number: int) -> int:
    """Return which sequence a chain has."""
    return number // CHAINS_OF_A_SEQUENCE


def release_date(number: int) -> str:
    """Return the day of release, from 1990 to 2024."""
    days = np.random.default_rng([3, number]).integers(0, 35 * 365)
    return str(np.datetime64("1990-01-01") + days)


def sequence_of(sequence: int) -> NDArray[np.uint8]:
    """Return the letters of a sequence, as ASCII codes."""
    generator = np.random.default_rng([1, sequence])
    length = int(np.clip(generator.lognormal(np.log(240), 0.65), 20, 2500))
    return generator.choice(_LETTERS, length, p=_FREQUENCIES / _FREQUENCIES.sum())


def structure(number: int) -> bytes:
    """Return the mmCIF file of a chain."""
    letters = sequence_of(sequence_number(number))
    generator = np.random.default_rng([2, number])
    names = gemmi.expand_one_letter_sequence(letters.tobytes().decode(), gemmi.ResidueKind.AA)
    trace = np.cumsum(generator.normal(scale=2.2, size=(len(letters), 3)), 0)
    chain = gemmi.Chain("A")
    for place, name in enumerate(names):
        residue = gemmi.Residue()
        residue.name, residue.seqid = name, gemmi.SeqId(place + 1, " ")
        residue.label_seq, residue.entity_type = place + 1, gemmi.EntityType.Polymer
        side = [("CB", "C")] if name != "GLY" else []
        for atom_name, element in [*_BACKBONE, *side]:
            atom = gemmi.Atom()
            atom.name, atom.element = atom_name, gemmi.Element(element)
            atom.pos = gemmi.Position(*(trace[place] + generator.normal(scale=1.0, size=3)))
            residue.add_atom(atom)
        chain.add_residue(residue)
    model = gemmi.Model(1)
    model.add_chain(chain)
    found = gemmi.Structure()
    found.name = entry_name(number).upper()
    found.add_model(model)
    found.setup_entities()
    found.entities[0].full_sequence = names
    document = found.make_mmcif_document()
    block = document.sole_block()
    block.set_pair("_database_2.database_id", "PDB")
    block.set_pair("_exptl.method", "'X-RAY DIFFRACTION'")
    block.set_pair("_refine.ls_d_res_high", f"{generator.uniform(1, 4):.2f}")
    block.set_pair("_pdbx_audit_revision_history.revision_date", release_date(number))
    return gzip.compress((document.as_string() + "#\n").encode(), 1, mtime=0)


def alignment(sequence: int, name: str) -> Iterator[bytes]:
    """Yield the lines of an a3m file: rows of falling identity, gaps at the ends, insertions."""
    query = sequence_of(sequence)
    median, most = DEPTHS[name]
    generator = np.random.default_rng([4, sequence, list(DEPTHS).index(name)])
    depth = int(np.clip(generator.lognormal(np.log(median), _SPREAD), 1, most))
    yield b">query\n" + query.tobytes() + b"\n"
    for row in range(1, depth):
        kept = generator.random(len(query)) < np.interp(row, [0, depth], [0.9, 0.2])
        letters = np.where(kept, query, generator.choice(_LETTERS, len(query)))
        left, right = generator.integers(0, len(query) // 4 + 1, 2)
        letters[:left] = letters[len(query) - right :] = ord("-")
        place = int(generator.integers(0, len(query)))
        inserted = b"gas" if row % 4 == 0 else b""
        text = letters[:place].tobytes() + inserted + letters[place:].tobytes()
        yield b">%s_%d\n%s\n" % (name.encode(), row, text)


def hits_of(sequence: int, num_sequences: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield template hits, best first: chain, first residue of query and of template, columns."""
    generator = np.random.default_rng([5, sequence])
    length = len(sequence_of(sequence))
    for _ in range(int(generator.integers(MOST_HITS // 2, MOST_HITS + 1))):
        other = int(generator.integers(num_sequences))
        columns = min(length, len(sequence_of(other)))
        columns = int(columns * generator.uniform(0.5, 1.0))
        first = int(generator.integers(0, length - columns + 1))
        start = int(generator.integers(0, len(sequence_of(other)) - columns + 1))
        yield other * CHAINS_OF_A_SEQUENCE, first, start, columns


def template_hits(sequence: int, num_sequences: int) -> str:
    """Return an hhr file."""
    query = sequence_of(sequence)
    hits = list(hits_of(sequence, num_sequences))
    head = f"Query         query\nMatch_columns {len(query)}\n\n No Hit\n"
    lines, shown = [], []
    for number, (chain, first, start, columns) in enumerate(hits, 1):
        name, template = f"{entry_name(chain)}_A", sequence_of(sequence_number(chain))
        lines.append(f"{number:3d} {name}\n")
        shown.append(
            f"\nNo {number}\n>{name}\nProbab=99.00  E-value=1e-20  Score=200.0  "
            f"Aligned_cols={columns}  Identities=30%  Similarity=0.5  "
            f"Sum_probs={500 - number / 2:.1f}\n\n"
        )
        for name_, letters, at, total in (
            ("Q query", query, first, len(query)),
            (f"T {name}", template, start, len(template)),
        ):
            text = letters[at : at + columns].tobytes().decode()
            shown.append(f"{name_} {at + 1:4d} {text} {at + columns:4d} ({total})\n")
    return head + "".join(lines) + "\n" + "".join(shown) + "\n"


def chain_list(num_chains: int) -> Iterator[str]:
    """Yield the lines of the list of chains: every 500th sequence is for validation."""
    yield "chain_key\tsplit\tcluster_id\n"
    for number in range(num_chains):
        cluster = sequence_number(number) // 3
        split = "validation" if cluster % 500 == 0 else "train"
        yield f"{entry_name(number)}_A\t{split}\t{cluster}\n"


def write_mirror(folder: Path, num_chains: int) -> None:
    """Write structures, alignments and the list of chains, in the layouts of the archives."""
    num_sequences = -(-num_chains // CHAINS_OF_A_SEQUENCE)
    for number in range(num_chains):
        entry = entry_name(number)
        path = folder / f"wwpdb/pub/pdb/data/structures/divided/mmCIF/{folder_hash(entry)}"
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{entry}.cif.gz").write_bytes(structure(number))
        if number % CHAINS_OF_A_SEQUENCE == 0:
            below = folder / f"openproteinset/pdb/{entry}_A"
            for kind in ("a3m", "hhr"):
                (below / kind).mkdir(parents=True, exist_ok=True)
            sequence = sequence_number(number)
            for name in DEPTHS:
                with (below / f"a3m/{name}.a3m").open("wb") as file:
                    file.writelines(alignment(sequence, name))
            (below / "hhr/pdb70_hits.hhr").write_text(template_hits(sequence, num_sequences))
    with (folder / "chains.tsv").open("w") as table:
        table.writelines(chain_list(num_chains))


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chains", type=int, default=300)
    arguments = parser.parse_args()
    write_mirror(arguments.folder, arguments.chains)


if __name__ == "__main__":
    main()
