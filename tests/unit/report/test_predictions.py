"""The page of predictions: what is on it, what is not, and how large it becomes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from tests.unit.report.conftest import helix
from tests.unit.report.test_browser import CHROMIUM, probed
from tests.unit.report.test_report import Page

from scalefold.predict.model_cif import model_cif
from scalefold.predict.run import Outcome
from scalefold.report.predictions import write_predictions
from scalefold.report.structures import viewer_library

COMMAND = "scalefold predict <proteins>.fasta"


def made(out: Path, name: str, length: int, *, pae: bool = True, fate: str = "there") -> Outcome:
    """Write the files of a helix, of which the last residue has no atoms."""
    folder = out / name
    folder.mkdir(parents=True)
    positions, mask = torch.zeros(length, 37, 3), torch.zeros(length, 37, dtype=torch.bool)
    slots = [0, 1, 2, 4]  # N, CA, C, O
    positions[:, slots] = torch.from_numpy(helix(length)).float()
    mask[:-1, slots] = True
    plddt = torch.linspace(30, 95, length)
    files = {"model_cif": "rank_1_m.cif", "pdb": "rank_1_m.pdb"}
    text = model_cif(name, torch.arange(length) % 20, positions, mask, plddt)
    (folder / files["model_cif"]).write_text(text)
    if pae:
        files["pae"] = "rank_1_m.pae.json"
        error = np.abs(np.subtract.outer(np.arange(length), np.arange(length))).clip(0, 31)
        entry = {"predicted_aligned_error": error.tolist(), "max_predicted_aligned_error": 31.75}
        (folder / files["pae"]).write_text(json.dumps([entry]))
    model = {
        "rank": 1,
        "weights": {"label": "m", "file": "m.npz", "kind": "file", "step": 0, "sha256": "ab12"},
        "mean_plddt": round(float(plddt.mean()), 4),
        "ptm": 0.8125 if pae else None,
        "passes": 4,
        "files": files,
        "plddt": plddt.tolist(),
    }
    record = {
        "name": name,
        "length": length,
        "sequence": ("ARNDCQEGHILKMFPSTWYV" * (length // 20 + 1))[:length],
        "ranked_by": "ptm",
        "models": [model],
        "made_from": {"settings": [{"precision": "bf16"}]},
        "made_with": {"scalefold": "0.1", "commit": "c0ffee", "torch": "2.13", "device": "GPU 9"},
    }
    if fate == "predicted":  # before, records did not have it
        record["alignment_rows"] = 1234
    return Outcome(name, length, fate, record=record)


def rows(text: str) -> list[list[str]]:
    table = re.search(r'<table id="predictions-table".*?</table>', text, re.DOTALL)[0]
    cells = [re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in table.split("<tr>")[2:]]
    return [[re.sub(r"<.*?>", "", cell).strip() for cell in row] for row in cells]


def test_the_page_has_all_predictions_and_links_their_files(tmp_path):
    outcomes = [
        made(tmp_path, "new", 60, fate="predicted"),
        made(tmp_path, "before", 200, pae=False),
        Outcome("'bad name'", None, "failed", "line 7: its name cannot be a folder's"),
    ]
    assert write_predictions(tmp_path, outcomes, COMMAND) == 2
    text = (tmp_path / "predictions.html").read_text("utf-8")
    new, before, bad = rows(text)
    assert new[:7] == ["new", "60", "62.5", "0.812", "4", "1,234", "m"]
    assert before[:7] == ["before", "200", "62.5", "–", "4", "–", "m"]
    assert bad[0] == "&#39;bad name&#39;"
    assert bad[-1] == outcomes[-1].reason.replace("'", "&#39;")
    links = set(re.findall(r'<a href="([^"#][^"]*)"', text))
    assert links == {
        *(
            f"{name}/{file}"
            for name in ("new", "before")
            for file in ("rank_1_m.cif", "rank_1_m.pdb", "prediction.json")
        ),
        "new/rank_1_m.pae.json",
    }
    for value in ("m.npz", "ab12", "c0ffee", "GPU 9", "bf16", "&lt;proteins&gt;.fasta"):
        assert value in text
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    svgs = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(svgs) == 3  # one has no aligned errors


def test_names_are_escaped(tmp_path):
    name = 'javascript:"><img src=x>&$x_A'
    outcomes = [
        made(tmp_path, name, 30),
        Outcome("<script>alert(1)</script>", None, "failed", "<b>no</b>"),
    ]
    write_predictions(tmp_path, outcomes, COMMAND)
    text = (tmp_path / "predictions.html").read_text("utf-8")
    page = text.replace(viewer_library(), "")
    assert "<img" not in page
    assert "<b>" not in page
    assert "alert(1)</script>" not in page
    for link in re.findall(r'<a href="([^"#][^"]*)"', page):
        assert re.match(r"[A-Za-z0-9%_]+/", link)
        assert unquote(link).startswith(name + "/")


def test_the_page_stays_small_and_says_what_it_leaves_out(tmp_path):
    outcomes = [made(tmp_path, f"chain{number}", 50) for number in range(6)]
    assert write_predictions(tmp_path, outcomes, COMMAND) == 6
    page = tmp_path / "predictions.html"
    limit = page.stat().st_size - 1
    shown = write_predictions(tmp_path, outcomes, COMMAND, limit)
    text = page.read_text("utf-8")
    assert shown == text.count("<article") == 5
    assert page.stat().st_size <= limit
    assert f"{shown} of 6" in text
    assert len(rows(text)) == 6
    assert write_predictions(tmp_path, outcomes, COMMAND, 1000) == 0
    assert len(rows(page.read_text("utf-8"))) == 6


def test_a_damaged_prediction_leaves_the_others(tmp_path, caplog):
    outcomes = [made(tmp_path, name, 40) for name in ("cut", "gone", "whole")]
    file = tmp_path / "cut/rank_1_m.pae.json"
    file.write_text(file.read_text()[:100])
    (tmp_path / "gone/rank_1_m.cif").unlink()
    assert write_predictions(tmp_path, outcomes, COMMAND) == 1
    assert {record.args[0] for record in caplog.records} == {"cut", "gone"}


@pytest.mark.skipif(not CHROMIUM, reason="there is no chromium on this machine")
def test_it_works_in_a_browser(tmp_path):
    outcomes = [made(tmp_path, "one", 60), made(tmp_path, "two", 90, pae=False)]
    write_predictions(tmp_path, outcomes, COMMAND)
    found, console = probed(tmp_path, tmp_path / "predictions.html", 1200)
    assert console == []
    assert found["first"]["drawn"] > 500
    assert found["first"]["colours"] > 10
    assert found["other"]["drawn"] > 500
    assert found["first"]["url"] != found["other"]["url"]
    assert found["nothing"]["drawn"] == 0
    assert found["articles"] == ["1"]
    assert found["unreachable"] == []
    assert found["cut"] == []
    assert found["rising"] == ["one", "two"]
    assert found["falling"] == ["two", "one"]
