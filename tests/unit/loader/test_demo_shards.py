"""The bundled real chains, from raw files through shards to batches."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.example import check_contract

from scalefold.config import load_config, make_config
from scalefold.features.pipeline import selected_features, training_features
from scalefold.features.query import Query
from scalefold.features.selection import prediction_selection
from scalefold.fetch.run import fetch
from scalefold.loader.loader import TrainingLoader
from scalefold.raw.chains import read_chains
from scalefold.shards.pack import pack
from scalefold.shards.reader import ShardReader

DEMO = Path(__file__).parents[3] / "demo"


@pytest.fixture(scope="module")
def demo_config():
    return make_config(
        {
            "preset": "tiny",
            "data": {
                "chains": str(DEMO / "chains.tsv"),
                "alignments": ["swissprot_hits"],
                "buckets": 2,
                "mirrors": {
                    "mmcif": [str(DEMO / "mirror/wwpdb")],
                    "alignments": [str(DEMO / "mirror/openproteinset")],
                },
            },
            "features": {"template_date_margin_days": 60},
            "training": {"global_batch_size": 2, "loader_workers": 1, "steps": 10},
        }
    )


@pytest.fixture(scope="module")
def reader(demo_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    quiet = Console(quiet=True)
    fetch(read_chains(demo_config.data.chains), demo_config.data, folder / "raw")
    pack(demo_config, folder / "raw", folder / "shards", console=quiet)
    return ShardReader(folder / "shards")


def sizes(config, length):
    features = config.features
    return {
        "B": 1,
        "N": length,
        "S": features.max_msa_clusters,
        "E": features.max_extra_msa,
        "T": features.max_templates,
    }


def whole(sample, config):
    return selected_features(sample, prediction_selection(Query.of(sample), config, 0, 1), config)


def check(features, expected_sizes):
    check_contract(features, expected_sizes)
    for name, tensor in features.items():
        if tensor.is_floating_point():
            assert torch.isfinite(tensor).all(), name
    exists = features["rigidgroups_gt_exists"] == 1
    rotation = features["rigidgroups_gt_frames"][exists][:, :3, :3].double()
    identity = torch.eye(3, dtype=torch.float64).expand_as(rotation)
    torch.testing.assert_close(rotation @ rotation.transpose(-1, -2), identity, atol=1e-6, rtol=0)
    # unit circle where an angle is defined
    defined = features["chi_mask"] == 1
    norm = features["chi_angles_sin_cos"][defined].norm(dim=-1)
    torch.testing.assert_close(norm, torch.ones_like(norm), atol=1e-6, rtol=0)
    # what is observed must exist
    assert (features["atom14_gt_exists"] <= features["atom14_atom_exists"]).all()


def test_every_chain_gives_features(reader, demo_config):
    templates = {}
    for split in ("train", "validation"):
        keys = reader.keys(split)
        assert keys
        for key in keys:
            sample = reader.sample(key)
            for features in training_features(sample, demo_config.features, 0, 0, range(2)):
                check(features, sizes(demo_config, demo_config.features.crop_size))
            (features,) = whole(sample, demo_config.features)
            check(features, sizes(demo_config, len(sample.chain)))
            templates[key] = int(features["template_mask"].sum())
    # hen lysozyme (1997) and alpha-lactalbumin (1994) serve human lysozyme (2006)
    assert templates["2nwd_X"] == 2
    # an entry without a release date gets no templates
    assert templates["1a8o_A"] == 0


@pytest.mark.parametrize("name", ["learn", "curves"])
def test_no_chain_to_be_learned_lacks_extra_rows(reader, name):
    features = load_config([DEMO / f"{name}.yaml"]).features
    samples = [reader.sample(key) for key in reader.keys("train")]
    assert min(len(sample.msa.msa) for sample in samples) > features.max_msa_clusters
    if name == "learn":  # whole chains
        assert max(len(sample.chain) for sample in samples) <= features.crop_size


def test_template_of_a_homologue_resembles_the_query(reader, demo_config):
    """Aligned residues of hen and human lysozyme have the same fold: near CA-CA distances."""
    (features,) = whole(reader.sample("2nwd_X"), demo_config.features)
    both = features["template_all_atom_mask"][0, 0, :, 1] * features["all_atom_mask"][0, :, 1] == 1
    assert both.sum() > 120
    truth = features["all_atom_positions"][0, both, 1]
    template = features["template_all_atom_positions"][0, 0, both, 1]
    difference = torch.cdist(truth, truth) - torch.cdist(template, template)
    assert difference.abs().median() < 0.6
    same = features["template_aatype"][0, 0] == features["aatype"][0]
    assert same[both].float().mean() > 0.5


def test_loader_over_shards(reader, demo_config):
    with TrainingLoader(reader, demo_config) as loader:
        batches = list(islice(loader, 4))
    inline = demo_config.model_copy(
        update={"training": demo_config.training.model_copy(update={"loader_workers": 0})}
    )
    with TrainingLoader(reader, inline) as loader:
        expected = list(islice(loader, 4))
    for batch, other in zip(batches, expected, strict=True):
        assert batch.chain_keys == other.chain_keys
        assert set(batch.chain_keys) <= set(reader.keys("train"))
        assert len(batch.samples) == len(other.samples) == 2
        for passes, other_passes in zip(batch.samples, other.samples):
            for features, others in zip(passes, other_passes, strict=True):
                check(features, sizes(demo_config, demo_config.features.crop_size))
                assert all(torch.equal(features[name], others[name]) for name in features)
