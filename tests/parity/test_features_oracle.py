"""Features agree with OpenFold's and MLPerf's transforms, for the same random numbers.

The golden files hold a sample, the selection for it and what the reference made of them; see
``make_features_golden.py``.
"""

import datetime
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.example import check_contract

from scalefold.config.schema import FeaturesConfig
from scalefold.features.contract import ALL_FEATURES
from scalefold.features.crop import Crop
from scalefold.features.pipeline import selected_features
from scalefold.features.query import Query
from scalefold.features.sample_random import MsaRandom
from scalefold.features.selection import Selection, prediction_selection, training_selection
from scalefold.shards.records import ChainRecord, MsaRecord, Sample, TemplateHit

GOLDEN = Path(__file__).parent / "golden"
CASES = [
    ("openfold", "train"),
    ("openfold", "unclamped"),
    ("openfold", "short_chain"),
    ("openfold", "shallow_alignment"),
    ("openfold", "eval"),
    ("mlperf", "train"),
    ("mlperf", "eval"),
]
# The references hold rotations in float32 and multiply by them, at |x| up to 60 Å: the part that
# is left of a torsion's plane is off by 60 Å x 2^-23 = 7e-6 Å at 1 Å from the axis.
TOLERANCE = {"torsion_angles_sin_cos": 1e-5, "chi_angles_sin_cos": 1e-5, "frames": 1e-6}
# Quotients and arc tangents in float32, of the same numbers: a few units in the last place.
ROUNDING = 3e-7
MADE_OTHERWISE = {
    "seq_length",  # the references overwrite it with the length of the crop
    "dropout_key",  # ours alone
}
SEED, DRAW = 7, 3


@pytest.fixture(scope="module", params=["openfold", "mlperf"])
def golden(request):
    return load(request.param)


def load(oracle):
    with np.load(GOLDEN / f"features_{oracle}.npz") as file:
        return dict(file)


def sample_of(golden):
    def chain(prefix, key, date, resolution):
        return ChainRecord(
            chain_key=key,
            label_asym_id="A",
            auth_asym_id="A",
            seq_id=bytes(32),
            method="x-ray diffraction",
            origin="experimental",
            aatype=golden[f"{prefix}aatype"],
            positions=golden[f"{prefix}positions"],
            atom_mask=golden[f"{prefix}atom_mask"],
            resolution=resolution,
            release_date=date,
        )

    templates = []
    for i in range(int(golden["num_templates"])):
        part = f"template/{i}/"
        hit = TemplateHit(
            f"{i}abc_A",
            float(golden[f"{part}sum_probs"]),
            99.0,
            golden[f"{part}q_idx"],
            golden[f"{part}t_idx"],
        )
        record = chain(part, hit.chain_key, datetime.date(1990, 1, 1), None)
        templates.append((hit, record))
    msa = golden["msa"]
    return Sample(
        chain=chain(
            "", str(golden["chain_key"]), datetime.date(2006, 12, 19), float(golden["resolution"])
        ),
        msa=MsaRecord(
            seq_id=bytes(32),
            msa=msa,
            del_ptr=golden["del_ptr"],
            del_col=golden["del_col"],
            del_val=golden["del_val"],
            row_source=np.zeros(len(msa), np.uint8),
            profile=golden["profile"],
            num_seq_full=len(msa),
        ),
        templates=tuple(templates),
        split="train",
        cluster_size=1,
    )


def selection_of(golden, case, sample):
    passes = int(golden[f"{case}/num_passes"])
    return Selection(
        crop=Crop(*golden[f"{case}/window"].tolist()),
        padded_length=int(golden[f"{case}/padded_length"]),
        templates=tuple(sample.templates[i] for i in golden[f"{case}/templates"]),
        clamped=bool(golden[f"{case}/clamped"]),
        msa=tuple(
            MsaRandom(
                deletion_starts=golden[f"{case}/{i}/deletion_starts"],
                row_order=golden[f"{case}/{i}/row_order"],
                mask_position=golden[f"{case}/{i}/mask_position"],
                mask_symbol=golden[f"{case}/{i}/mask_symbol"],
            )
            for i in range(passes)
        ),
        dropout_keys=(0,) * passes,
    )


def config_of(golden, case):
    return FeaturesConfig.model_validate(json.loads(str(golden[f"{case}/config"])))


@pytest.mark.parametrize(("oracle", "case"), CASES)
def test_every_tensor_equals_the_reference(oracle, case):
    golden = load(oracle)
    sample, config = sample_of(golden), config_of(golden, case)
    selection = selection_of(golden, case, sample)
    passes = selected_features(sample, selection, config)
    prefix = f"{case}/out/"
    names = {key.removeprefix(prefix) for key in golden if key.startswith(prefix)}
    if case in ("train", "short_chain"):
        missing = ALL_FEATURES.keys() - names - MADE_OTHERWISE
        assert missing <= {"use_clamped_fape"}, missing
    for index, features in enumerate(passes):
        sizes = {
            "B": 1,
            "N": selection.padded_length,
            "S": config.max_msa_clusters,
            "E": config.max_extra_msa,
            "T": config.max_templates,
        }
        check_contract(features, sizes)
        for name in sorted(names):
            expected = torch.from_numpy(np.array(golden[prefix + name][..., index]))
            found = features[name][0]
            if name.startswith("template_") and "torsion" in name:
                # They measure omega and phi of the first residue before the crop; AlphaFold2 after.
                assert not features["template_torsion_angles_mask"][0, :, 0, :2].any()
                expected[:, 0, :2] = found[:, 0, :2]
            assert found.shape == expected.shape, name
            if not found.is_floating_point():
                assert torch.equal(found, expected.long()), name
                continue
            tolerance = next((t for key, t in TOLERANCE.items() if name.endswith(key)), ROUNDING)
            if name.startswith("backbone_rigid_t"):
                tolerance = TOLERANCE["frames"]
            torch.testing.assert_close(
                found, expected.float(), rtol=ROUNDING, atol=tolerance, msg=lambda m, n=name: n + m
            )


@pytest.mark.parametrize(("oracle", "case"), [c for c in CASES if c[1] == "train"])
def test_golden_cases_are_not_trivial(oracle, case):
    golden = load(oracle)
    out = {k.removeprefix(f"{case}/out/"): v for k, v in golden.items()}
    assert (out["aatype"] == 20).any()
    assert (out["template_aatype"] == 20).any()
    assert (out["template_aatype"] == 21).any()
    assert 0 < out["all_atom_mask"].mean() < 1
    assert (out["atom14_gt_positions"] != out["atom14_alt_gt_positions"]).any()
    assert out["template_mask"].sum() >= 2
    assert (out["extra_has_deletion"] > 0).any()
    # cluster profiles are of several rows, and passes differ
    profile = out["msa_feat"][..., 25:48, :]
    assert ((profile > 0.01) & (profile < 0.99)).any()
    assert (out["msa_feat"][..., 0] != out["msa_feat"][..., 1]).any()


def test_random_numbers_are_still_those_of_the_golden_files(golden):
    """The counter-based streams do not change: an old run can be continued."""
    sample = sample_of(golden)
    for case in ("train", "eval"):
        config = config_of(golden, case)
        expected = selection_of(golden, case, sample)
        passes = range(len(expected.msa))
        if case == "train":
            selection = training_selection(sample, config, SEED, DRAW, passes)
        else:
            selection = prediction_selection(Query.of(sample), config, SEED, len(passes))
        assert selection.crop == expected.crop
        assert selection.clamped == expected.clamped
        assert [h.chain_key for h, _ in selection.templates] == [
            h.chain_key for h, _ in expected.templates
        ]
        for found, wanted in zip(selection.msa, expected.msa):
            for name, array in vars(found).items():
                np.testing.assert_array_equal(array, getattr(wanted, name), err_msg=name)
