"""A made-up run: every file that a report is made from, with plausible numbers by formula."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scalefold.checkpoint.write import save
from scalefold.config import config_hash, make_config, run_key
from scalefold.evaluate.results import mean_by_split
from scalefold.report.content import report_content
from scalefold.report.inputs import read_run
from scalefold.shards.manifest import Manifest, data_hash
from scalefold.shards.source_files import RawSnapshot
from scalefold.shards.writer import ShardFacts

STEPS = 200
CHAINS = [
    ("1a8o_A", "train", 70),
    ("1lcd_A", "train", 51),
    ("5pti_A", "train", 58),
    ("3u8v_A", "train", 93),
    ("102m_A", "validation", 154),
    ("1ay7_B", "validation", 89),
]


def metrics_records(steps: int = STEPS) -> list[dict[str, Any]]:
    records = []
    for step in range(1, steps + 1):
        noise = math.sin(7.1 * step) + math.sin(3.3 * step + 1)
        fall = math.exp(-step / 60)
        records.append(
            {
                "step": step,
                "samples": step,
                "loss": 20 + 55 * fall + 3 * noise,
                "lddt_ca": 0.55 - 0.4 * fall + 0.03 * noise,
                "loss/fape": 1.2 + 2.0 * fall + 0.2 * noise,
                "loss/distogram": 2.2 + 1.9 * fall + 0.1 * noise,
                "loss/masked_msa": 2.0 + 1.1 * fall + 0.1 * noise,
                "loss/plddt": 3.0 + 0.9 * fall + 0.1 * noise,
                "loss/chi": 0.6 + 0.5 * fall + 0.05 * noise,
                "grad_norm": None if step == 90 else 2 + 10 * fall + abs(noise),
                "learning_rate": 1e-3 * min(1.0, step / 20),
                "recycling": step % 4,
                "skipped_steps": int(step >= 90),
                "step_seconds": 0.8 + 0.1 * noise,
                "samples_per_second": 1 / (0.8 + 0.1 * noise),
                "loader_wait_seconds": 0.002 + 0.001 * abs(noise),
                "time": 1790000000.0 + 0.8 * step,
            }
        )
    return records


def helix(length: int, pitch_angstrom: float = 1.5) -> np.ndarray:
    """Backbone of an ideal helix, (N, 4, 3): atoms N, CA, C, O by their cylinder coordinates."""
    cylinder = [(1.55, -28.0, -0.9), (2.29, 0.0, 0.0), (1.65, 27.0, 1.05), (1.98, 25.0, 2.25)]
    turns = np.arange(length)[:, None] * math.radians(100.0)
    radius, angle, height = np.array(cylinder).T
    angle = turns + np.radians(angle)
    rise = pitch_angstrom * (np.arange(length)[:, None] - length / 2) + height
    return np.stack([rise, radius * np.cos(angle), radius * np.sin(angle)], -1)


def shown_structure(key: str, split: str, place: str, length: int) -> dict[str, Any]:
    """A helix, predicted with another rise; residues 1 to 3 were not observed."""
    predicted, true = helix(length, 1.7).astype("<f4"), helix(length).astype("<f4")
    true[:3] = np.nan
    size = len(range(0, length, max(1, -(-length // 160))))
    between = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    pairs = base64.b64encode(np.minimum(254, 12 * between).astype(np.uint8).tobytes()).decode()
    return {
        "chain_key": key,
        "split": split,
        "place": place,
        "sequence": ("ACDEFGHIKLMNPQRSTVWY" * (length // 20 + 1))[:length],
        "predicted": base64.b64encode(predicted.tobytes()).decode(),
        "true": base64.b64encode(true.tobytes()).decode(),
        "maps": {"distance": pairs, "true_distance": pairs},
    }


def shown_structures() -> list[dict[str, Any]]:
    """What an evaluation keeps for the viewer."""
    places = [(3, "best"), (1, "worst"), (4, "best")]
    return [shown_structure(*CHAINS[i][:2], place, CHAINS[i][2]) for i, place in places]


def evaluation(step: int, config_hash_: str, data_sha256: str) -> dict[str, Any]:
    gain = 1 - math.exp(-step / 90)
    chains = []
    for number, (key, split, length) in enumerate(CHAINS):
        top = (0.62 if split == "train" else 0.31) + 0.04 * math.sin(number)
        score = 0.17 + (top - 0.17) * gain
        truth = [min(1.0, max(0.0, score + 0.3 * math.sin(0.37 * i))) for i in range(length)]
        confidence = [100 * min(0.99, max(0.01, 0.8 * t + 0.12)) for t in truth]
        truth_or_null: list[float | None] = list(truth)
        truth_or_null[:3] = [None] * 3
        chains.append(
            {
                "chain_key": key,
                "split": split,
                "length": length,
                "observed": length - 3,
                "lddt_ca": round(score, 6),
                "lddt_all_atom": round(0.8 * score, 6),
                "gdt_ts": round(0.9 * score, 6),
                "tm_score": round(0.95 * score, 6),
                "rmsd_ca_angstrom": round(14 - 12 * score, 6),
                "mean_plddt": round(sum(confidence) / length, 6),
                "alignment_rows": 10 * 4 ** (number % 6),
                "release_date": f"{1995 + 5 * (number % 6)}-03-01",
                "peptide_bonds": length - 1,
                "broken_bonds": number,
                "clashes": 3 * number,
                "per_residue": {"lddt_ca": truth_or_null, "plddt": confidence},
            }
        )
    return {
        "format": 1,
        "step": step,
        "checkpoint": f"step-{step:08d}",
        "weights": "averaged",
        "recycling": 3,
        "seed": 0,
        "checkpoint_config_hash": config_hash_,
        "data_manifest_sha256": data_sha256,
        "scalefold_version": "0.1.0",
        "torch_version": "2.13.0",
        "device": "cpu",
        "mean": mean_by_split(chains, ["train", "validation"]),
        "counts": {
            "train": {"scored": 4, "skipped": 0, "failed": 0},
            "validation": {"scored": 2, "skipped": 1, "failed": 0},
        },
        "chains": chains,
        "skipped": [
            {
                "chain_key": "9xyz_A",
                "split": "validation",
                "length": 4000,
                "reason": "4000 residues, more than evaluation.max_length (2048)",
            }
        ],
        "failed": [],
    }


def write_manifest(shards: Path) -> str:
    shards.mkdir(parents=True)
    return Manifest(
        schema_version=1,
        config_hash="0123456789ab",
        source=RawSnapshot(files=61, bytes=3_400_000, sha256="5e" * 32),
        counts={
            "chains, train": 14,
            "chains, validation": 4,
            "chains, template": 3,
            "chains set aside": 2,
        },
        files=(
            ShardFacts("chain-00000.arrow", 1_200_000, 21, "a1" * 32),
            ShardFacts("index.arrow", 6_000, 21, "a2" * 32),
            ShardFacts("msa-00000.arrow", 4_200_000, 18, "a3" * 32),
            ShardFacts("rejected.tsv", 300, 2, "a4" * 32),
        ),
    ).write(shards)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run's folder.

    ``name`` is its name, ``evaluated`` the steps that were evaluated, ``structures`` says whether
    these kept any; others change its settings.
    """

    def make(
        name: str = "demo",
        evaluated: tuple[int, ...] = (0, 50, 100, 150, 200),
        structures: bool = False,
        **changes: Any,
    ) -> Path:
        run = tmp_path / name
        write_manifest(run / "shards")
        sha256 = data_hash(run / "shards")
        settings = {
            "preset": "tiny",
            "run_name": "demo",
            "data": {
                "chains": "demo/chains.tsv",
                "mirrors": {"mmcif": ["https://files.wwpdb.org"], "alignments": ["demo"]},
            },
        }
        config = make_config({**settings, **changes})
        key = run_key(config)
        initial = config.training.initial_weights and "1f" * 32
        for step in (0, STEPS):
            save(
                run / "weights" / key,
                step=step,
                weights={"w": torch.zeros(3)},
                averaged={"w": torch.zeros(3)},
                training={},
                description={
                    "config": config.model_dump(mode="json"),
                    "config_hash": config_hash(config),
                    "data_manifest_sha256": sha256,
                    "scalefold_version": "0.1.0",
                    "commit": "c0ffee" * 6 + "c0ff",
                    "initial_weights_sha256": initial,
                },
            )
        lines = [json.dumps(record) + "\n" for record in metrics_records()]
        (run / "weights" / key / "metrics.jsonl").write_text("".join(lines), "utf-8")
        events = [
            {
                "event": "start",
                "step": 0,
                "time": 1790000000.0 - 4,
                "processes": 1,
                "train_chains": 14,
                "train_chains_drawn": 9,
            },
            {"event": "end", "step": STEPS, "time": 1790000000.0 + 161, "max_rss_mb": 812.5},
        ]
        lines = [json.dumps(event) + "\n" for event in events]
        (run / "weights" / key / "sessions.jsonl").write_text("".join(lines), "utf-8")
        evaluations = run / "evaluation" / key
        evaluations.mkdir(parents=True)
        for step in evaluated:
            tree = evaluation(step, config_hash(config), sha256)
            if structures:
                tree["shown"] = shown_structures()
            (evaluations / f"step-{step:08d}.json").write_text(json.dumps(tree), "utf-8")
        (run / "shards/rejected.tsv").write_text(
            "chain_key\tstage\treason\n"
            "4bad_A\tfetch\tmmcif/ba/4bad.cif.gz: not a gzip file\n"
            "<b>x</b>_A\tpack\talignment is 12 columns wide, the sequence has 57 residues\n",
            "utf-8",
        )
        header = (
            "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"
        )
        benchmarks = {
            f"train/{key}.tsv": "163.2\t0:02:43\t812.5\t1\t1\t1\t0\t0\t98\t160",
            "config.tsv": "0.6\t0:00:00\t3.6\t1\t1\t1\t0\t0\t0\t0",
            "index.tsv": "1.2\t0:00:01\t-\t-\t-\t-\t-\t-\t-\t0",
            f"evaluate/{key}/step-00000000.tsv": "9.5\t0:00:09\t701.0\t1\t1\t1\t0\t0\t98\t9",
            f"evaluate/{key}/step-00000200.tsv": "10.5\t0:00:10\t705.0\t1\t1\t1\t0\t0\t98\t9",
        }
        for path, row in benchmarks.items():
            target = run / "benchmarks" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(header + row + "\n", "utf-8")
        return run

    return make


def content_of(run: Path, key: str | None = None) -> dict[str, Any]:
    """The numbers of a report alone: figures take time."""
    return report_content(run.name, read_run(run, key, run / "shards"))


def training_of(run: Path, kind: str = "weights") -> Path:
    """The folder of the only training."""
    (folder,) = (run / kind).iterdir()
    return folder
