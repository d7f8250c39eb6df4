"""Make golden features: the transforms of a reference code, fed with the selection for it.

Run once for each reference, by hand; the tests only read what it wrote:

    python -m tools.parity.make_features_golden openfold /path/to/OpenFold \
        demo tests/parity/golden/features_openfold.npz
    python -m tools.parity.make_features_golden mlperf /path/to/MLPerf/openfold \
        demo tests/parity/golden/features_mlperf.npz

The reference is imported from the path given (see ``peer_code.py``); none of its code is here.
Every random function that its transforms call is replaced by one that hands out the selection's
numbers in the order in which the reference asks, and fails if it asks differently. Positions are
given in float64. The sample is a real one (2nwd_X of the demo) with some residues renamed to X,
some atoms taken away and deletions put in, so that masks, unknown residues and deletions are
covered.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tools.parity.peer_code import PeerCode

from scalefold.chem.residues import ATOM37_INDEX, UNKNOWN
from scalefold.config.schema import FeaturesConfig
from scalefold.features.msa_rows import kept_rows, select_rows
from scalefold.features.query import Query
from scalefold.features.selection import Selection, prediction_selection, training_selection
from scalefold.raw.a3m import read_folder
from scalefold.raw.alignment import profile
from scalefold.raw.hhr import read_hhr
from scalefold.raw.mmcif import Chain, read_entry
from scalefold.raw.templates import locate
from scalefold.shards.records import ChainRecord, MsaRecord, Sample, TemplateHit

SEED, DRAW = 7, 3
CHAIN = "2nwd_X"
SMALL = {"crop_size": 40, "max_msa_clusters": 12, "max_extra_msa": 20, "max_templates": 3}
SHORT = {"crop_size": 140, "max_msa_clusters": 4, "max_extra_msa": 3, "max_templates": 2}
DEEP = {**SMALL, "crop_size": 10, "max_msa_clusters": 160, "max_extra_msa": 5}
MSA = ("msa_feat", "msa_mask", "true_msa", "bert_mask", "extra_msa", "extra_msa_mask")
# (name of the case, configuration, mode, passes, features to keep: none named means all)
CASES: dict[str, list[tuple[str, dict[str, Any], str, int, tuple[str, ...]]]] = {
    "openfold": [
        ("train", {**SMALL, "clamp_fape_probability": 1.0}, "train", 2, ()),
        ("unclamped", {**SMALL, "clamp_fape_probability": 0.0}, "train", 1, ("residue_index",)),
        ("short_chain", {**SHORT, "clamp_fape_probability": 1.0}, "train", 1, ()),
        ("shallow_alignment", DEEP, "train", 1, MSA),
        ("eval", SMALL, "eval", 1, (*MSA, "template_aatype", "template_mask")),
    ],
    "mlperf": [
        (
            "train",
            {
                **SMALL,
                "template_draw": "mlperf",
                "residue_crop": "uniform",
                "block_deletion": {"enabled": False},
            },
            "train",
            2,
            (),
        ),
        ("eval", SMALL, "eval", 1, (*MSA, "template_aatype", "template_mask")),
    ],
}


def main(oracle: str, source: str, demo: str, out: str) -> None:
    """Write the golden file of one reference."""
    PeerCode(oracle, Path(source))
    run = {"openfold": _run_openfold, "mlperf": _run_mlperf}[oracle]
    sample = _sample(Path(demo))
    arrays: dict[str, Any] = {"about": np.asarray(__doc__), **_sample_arrays(sample)}
    for name, settings, mode, passes, keep in CASES[oracle]:
        config = FeaturesConfig.model_validate(settings)
        if mode == "train":
            selection = training_selection(sample, config, SEED, DRAW, range(passes))
        else:
            selection = prediction_selection(Query.of(sample), config, SEED, passes)
        arrays |= {f"{name}/{k}": v for k, v in _selection_arrays(sample, selection).items()}
        arrays[f"{name}/config"] = np.asarray(json.dumps(settings))
        features = run(sample, selection, config, mode)
        for feature in keep or features:
            tensor = features[feature]
            array = tensor.numpy()
            arrays[f"{name}/out/{feature}"] = (
                array.astype(np.float32) if array.dtype == np.float64 else array
            )
        print(name, selection.crop, len(selection.templates), len(keep or features))
    np.savez_compressed(out, **arrays)


# --- the sample ---------------------------------------------------------------------------------


def _record(chain: Chain, *, rename: list[int], hide: list[int]) -> ChainRecord:
    aatype, positions = chain.aatype.copy(), chain.positions.copy()
    mask = chain.atom_mask.copy()
    aatype[rename] = UNKNOWN
    mask[hide[0]] = False
    mask[hide[1], ATOM37_INDEX["N"]] = mask[hide[2], ATOM37_INDEX["CB"]] = False
    mask[hide[3], ATOM37_INDEX["CG"]] = mask[hide[4], ATOM37_INDEX["O"]] = False
    positions[~mask] = 0.0
    return ChainRecord(
        chain_key=chain.chain_key,
        label_asym_id=chain.label_asym_id,
        auth_asym_id=chain.auth_asym_id,
        seq_id=bytes(32),
        method=chain.method,
        origin="experimental",
        aatype=aatype,
        positions=positions,
        atom_mask=mask,
        resolution=chain.resolution,
        release_date=chain.release_date,
    )


def _entry_chain(demo: Path, key: str) -> Chain:
    entry = key.partition("_")[0]
    path = demo / "mirror/wwpdb/pub/pdb/data/structures/divided/mmCIF" / entry[1:3]
    return read_entry(path / f"{entry}.cif.gz").chain(key)


def _sample(demo: Path) -> Sample:
    folder = demo / "mirror/openproteinset/pdb" / CHAIN
    raw = _entry_chain(demo, CHAIN)
    chain = _record(raw, rename=[60, 75], hide=[64, 66, 68, 70, 72])
    alignment = read_folder(folder, raw.sequence, ["swissprot_hits"])
    msa = alignment.msa.copy()
    msa[0] = chain.aatype
    # deletions in every row but the query: the real ones are few
    deletions = [
        [(7 * row + 11 * k) % len(chain) for k in range(row % 9)] for row in range(len(msa))
    ]
    columns = [sorted(set(row)) for row in deletions]
    del_col = np.concatenate(columns).astype(np.uint16)
    hits = []
    for hit in read_hhr(folder / "hhr/pdb70_hits.hhr", raw.sequence):
        key = hit.chain_key
        if key == CHAIN:
            continue
        template = _entry_chain(demo, key)
        found = locate(hit, {key: template.sequence})
        assert not isinstance(found, str), found
        q_idx, t_idx = found.pairs(hit)
        record = _record(template, rename=[65], hide=[61, 66, 68, 70, 73])
        record = dataclasses.replace(record, release_date=datetime.date(1990, 1, 1))
        hits.append((TemplateHit(key, hit.sum_probs, 99.0, q_idx, t_idx), record))
        # a second, shorter hit on the same chain
        part = slice(30, 90)
        hits.append(
            (TemplateHit(key, 20.0, 90.0, q_idx[part], t_idx[part]), record),
        )
    hits.sort(key=lambda pair: -pair[0].sum_probs)
    return Sample(
        chain=chain,
        msa=MsaRecord(
            seq_id=bytes(32),
            msa=msa,
            del_ptr=np.cumsum([0] + [len(row) for row in columns]).astype(np.uint32),
            del_col=del_col,
            del_val=(1 + np.arange(len(del_col)) % 23).astype(np.uint16),
            row_source=alignment.row_source,
            profile=profile(msa),
            num_seq_full=len(msa),
        ),
        templates=tuple(hits),
        split="train",
        cluster_size=1,
    )


def _sample_arrays(sample: Sample) -> dict[str, Any]:
    chain, msa = sample.chain, sample.msa
    arrays: dict[str, Any] = {
        "chain_key": np.asarray(chain.chain_key),
        "aatype": chain.aatype,
        "positions": chain.positions,
        "atom_mask": chain.atom_mask,
        "resolution": np.asarray(chain.resolution),
        "msa": msa.msa,
        "del_ptr": msa.del_ptr,
        "del_col": msa.del_col,
        "del_val": msa.del_val,
        "profile": msa.profile,
        "num_templates": np.asarray(len(sample.templates)),
    }
    for i, (hit, template) in enumerate(sample.templates):
        arrays |= {
            f"template/{i}/sum_probs": np.asarray(hit.sum_probs),
            f"template/{i}/q_idx": hit.q_idx,
            f"template/{i}/t_idx": hit.t_idx,
            f"template/{i}/aatype": template.aatype,
            f"template/{i}/positions": template.positions,
            f"template/{i}/atom_mask": template.atom_mask,
        }
    return arrays


def _ranks(sample: Sample, selection: Selection) -> list[int]:
    hits = [hit for hit, _ in sample.templates]
    return [next(i for i, hit in enumerate(hits) if hit is used) for used, _ in selection.templates]


def _selection_arrays(sample: Sample, selection: Selection) -> dict[str, Any]:
    ranks = _ranks(sample, selection)
    arrays: dict[str, Any] = {
        "window": np.asarray(selection.crop),
        "padded_length": np.asarray(selection.padded_length),
        "clamped": np.asarray(selection.clamped),
        "templates": np.asarray(ranks, np.int64),
        "num_passes": np.asarray(len(selection.msa)),
    }
    for i, draws in enumerate(selection.msa):
        arrays |= {f"{i}/{k}": v for k, v in vars(draws).items()}
    return arrays


# --- the references -----------------------------------------------------------------------------


class _Script:
    """Stands for ``torch`` inside the reference: random functions hand out scripted values."""

    def __init__(self) -> None:
        self.values: deque[tuple[str, torch.Tensor]] = deque()

    def __getattr__(self, name: str) -> Any:
        if name in ("rand", "randperm", "randint"):
            return functools.partial(self.take, name)
        return getattr(torch, name)

    def take(self, name: str, *args: Any, **kwargs: Any) -> torch.Tensor:
        expected, value = self.values.popleft()
        assert name == expected, f"the reference asks for {name}, the script has {expected}"
        if name == "rand":
            assert tuple(args[0]) == tuple(value.shape), (args, value.shape)
        elif name == "randperm":
            size = args[0] if args else kwargs["n"]
            assert size == len(value), (size, value.shape)
        return value

    def categorical(self, probs: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        unit = self.take("categorical")
        return (unit[..., None] >= probs.cumsum(-1)[..., :-1]).sum(-1)


def _script_passes(
    script: _Script, sample: Sample, selection: Selection, config: FeaturesConfig
) -> None:
    num_rows, num_res = sample.msa.msa.shape
    for shape in ((num_rows, num_res), (num_res,)):
        script.values.append(("rand", torch.ones(shape)))  # replacing by X, at a rate of 0
    for draws in selection.msa:
        if len(draws.deletion_starts):
            script.values.append(("randint", torch.from_numpy(draws.deletion_starts)))
        fraction = config.block_deletion.fraction_per_block
        kept = kept_rows(num_rows, draws.deletion_starts, fraction)
        choice = select_rows(num_rows, draws, config.max_msa_clusters, fraction)
        renumbered = np.cumsum(kept) - 1
        order = np.concatenate([choice.centres[1:], choice.others])
        script.values.append(("randperm", torch.from_numpy(renumbered[order] - 1)))
        count = len(choice.centres)
        script.values.append(("rand", torch.from_numpy(draws.mask_position[:count])))
        script.values.append(("categorical", torch.from_numpy(draws.mask_symbol[:count])))
        script.values.append(("randperm", torch.arange(len(choice.others))))


def _raw_tensors(sample: Sample, selection: Selection, order: list[int]) -> dict[str, torch.Tensor]:
    """Raw features as a data pipeline hands them over; ``order`` maps HHblits symbols to ours."""
    chain, msa = sample.chain, sample.msa
    num_rows, num_res = msa.msa.shape
    to_hhblits = np.full(22, -1)
    for theirs, ours in reversed(list(enumerate(order))):
        to_hhblits[ours] = theirs
    deletions = np.zeros((num_rows, num_res), np.float32)
    for row in range(num_rows):
        for k in range(msa.del_ptr[row], msa.del_ptr[row + 1]):
            deletions[row, msa.del_col[k]] = msa.del_val[k]
    count = len(sample.templates)
    template_aatype = np.zeros((count, num_res, 22), np.int32)
    template_positions = np.zeros((count, num_res, 37, 3))
    template_mask = np.zeros((count, num_res, 37))
    for slot, (hit, template) in enumerate(sample.templates):
        symbols = np.full(num_res, 21)
        for q, t in zip(hit.q_idx, hit.t_idx):
            symbols[q] = template.aatype[t]
            template_positions[slot, q] = template.positions[t]
            template_mask[slot, q] = template.atom_mask[t]
        template_aatype[slot, np.arange(num_res), to_hhblits[symbols]] = 1
    full = np.full(num_res, num_res, np.int32)
    arrays = {
        "aatype": np.eye(21, dtype=np.float32)[chain.aatype],
        "between_segment_residues": np.zeros(num_res, np.int32),
        "residue_index": np.arange(num_res, dtype=np.int32),
        "seq_length": full,
        "msa": to_hhblits[msa.msa].astype(np.int32),
        "num_alignments": np.full(num_res, num_rows, np.int32),
        "deletion_matrix": deletions,
        "all_atom_positions": chain.positions.astype(np.float64),
        "all_atom_mask": chain.atom_mask.astype(np.float64),
        "resolution": np.asarray([chain.resolution], np.float32),
        "is_distillation": np.asarray(0.0, np.float32),
        "template_aatype": template_aatype,
        "template_all_atom_positions": template_positions,
        "template_all_atom_mask": template_mask,
    }
    return {name: torch.tensor(array) for name, array in arrays.items()}


def _template_script(
    sample: Sample, selection: Selection, config: FeaturesConfig
) -> tuple[int, list[int]]:
    """Start and permutation by which a reference takes the templates of the selection."""
    chosen = _ranks(sample, selection)
    rest = [i for i in range(len(sample.templates)) if i not in chosen]
    # A reference keeps min(n - start, slots) templates from start on. When the slots are full the
    # rest may stand anywhere; otherwise it must come before.
    return (len(rest), rest + chosen) if len(chosen) < config.max_templates else (0, chosen + rest)


def _run_openfold(
    sample: Sample, selection: Selection, config: FeaturesConfig, mode: str
) -> dict[str, torch.Tensor]:
    from openfold.config import model_config
    from openfold.data import data_transforms, input_pipeline
    from openfold.np import residue_constants

    script = _Script()
    full = model_config("initial_training", train=True).data
    common, settings = full.common, full[mode]
    settings.max_msa_clusters = config.max_msa_clusters
    settings.max_extra_msa = config.max_extra_msa
    settings.max_templates = config.max_templates
    settings.crop_size = selection.padded_length
    common.max_recycling_iters = len(selection.msa) - 1

    tensors = _raw_tensors(sample, selection, residue_constants.MAP_HHBLITS_AATYPE_TO_OUR_AATYPE)
    tensors["use_clamped_fape"] = torch.tensor(float(selection.clamped))
    _script_passes(script, sample, selection, config)
    values: deque[tuple[str, object]] = deque()
    for name, value in script.values:
        values.append((name, value))
        is_last = name == "randperm" and values[-2][0] == "categorical"
        if not is_last:
            continue
        if mode == "train":
            start, order = _template_script(sample, selection, config)
            values.append(("randint", torch.tensor([start])))
            values.append(("randperm", torch.tensor(order)))
        if not selection.clamped:
            values.append(("randint", torch.tensor([0])))
        values.append(("randint", torch.tensor([selection.crop.start])))
    script.values = values
    return _with_patches(
        data_transforms,
        script,
        lambda: input_pipeline.process_tensors_from_config(tensors, common, settings),
    )


def _run_mlperf(
    sample: Sample, selection: Selection, config: FeaturesConfig, mode: str
) -> dict[str, torch.Tensor]:
    import Bio.Data
    from Bio.Data import PDBData

    # Its old name, imported but not used here.
    Bio.Data.SCOPData = PDBData  # type: ignore[attr-defined]
    from openfold.data import features, transforms
    from openfold.data import residue_constants as rc

    script = _Script()
    settings = SimpleNamespace(
        train_sequence_crop_size=config.crop_size,
        num_recycling_iters=len(selection.msa) - 1,
        templates_enabled=True,
        embed_template_torsion_angles=True,
        max_distillation_msa_clusters=1000,
        max_msa_clusters=config.max_msa_clusters,
        max_extra_msa=config.max_extra_msa,
        max_templates=config.max_templates,
        masked_msa_enabled=True,
        masked_msa_profile_prob=0.1,
        masked_msa_same_prob=0.1,
        masked_msa_uniform_prob=0.1,
        masked_msa_replace_fraction=0.15,
        msa_cluster_features=True,
    )
    tensors = _raw_tensors(sample, selection, rc.MAP_HHBLITS_AATYPE_TO_OUR_AATYPE)
    _script_passes(script, sample, selection, config)
    values: deque[tuple[str, object]] = deque()
    for name, value in script.values:
        values.append((name, value))
        if not (name == "randperm" and values[-2][0] == "categorical"):
            continue
        if mode == "train":
            start, order = _template_script(sample, selection, config)
            values.append(("randint", torch.tensor([start])))
            values.append(("randperm", torch.tensor(order)))
        values.append(("randint", torch.tensor([selection.crop.start])))
    script.values = values
    return _with_patches(
        transforms,
        script,
        lambda: features._process_raw_feature_tensors(tensors, settings, mode, 0),
    )


def _with_patches(
    module: Any, script: _Script, run: Callable[[], dict[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    saved = module.torch, module.shaped_categorical
    module.torch, module.shaped_categorical = script, script.categorical
    try:
        features = run()
    finally:
        module.torch, module.shaped_categorical = saved
    assert not script.values, f"{len(script.values)} scripted values were not asked for"
    skip = ("row_mask", "sum_probs", "is_distillation", "seq_length", "num_alignments")
    return {k: v for k, v in features.items() if not k.endswith(skip)}


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
