"""The structures of a report, drawn by code that is not ours."""

import hashlib
import json
from importlib import resources

import numpy as np
import pytest
from tests.unit.report import conftest
from tests.unit.report.conftest import content_of, shown_structures, training_of
from tests.unit.report.test_report import report_of

from scalefold.report import write_report
from scalefold.report.structures import structures, viewer_data

VENDOR = resources.files("scalefold.report") / "vendor"


def test_the_library_is_the_published_one():
    facts = json.loads((VENDOR / "3Dmol.json").read_text("utf-8"))
    content = (VENDOR / "3Dmol-min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == facts["sha256"]
    assert "BSD-3-Clause" in (VENDOR / "3Dmol-LICENSE").read_text("utf-8")


def test_structures_are_on_the_page_with_their_residues(make_run):
    text, page, _ = report_of(make_run(structures=True, evaluated=(0, 200)))
    assert "$3Dmol" in text
    assert "University of Pittsburgh" in text
    assert len(page.ids) == len(set(page.ids))
    assert {r[1:] for r in page.references if r.startswith("#")} <= set(page.ids)
    (title,) = (text for text in page.text if "102m_A, best of validation" in text)
    assert "154 residues" in title
    assert "observed" in title
    (line,) = [one for one in text.splitlines() if 'id="structures-data"' in one]
    data = json.loads(line.partition(">")[2].rpartition("</script>")[0])
    assert [len(one["sequence"]) for one in data] == [154, 93, 51]
    assert data[0]["lddt"][:4] == [None, None, None, pytest.approx(data[0]["lddt"][3])]


def test_older_evaluations_without_structures_make_a_report_that_says_so(make_run):
    text, page, content = report_of(make_run(evaluated=(200,)))
    assert "$3Dmol" not in text
    assert "kept no structures" in " ".join(" ".join(page.text).split())
    assert content["notes"] == []


@pytest.mark.parametrize("damage", ["cut", "unknown", "map", "lone map"])
def test_damaged_structures_are_left_out_with_their_evaluation(make_run, damage):
    run = make_run(structures=True, evaluated=(0, 200))
    path = training_of(run, "evaluation") / "step-00000200.json"
    tree = json.loads(path.read_text())
    one = tree["shown"][0]
    if damage == "cut":
        one["true"] = one["true"][:-16]
    elif damage == "unknown":
        one["chain_key"] = "9zzz_A"
    elif damage == "lone map":
        one["maps"]["pae"] = one["maps"]["distance"]
    else:
        one["maps"]["distance"] = "AAAA"
    path.write_text(json.dumps(tree))
    content = content_of(run)
    assert [evaluation["step"] for evaluation in content["evaluations"]] == [0]
    assert "step-00000200.json" in content["notes"][0]


def test_names_cannot_end_the_script(make_run):
    shown = shown_structures()
    shown[0]["sequence"] = "</script>" + shown[0]["sequence"][9:]
    chains = [
        {
            "chain_key": one["chain_key"],
            "split": one["split"],
            "lddt_ca": 0.5,
            "mean_plddt": 50.0,
            "per_residue": {"lddt_ca": [0.5], "plddt": [50.0]},
        }
        for one in shown
    ]
    found = structures({"chains": chains, "shown": shown})
    assert "</script>" not in viewer_data(found)
    assert {one["sequence"][:9] for one in json.loads(viewer_data(found))} >= {"</script>"}
    assert np.nanmax(found[0].maps["distance"]) <= 254 / 8


def test_a_page_of_200_long_chains_is_at_most_10_megabytes(make_run, monkeypatch):
    chains = [(f"{n:04d}_A", "train" if n % 2 else "validation", 1000) for n in range(200)]
    monkeypatch.setattr(conftest, "CHAINS", chains)
    run = make_run(structures=True, evaluated=(0, 100, 200))
    for path in (run / "evaluation").glob("*/*.json"):
        tree = json.loads(path.read_text("utf-8"))
        tree["shown"] = [
            conftest.shown_structure(*chains[2 * number + split][:2], place, 1000)
            for split in (0, 1)
            for number, place in enumerate(("best", "median", "worst"))
        ]
        path.write_text(json.dumps(tree), "utf-8")
    write_report(run)
    assert (run / "report.html").stat().st_size < 10_000_000
