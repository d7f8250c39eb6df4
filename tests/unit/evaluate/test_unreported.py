"""An evaluation that could not be told is taken up where it is what would be made now."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalefold.evaluate.unreported import forget_unreported, keep_unreported, read_unreported

MADE_FROM = {"step": 4, "weights_sha256": "ab"}
EVALUATION = {**MADE_FROM, "mean": {"train": {"lddt_ca": 0.5}}}


def test_taken_up_until_it_is_forgotten(tmp_path: Path) -> None:
    out = tmp_path / "step-4.json"
    assert read_unreported(out, MADE_FROM, ["train"]) is None
    keep_unreported(EVALUATION, out)
    assert read_unreported(out, MADE_FROM, ["train"]) == EVALUATION
    forget_unreported(out)
    assert read_unreported(out, MADE_FROM, ["train"]) is None


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b"3", b'{"step": 4}', b"[" * 100_000])
def test_a_damaged_one_is_evaluated_again(tmp_path: Path, content: bytes) -> None:
    out = tmp_path / "step-4.json"
    keep_unreported(EVALUATION, out)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(content)
    assert read_unreported(out, {"step": 4}, ["train"]) is None


def test_not_taken_up_for_other_splits_or_weights(tmp_path: Path) -> None:
    out = tmp_path / "step-4.json"
    keep_unreported(EVALUATION, out)
    assert read_unreported(out, MADE_FROM, ["validation"]) is None
    assert read_unreported(out, MADE_FROM, ["train", "validation"]) is None
    assert read_unreported(out, {**MADE_FROM, "weights_sha256": "cd"}, ["train"]) is None
