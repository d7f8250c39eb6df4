"""A chain's prediction does not depend on how it is padded, nor on whether it is replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.example import example_features, set_example_weights

from scalefold.config import Config, make_config
from scalefold.features.pipeline import prediction_features
from scalefold.features.query import Query
from scalefold.fetch.run import fetch
from scalefold.model import AlphaFold
from scalefold.predict.predictor import Prediction, Predictor, choose_precision, predictor
from scalefold.raw.chains import read_chains
from scalefold.shards.pack import pack
from scalefold.shards.reader import ShardReader

DEMO = Path(__file__).parents[3] / "demo"
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    table = tmp_path_factory.mktemp("chains") / "chains.tsv"
    table.write_text("chain_key\tsplit\tcluster_id\n1lcd_A\ttrain\t2\n5pti_A\ttrain\t1\n")
    mirrors = {
        "mmcif": [str(DEMO / "mirror/wwpdb")],
        "alignments": [str(DEMO / "mirror/openproteinset")],
    }
    data = {
        "chains": str(table),
        "alignments": ["swissprot_hits"],
        "buckets": 1,
        "mirrors": mirrors,
    }
    return make_config({"preset": "tiny", "data": data})


@pytest.fixture(scope="module")
def reader(config: Config, tmp_path_factory: pytest.TempPathFactory) -> ShardReader:
    folder, quiet = tmp_path_factory.mktemp("data"), Console(quiet=True)
    fetch(read_chains(config.data.chains), config.data, folder / "raw")
    pack(config, folder / "raw", folder / "shards", console=quiet)
    return ShardReader(folder / "shards")


def example_model(config: Config) -> AlphaFold:
    model = AlphaFold(config.model).eval().requires_grad_(False)
    set_example_weights(model)
    return model


def predicted(
    config: Config, reader: ShardReader, key: str, model: AlphaFold, **options: Any
) -> Prediction:
    device = next(model.parameters()).device
    passes = prediction_features(Query.of(reader.sample(key)), config.features, 0, 3, device)
    return Predictor(model, config.model, **options)(passes)


@pytest.mark.parametrize("key", ["1lcd_A", "5pti_A"])
def test_padding_changes_nothing(config: Config, reader: ShardReader, key: str) -> None:
    # In float64, where other orders of summation stay far below what a padded residue would do.
    model = example_model(config).double()
    alone = predicted(config, reader, key, model, length_step=1, graphs=False)
    padded = predicted(config, reader, key, model, length_step=64, graphs=False)
    assert alone.positions.dtype == torch.float64
    assert alone.positions.abs().max() > 1
    for ours, reference in zip(padded, alone, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)


def test_precision_is_trainings_on_a_gpu_unless_set(config: Config) -> None:
    def chosen(device: torch.device, training: str, evaluation: str) -> str:
        tree = config.model_dump(mode="json")
        tree["training"]["precision"] = training
        tree["evaluation"]["precision"] = evaluation
        return choose_precision(make_config(tree), device)

    assert chosen(CUDA, "bf16", "auto") == "bf16"
    assert chosen(CPU, "bf16", "auto") == "fp32"
    assert chosen(CPU, "fp32", "bf16") == "bf16"


def test_bfloat16_works_in_the_trunk_alone(
    config: Config, reader: ShardReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembled: list[AlphaFold] = []

    class Noted(AlphaFold):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            assembled.append(self)

    monkeypatch.setattr("scalefold.predict.predictor.AlphaFold", Noted)
    tree = config.model_dump(mode="json")
    tree["evaluation"]["precision"] = "bf16"
    narrow = make_config(tree)
    weights = example_model(config).state_dict()
    run = predictor(narrow, weights, CPU)
    (model,) = assembled
    assert {p.dtype for p in model.evoformer.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.structure_module.parameters()} == {torch.float32}
    passes = prediction_features(Query.of(reader.sample("1lcd_A")), config.features, 0, 1)
    wide = predictor(config, weights, CPU)(passes)
    ours = run(passes)
    # pLDDT logits are of order one here, and bfloat16 has eight bits: some roundings apart.
    assert 0 < (ours.plddt_logits - wide.plddt_logits).abs().mean() < 8 * 2**-8


def test_a_long_chain_is_computed_in_parts(
    config: Config, reader: ShardReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = prediction_features(Query.of(reader.sample("1lcd_A")), config.features, 0, 2)
    weights = example_model(config).state_dict()
    whole = predictor(config, weights, CPU)(passes)
    monkeypatch.setattr("scalefold.predict.predictor.MAX_PART_ELEMENTS", 20_000)
    parts = predictor(config, weights, CPU)(passes)
    # Some roundings of float32 apart, of coordinates up to some ten Å.
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("filled", [0, 2])
def test_empty_template_slots_of_long_chains_change_nothing(
    config: Config, monkeypatch: pytest.MonkeyPatch, filled: int
) -> None:
    # In float64, where other orders of summation stay far below what a lost template would do.
    model = example_model(config).double()
    features = example_features({"B": 1, "N": 20, "S": 5, "E": 7, "T": 4})
    features = {k: v.double() if v.is_floating_point() else v for k, v in features.items()}
    for name in (n for n in features if n.startswith("template") and n.endswith("mask")):
        features[name][:, filled:] = 0
    predict = Predictor(model, config.model, length_step=1, graphs=False)
    whole = predict([features] * 2)
    monkeypatch.setattr("scalefold.predict.predictor.LONGEST_GRAPHED", 0)
    torch.testing.assert_close(predict([features] * 2), whole, rtol=1e-9, atol=1e-9)


def test_what_training_asks_of_its_gpu_does_not_keep_a_cpu_from_evaluating(
    config: Config, reader: ShardReader
) -> None:
    tree = config.model_dump(mode="json")
    tree["training"] |= {"kernels": "triton", "cuda_graphs": True, "precision": "tf32"}
    passes = prediction_features(Query.of(reader.sample("1lcd_A")), config.features, 0, 1)
    weights = example_model(config).state_dict()
    ours, plain = (predictor(c, weights, CPU)(passes) for c in (make_config(tree), config))
    assert torch.equal(ours.positions, plain.positions)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replayed_predictions_equal_launched_ones(config: Config, reader: ShardReader) -> None:
    model = example_model(config).to(CUDA)
    for key in ("1lcd_A", "5pti_A"):
        eager = predicted(config, reader, key, model, length_step=64, graphs=False)
        graphed = predicted(config, reader, key, model, length_step=64, graphs=True)
        torch.testing.assert_close(graphed, eager, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_other_weights_and_an_early_stop_are_replayed_too(
    config: Config, reader: ShardReader
) -> None:
    passes = prediction_features(Query.of(reader.sample("5pti_A")), config.features, 0, 4, CUDA)

    def options(graphs: bool) -> dict[str, Any]:
        return {"length_step": 64, "graphs": graphs, "tolerance_angstrom": 1000.0}

    model = example_model(config).to(CUDA)
    other = AlphaFold(config.model)
    set_example_weights(other, seed=1)
    run = Predictor(model, config.model, **options(True))
    before = run(passes)
    run.load(other.state_dict())
    after = run(passes)
    assert before.num_passes == after.num_passes == 3
    assert not torch.equal(before.positions, after.positions)
    eager = Predictor(other.to(CUDA).eval(), config.model, **options(False))(passes)
    torch.testing.assert_close(after, eager, rtol=0, atol=0)
