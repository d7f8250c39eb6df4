"""The typed configuration: every key, its meaning, its default and its bounds.

The sections ``data``, ``shards``, ``model``, ``search``, ``predict`` and ``distillation`` have
modules of their own beside it.
Frozen, unknown keys are errors. Defaults are AlphaFold2's initial training (Jumper et al. 2021,
Suppl. Table 4); ``presets.yaml`` states the differences of every other preset as data.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from scalefold.config.data import DataConfig, ShardsConfig
from scalefold.config.model import ModelConfig
from scalefold.config.search import SearchConfig
from scalefold.config.section import Section
from scalefold.config.sequences import DistillationConfig, PredictConfig
from scalefold.config.values import (
    BelowOne,
    NonNegative,
    Positive,
    Probability,
    ResultsFolder,
    Weight,
    WrittenPath,
)

_FOLDER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


# --- features -----------------------------------------------------------------------------------


class MaskedMsaConfig(Section):
    """BERT masking of the MSA (Suppl. sec. 1.2.7); the rest of the probability is the MASK."""

    replace_fraction: Probability = 0.15
    uniform: Probability = 0.1
    profile: Probability = 0.1
    same: Probability = 0.1


class BlockDeletionConfig(Section):
    """MSA block deletion (Suppl. Alg. 1)."""

    enabled: bool = True
    fraction_per_block: Probability = 0.3
    num_blocks: Positive = 5
    randomize_num_blocks: bool = False


class DistilledConfig(Section):
    """What is different in samples of predicted structures (Suppl. sec. 1.3)."""

    min_plddt: Annotated[float, Field(ge=0, le=100)] = Field(
        50.0, description="Residues of lower confidence are not learnt from, as in OpenFold."
    )
    max_msa_rows: Positive = Field(
        1000, description="Rows drawn of the alignment, the query included."
    )


class FeaturesConfig(Section):
    """From a shard row to the model's fixed-shape tensors."""

    crop_size: Positive = Field(256, description="N_res in training.")
    residue_crop: Literal["alphafold", "uniform"] = Field(
        "alphafold",
        description="Start of the crop: nearer the N-terminus where the FAPE is not clamped "
        "(Suppl. sec. 1.2.8), or uniform (MLPerf).",
    )
    max_msa_clusters: Positive = Field(
        124, description="Clustered MSA rows, without the template rows (N_clust)."
    )
    max_extra_msa: Positive = Field(1024, description="Unclustered rows (N_extra_seq).")
    max_templates: Positive = Field(4, description="Template slots (N_templ).")
    template_pool: Positive = Field(20, description="Best hits that templates are drawn from.")
    template_draw: Literal["alphafold", "mlperf"] = Field(
        "alphafold",
        description="Number of templates in training: min(U{0..n}, 4), or U{0..min(n, 4)}.",
    )
    template_date_margin_days: NonNegative = Field(
        60, description="Templates must be released this long before the query."
    )
    masked_msa: MaskedMsaConfig = MaskedMsaConfig()
    block_deletion: BlockDeletionConfig = BlockDeletionConfig()
    clamp_fape_probability: Probability = 0.9
    distilled: DistilledConfig = DistilledConfig()

    @field_validator("max_templates", mode="before")
    @classmethod
    def _slots(cls, number: Any) -> Any:
        if number == 0:
            raise ValueError(
                "there is one slot at least: to do without templates, set model.template.enabled "
                "to false, or data.template_hits to null"
            )
        return number


class SamplingConfig(Section):
    """Which chains are drawn in training, and how often."""

    max_resolution_angstrom: Annotated[float, Field(gt=0)] = 9.0
    allow_unknown_resolution: bool = True
    max_single_residue_fraction: Probability = 0.8
    require_cluster: bool = False
    weights: Literal["alphafold", "mlperf", "uniform"] = Field(
        "alphafold",
        description="clip(L, 256, 512) / 512 over cluster size (alphafold) or its root (mlperf).",
    )
    distilled_share: Probability = Field(
        0.0, description="Share of samples that are of predicted structures; AlphaFold2: 0.75."
    )


# --- loss ---------------------------------------------------------------------------------------


class LossConfig(Section):
    """Weights of the loss terms (Suppl. eq. 7). A term of weight 0 is not computed."""

    fape: Weight = 1.0
    fape_backbone_share: Probability = Field(0.5, description="The rest is side-chain FAPE.")
    chi: Weight = Field(1.0, description="Torsion loss, of 0.5 chi + 0.01 angle norm.")
    distogram: Weight = 0.3
    masked_msa: Weight = 2.0
    plddt: Weight = 0.01
    experimentally_resolved: Weight = 0.0
    violation: Weight = 0.0
    violation_ca_c_n_stddev: Annotated[float, Field(gt=0)] = Field(
        0.0311,
        description="Standard deviation of the cosine of the CA-C-N angle; 12 are allowed. "
        "AlphaFold2's since 2025-09-23; 0.014 before, and in OpenFold and MLPerf.",
    )
    pae: Weight = 0.0
    min_resolution_angstrom: float = 0.1
    max_resolution_angstrom: float = 3.0


# --- training -----------------------------------------------------------------------------------


class OptimiserConfig(Section):
    """Adam, its schedule, gradient clipping, weight averaging (Suppl. sec. 1.11.3)."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: Annotated[float, Field(gt=0)] = 1e-6
    warmup_steps: NonNegative = 1000
    decay_after_steps: NonNegative = Field(50_000, description="0: never.")
    decay_factor: Probability = 0.95
    clip_norm: Annotated[float, Field(gt=0)] = 0.1
    clip_scope: Literal["sample", "global"] = Field(
        "sample", description="Clip each sample's gradient (AlphaFold2) or the mean (MLPerf)."
    )
    averaging: Literal["ema", "swa"] = Field("ema", description="Both: a <- d a + (1 - d) w.")
    averaging_decay: BelowOne = 0.999


KernelPackage = Literal[
    "norm",
    "linear",
    "outer_product",
    "triangle",
    "attention",
    "transition",
]

RetiredPackage = Literal["dropout", "wide_linear", "point_attention", "optimiser"]
"""Packages of earlier versions: configurations may name them, without effect."""


class TrainingConfig(Section):
    """The training loop."""

    steps: Positive = 78_000
    global_batch_size: Positive = 128
    max_recycling: NonNegative = Field(3, description="Passes before the last, 0 to this.")
    recycling_draw: Literal["uniform", "stratified"] = Field(
        "uniform", description="Independent draws, or shuffled cycles of all counts (MLPerf)."
    )
    precision: Literal["fp32", "tf32", "bf16"] = "bf16"
    deterministic: bool = Field(
        False,
        description="The same bits in every run, but slower. A CPU gives them anyway if samples "
        "come in order (max_staleness 0). The number of processes must be the same, and on a CPU "
        "that of threads (OMP_NUM_THREADS).",
    )
    kernels: Literal["auto", "torch", "triton"] | list[KernelPackage | RetiredPackage] = Field(
        "auto",
        description="triton: the GPU kernels, torch: plain torch, auto: kernels wherever they can "
        "run; the log says where they cannot. A list: the kernels of these packages alone.",
    )
    cuda_graphs: Literal["auto"] | bool = Field(  # YAML reads on and off as booleans
        "auto",
        description="Capture a sample's passes and replay them; auto: wherever there is a GPU.",
    )
    compile: Literal["auto"] | bool = Field(
        "auto",
        description="torch.compile for structure module, embedders, losses; auto: wherever Triton "
        "can run.",
    )
    recomputation: Literal["auto", "none", "selective", "full", "offload"] = Field(
        "auto",
        description="Activation checkpointing: what backward computes again to save memory. none: "
        "nothing; selective: projections (half the memory, 4 % slower); full: all but the blocks' "
        "inputs; offload: the same, and the inputs, Adam's moments and the averaged weights wait "
        "in the host's memory (least memory, slowest); auto: the first that fits.",
    )
    checkpoint_every: Positive = Field(500, description="Steps between published checkpoints.")
    keep_checkpoints: NonNegative = Field(0, description="Newest kept; 0 keeps all.")
    log_every: Positive = 10
    max_non_finite_steps: NonNegative = Field(
        10, description="Training stops with a diagnosis after this many skipped steps in a row."
    )
    loader_workers: NonNegative = 4
    prefetch: Positive = Field(8, description="Samples prepared ahead.")
    max_staleness: NonNegative = Field(
        512,
        description="Steps that a slow sample may come after its place, while others that are "
        "ready go first; 0: all in order, bit-reproducibly. Without workers, or with "
        "training.deterministic, always in order.",
    )
    accept_new_data: bool = Field(
        False,
        description="Go on from a checkpoint of other shards. Its description keeps the hashes of "
        "all shards that it was trained on.",
    )
    start_timeout_seconds: Positive = Field(
        900,
        le=86_400,
        description="After this many seconds without an answer a process treats the others as "
        "dead, until the first step is made, and while the last checkpoint is written.",
    )
    exchange_timeout_seconds: Positive = Field(
        80,
        le=86_400,
        description="The same from the first step on. torchrun then takes half a minute more.",
    )
    initial_weights: WrittenPath | None = Field(None, description="Start from these weights.")
    trainable: Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        description="Modules that are trained, such as structure_module or evoformer.blocks.47; "
        "the rest stays as it is. null: all.",
    )

    def publishes(self, step: int) -> bool:
        """Whether a step's checkpoint is published whatever happens."""
        return step % self.checkpoint_every == 0 or step == self.steps

    def published_steps(self) -> list[int]:
        """Steps, ascending, whose checkpoints are there after training; 0 is untrained."""
        steps = sorted({*range(0, self.steps, self.checkpoint_every), self.steps})
        return steps[-self.keep_checkpoints :]


class ParallelConfig(Section):
    """How processes divide the work."""

    dap: Literal["auto"] | Positive = Field(
        1,
        description="Dynamic Axial Parallelism: processes, one a GPU of one node, that share each "
        "sample. The number of processes must be a multiple. auto: as few as leave no process "
        "without a sample.",
    )
    exchange: Literal["auto", "push", "collectives"] = Field(
        "auto",
        description="How the GPUs of a sample exchange. push: kernels write to the others' memory "
        "over NVLink. collectives: NCCL. auto: push where it can be.",
    )
    shard_optimiser: bool = Field(
        False,
        description="Each process holds its part of the moments and of the averaged weights, and "
        "updates that part of the weights (ZeRO-1): less memory, one exchange more. The number of "
        "processes is a power of two.",
    )


class EvaluationConfig(Section):
    """Evaluation of checkpoints on the averaged weights."""

    mode: Literal["after", "async"] = Field(
        "after",
        description="When the workflow evaluates: after training, or each checkpoint beside it.",
    )
    target_lddt: Probability | None = Field(
        None,
        description="Training ends when the mean lDDT-CA of the first split reaches this; needs "
        "mode async.",
    )
    patience: Positive | None = Field(
        None,
        description="Training ends when the mean lDDT-CA of the first split has not risen for this "
        "many evaluations; needs mode async.",
    )
    ranks: NonNegative = Field(
        0,
        description="Last processes of `scalefold train` that evaluate instead of training; needs "
        "mode async.",
    )
    splits: list[Literal["train", "validation"]] = Field(["validation"], min_length=1)
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto", description="auto: that of training on a GPU, fp32 on a CPU."
    )
    recycling: NonNegative = 3
    max_length: Positive = Field(2048, description="Longer chains are listed as skipped.")
    seed: int = 0


class ReportConfig(Section):
    """What the report shows beside the run."""

    against: list[WrittenPath] = Field(
        [],
        description="Evaluations of other weights, as `scalefold evaluate --out` writes them, to "
        "compare the last one with.",
    )
    beside: WrittenPath | None = Field(
        None,
        description="report.json of another run, to show its training beside this one's.",
    )


class Config(Section):
    """A whole run."""

    run_name: str = Field("run", json_schema_extra={"pattern": _FOLDER_NAME})
    results: ResultsFolder = Field(Path("results"), description="Folder of all outputs.")
    seed: int = Field(0, ge=0, lt=2**31)
    preset: str = Field("initial_training", description="Named settings that the rest overrides.")
    container: str | None = Field(
        None,
        description="Image for `snakemake --sdm apptainer`: docker:// or another registry's "
        "reference, or the path of a .sif file.",
    )
    data: DataConfig
    search: SearchConfig | None = Field(
        None, description="Search alignments that the mirrors do not have; null: do not."
    )
    shards: ShardsConfig = ShardsConfig()
    features: FeaturesConfig = FeaturesConfig()
    sampling: SamplingConfig = SamplingConfig()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    training: TrainingConfig = TrainingConfig()
    parallel: ParallelConfig = ParallelConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    report: ReportConfig = ReportConfig()
    predict: PredictConfig = PredictConfig()
    distillation: DistillationConfig = DistillationConfig()
    stages: dict[str, dict[str, Any]] = Field(
        {},
        description="Stages of training in a row, by name: what each sets on top of all else. Each "
        "starts from the weights of the one before.",
    )

    @field_validator("run_name")
    @classmethod
    def _folder(cls, name: str) -> str:
        if not re.fullmatch(_FOLDER_NAME, name):
            raise ValueError(
                "names a folder: letters, digits, and after the first of these also . _ -"
            )
        return name

    @field_validator("container")
    @classmethod
    def _image(cls, container: str | None) -> str | None:
        # Snakemake would take a reference without its scheme for a file, and say so late.
        if container is not None and not re.fullmatch(
            r"(docker|oras|library|https?)://\S+|\S+\.sif", container
        ):
            raise ValueError(
                "is neither a reference with its scheme (docker://registry/name:tag) nor the path "
                "of an image file (scalefold.sif), without spaces"
            )
        return container

    @model_validator(mode="after")
    def _searched_is_read(self) -> Config:
        for number, step in enumerate([] if self.search is None else self.search.steps):
            hits = step.tool == "hhsearch"
            read = [self.data.template_hits] if hits else self.data.alignments
            if step.name not in read:
                key = "data.template_hits" if hits else "data.alignments"
                raise ValueError(
                    f"search.steps.{number}.name is {step.name}, which {key} does not have "
                    f"({', '.join(map(str, read))}): use one of its names, or add this one"
                )
        return self

    @model_validator(mode="after")
    def _alignments_are_said(self) -> Config:
        for name, wanted in (("predict", self.predict), ("distillation", self.distillation)):
            if wanted.alignments is not None and wanted.query_alone:
                raise ValueError(
                    f"{name}.alignments is {wanted.alignments}, and {name}.query_alone is true, "
                    "which does without: set one of them to null or false"
                )
            if wanted.searches and self.search is None:
                raise ValueError(
                    f"{name}.fasta is {wanted.fasta}, but nothing says where alignments come "
                    f"from: set {name}.alignments, a section search, or {name}.query_alone"
                )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.loss.pae > 0 and not self.model.pae_head:
            raise ValueError(
                f"loss.pae is {self.loss.pae} but model.pae_head is false: set model.pae_head to "
                "true, or loss.pae to 0"
            )
        for key, off in (("target_lddt", None), ("patience", None), ("ranks", 0)):
            if (value := getattr(self.evaluation, key)) != off and self.evaluation.mode != "async":
                raise ValueError(
                    f"evaluation.{key} is {value} but evaluation.mode is after, when no training "
                    f"runs: set evaluation.mode to async, or evaluation.{key} to "
                    f"{'null' if off is None else off}"
                )
        if self.evaluation.mode == "async" and self.training.keep_checkpoints:
            raise ValueError(
                f"training.keep_checkpoints is {self.training.keep_checkpoints} but "
                "evaluation.mode is async, and a checkpoint could be deleted before it is "
                "evaluated: set training.keep_checkpoints to 0, or evaluation.mode to after"
            )
        masking = self.features.masked_msa
        if masking.uniform + masking.profile + masking.same > 1.0 + 1e-9:  # 0.55 + 0.34 + 0.11
            raise ValueError(
                "features.masked_msa: uniform + profile + same is "
                f"{masking.uniform + masking.profile + masking.same}, must be at most 1"
            )
        for key, section in (
            ("model.{}_recycling_angstrom", self.model),
            ("model.template.{}_distance_angstrom", self.model.template),
            ("loss.{}_resolution_angstrom", self.loss),
        ):
            name = key.rpartition(".")[2]
            low, high = (getattr(section, name.format(end)) for end in ("min", "max"))
            if not low < high:
                raise ValueError(
                    f"{key.format('min')} is {low}, {key.format('max')} is {high}: the first must "
                    "be the smaller"
                )
        return self
