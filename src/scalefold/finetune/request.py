"""The arguments of ``scalefold finetune``, and the files of its run's folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scalefold.config.identity import leaves

LISTING_REJECTED: Final = "input/rejected.tsv"
"""In the run's folder: what is not listed, and why."""


@dataclass(frozen=True)
class Request:
    """The arguments of ``scalefold finetune``.

    Attributes
    ----------
    validation : int or None
        Chains to hold out; None: a tenth of the clusters.
    overrides : mapping
        Further settings, nested as in a configuration file.
    """

    structures: Path
    weights: Path
    out: Path
    alignments: Path | None
    query_alone: bool
    preset: str | None
    validation: int | None
    clusters: str
    overrides: Mapping[str, Any]

    @property
    def settings(self) -> Path:
        """The configuration file that is made."""
        return self.out / "finetune.yaml"

    @property
    def mirror(self) -> Path:
        """Folder of the structures that the workflow reads."""
        return self.out / "input/structures"

    @property
    def queries(self) -> Path:
        """Folder of the alignments that hold the query alone."""
        return self.out / "input/alignments"

    @property
    def sequences(self) -> Path:
        """FASTA file of the chains that can be listed."""
        return self.out / "input/sequences.fasta"

    @property
    def chains(self) -> Path:
        """The list of chains."""
        return self.out / "input/chains.tsv"

    @property
    def rejected(self) -> Path:
        """Table of what is not listed, and why."""
        return self.out / LISTING_REJECTED

    @property
    def command(self) -> str:
        """The arguments in one line."""
        words = [str(self.structures), "--weights", str(self.weights), "--out", str(self.out)]
        for option, value in (
            ("--alignments", self.alignments),
            ("--preset", self.preset),
            ("--validation", self.validation),
        ):
            words += [] if value is None else [option, str(value)]
        words += ["--query-alone"] if self.query_alone else []
        words += ["--clusters", self.clusters] if self.clusters != "mmseqs" else []
        for key, value in leaves(self.overrides):
            words += ["--set", f"{key}={json.dumps(value)}"]
        return shlex.join(words)
