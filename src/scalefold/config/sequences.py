"""The sections `predict` and `distillation` of the configuration: sequences that are predicted."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from scalefold.config.section import Section
from scalefold.config.values import NonNegative, Positive, WrittenPath


class SequencesConfig(Section):
    """Sequences, and where their alignments come from."""

    fasta: WrittenPath | None = Field(None, description="Sequences to predict, or null.")
    alignments: WrittenPath | None = Field(
        None,
        description="Folder with <name>/a3m/*.a3m of each sequence; null: search them, as the "
        "section search says.",
    )
    query_alone: bool = Field(False, description="Without alignments: far less accurate.")

    @property
    def searches(self) -> bool:
        """Whether alignments of the sequences are to be searched."""
        return self.fasta is not None and self.alignments is None and not self.query_alone


class PredictConfig(SequencesConfig):
    """Structures of sequences, by the weights that the run ends with, or by given ones."""

    weights: list[WrittenPath] = Field(
        [],
        description="Weights that predict. The run then only predicts, and needs no section data. "
        "Empty: those that the run ends with.",
    )
    early_stop_angstrom: Annotated[float, Field(ge=0.0)] = Field(
        0.0,
        description="Recycling ends when it changes distances between CA atoms by less; 0: never.",
    )
    relax: bool = Field(
        False, description="Relax the best model of each sequence by OpenMM, the extra relax."
    )

    @model_validator(mode="after")
    def _has_sequences(self) -> Self:
        if self.weights and self.fasta is None:
            raise ValueError(
                "predict.weights are given, but there are no sequences to predict: set "
                "predict.fasta"
            )
        return self


class DistillationConfig(SequencesConfig):
    """Predicted structures that are trained on (Jumper et al. 2021, Suppl. sec. 1.3)."""

    weights: WrittenPath | None = Field(
        None,
        description="What predicts; null: the weights that the training starts from, those of the "
        "stage before.",
    )
    jobs: Positive = Field(8, le=1000, description="Into which the prediction is divided.")
    min_length: Positive = Field(200, description="Residues of a sequence that is kept.")
    max_length: Positive = Field(1024, description="Longer ones are not predicted.")
    min_alignment_rows: NonNegative = Field(
        200, description="Different rows of its alignment, the query included."
    )
    min_mean_plddt: Annotated[float, Field(ge=0, le=100)] = Field(
        70.0, description="Confidence of a chain that is kept; AlphaFold2 has no such limit."
    )
