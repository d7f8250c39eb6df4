from __future__ import annotations

import pytest

from scalefold.report.calibration import calibration


def chain(plddt: list[float], lddt: list[float | None]) -> dict:
    return {"per_residue": {"plddt": plddt, "lddt_ca": lddt}}


def test_by_hand():
    result = calibration(
        [chain([12.0, 18.0, 95.0], [0.2, 0.1, 0.9]), chain([100.0, 50.0], [1, None])]
    )
    assert result["residues"] == 4
    assert [b["count"] for b in result["bins"]] == [0, 2, 0, 0, 0, 0, 0, 0, 0, 2]
    assert (result["bins"][1]["low"], result["bins"][1]["high"]) == (10, 20)
    assert result["bins"][1]["mean_plddt"] == 15.0
    assert result["bins"][1]["mean_lddt_ca"] == 15.0
    assert result["bins"][0]["mean_lddt_ca"] is None
    assert result["mean_absolute_error"] == pytest.approx((8 + 8 + 5 + 0) / 4)


def test_perfect_confidence():
    result = calibration([chain([10.0, 40.0, 80.0], [0.1, 0.4, 0.8])])
    assert result["correlation"] == pytest.approx(1.0)
    assert result["mean_absolute_error"] == pytest.approx(0.0, abs=1e-3)


def test_numbers_of_json_that_only_floats_hold():
    assert calibration([chain([10**20, 40, 80], [0.1, 0.4, 0.8])])["residues"] == 3


@pytest.mark.parametrize("chains", [[], [chain([50.0], [None])], [chain([50.0, 50.0], [0.1, 0.9])]])
def test_correlation_that_cannot_be_said(chains):
    assert calibration(chains)["correlation"] is None
