"""The configurations of full reproductions, laid over config.yaml."""

from __future__ import annotations

from pathlib import Path

from scalefold.config import Config, load_config, load_stages

ROOT = Path(__file__).parents[3]


def stages(name: str) -> dict[str, Config]:
    return load_stages([ROOT / "config.yaml", ROOT / f"configs/{name}.yaml"])


def test_mlperf() -> None:
    """mlcommons/hpc, OpenFold, v3.0: README and compliance checker."""
    (run,) = stages("mlperf").values()
    assert run.training.global_batch_size == 256
    assert (run.training.steps, run.training.checkpoint_every) == (2000, 40)
    assert run.training.max_recycling == 3
    assert run.training.initial_weights is not None
    assert (run.evaluation.mode, run.evaluation.target_lddt) == ("async", 0.8)
    assert (run.evaluation.splits, run.evaluation.max_length) == (["validation"], 700)
    assert (run.optimiser.averaging, run.optimiser.averaging_decay) == ("swa", 0.9)
    assert (run.optimiser.learning_rate, run.optimiser.warmup_steps) == (1e-3, 0)
    features = run.features
    sizes = (features.crop_size, features.max_msa_clusters, features.max_extra_msa)
    assert (*sizes, features.max_templates) == (256, 124, 1024, 4)


def test_scratch() -> None:
    """Batches of ScaleFold (arXiv 2404.11068); Jumper et al. 2021, Suppl. Table 4."""
    trainings = stages("scratch")
    first, second, third = trainings.values()
    assert [s.training.global_batch_size for s in trainings.values()] == [128, 256, 128]
    assert [s.training.steps for s in trainings.values()] == [5000, 50_000, 12_000]
    assert [s.features.crop_size for s in trainings.values()] == [256, 256, 384]
    assert [s.features.max_extra_msa for s in trainings.values()] == [1024, 1024, 5120]
    assert [s.loss.violation for s in trainings.values()] == [0, 0, 1]
    assert [s.optimiser.learning_rate for s in trainings.values()] == [1e-3, 1e-3, 5e-4]
    assert first.training.steps + second.optimiser.decay_after_steps == 50_000
    assert first.model == second.model == third.model
    for before, after in ((first, second), (second, third)):
        assert after.training.initial_weights is not None
        assert after.training.initial_weights.name == f"step-{before.training.steps:08d}"
    assert all(s.evaluation.mode == "async" for s in trainings.values())


def test_the_full_model_on_the_demo() -> None:
    config = load_config([ROOT / "demo/mlperf.yaml"])
    assert config.preset == "mlperf"
    assert config.features.crop_size == 256
    assert config.data == load_config([ROOT / "demo/config.yaml"]).data
