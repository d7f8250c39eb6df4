"""The section `search` of the configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scalefold.config.section import Section
from scalefold.config.values import FileName, Positive, WrittenPath


class SearchStepConfig(Section):
    """One program, what it searches, and what it may take."""

    tool: Literal[
        "jackhmmer", "pyhmmer", "hhblits", "mmseqs", "mmseqs_gpu", "hmmsearch", "hhsearch"
    ]
    databases: list[WrittenPath] = Field(
        min_length=1,
        description="FASTA file (jackhmmer, pyhmmer, hmmsearch), or prefix of a database "
        "(HH-suite, MMseqs2). HH-suite's programs take several at once.",
    )
    name: FileName = Field(
        description="Of the result: one of data.alignments, or data.template_hits for hhsearch."
    )
    max_rows: Positive | None = Field(
        None, description="First rows kept of an alignment, the query included; null: all."
    )
    max_minutes: Positive = Field(120, description="Longest time for one sequence.")
    max_memory_gigabytes: Positive = Field(
        16, description="Mapped databases do not count. pyhmmer has no such limit."
    )
    options: list[str] | None = Field(
        None, description="Command line words in place of AlphaFold2's."
    )

    @model_validator(mode="after")
    def _one_database(self) -> SearchStepConfig:
        if len(self.databases) > 1 and not self.tool.startswith("hh"):
            raise ValueError(
                f"{self.tool} takes one database, {len(self.databases)} are given: make a step of "
                "each, with names of their own"
            )
        return self


class SearchConfig(Section):
    """Search of alignments for sequences that the mirrors have none of."""

    steps: list[SearchStepConfig] = Field([], description="In this order, for each sequence.")
    given: WrittenPath | None = Field(
        None,
        description="Folder of alignments that are there already, taken instead of a search: "
        "<chain_key>.a3m (ColabFold's too) or .sto.",
    )
    query_alone: bool = Field(
        False, description="Take the query as its alignment where nothing is found."
    )
    threads: Positive = Field(4, description="Of each program.")
    jobs: Positive = Field(8, le=1000, description="Into which the sequences are divided.")

    @property
    def job_megabytes(self) -> int:
        """Memory that a job needs: that of its largest step, and some for itself."""
        return 2000 + 1000 * max((step.max_memory_gigabytes for step in self.steps), default=0)

    @model_validator(mode="after")
    def _one_result_each(self) -> SearchConfig:
        names = [step.name for step in self.steps]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"search.steps: {len(names)} steps, and the results of two are named {twice[0]}: "
                "name them apart"
            )
        return self
