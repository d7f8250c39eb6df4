import json
import logging
import resource
from pathlib import Path

import pytest

from scalefold.errors import InputError
from scalefold.train.metrics import METRICS_FILE, MetricsLog


def _steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (path / METRICS_FILE).read_text().splitlines()]


def test_records_after_the_checkpoint_are_removed_on_resume(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, 0)
    for step in range(1, 8):
        log.write({"step": step, "loss": 1.5, "time": 0.0})
    log.close()
    with (tmp_path / METRICS_FILE).open("ab") as file:
        file.write(b'{"step": 8, "lo\xff\x00')  # a machine that broke down while writing
    log = MetricsLog(tmp_path, 4)
    log.write({"step": 5, "loss": 2.5, "time": 0.0})
    log.close()
    assert _steps(tmp_path) == [1, 2, 3, 4, 5]
    assert "2.5" in (tmp_path / METRICS_FILE).read_text()


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, 0)
    log.write({"step": 1, "loss": float("nan"), "grad_norm": float("inf"), "time": 0.0})
    log.sync()
    log.close()
    assert json.loads((tmp_path / METRICS_FILE).read_text()) == {
        "step": 1, "loss": None, "grad_norm": None, "time": 0.0,
    }  # fmt: skip


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path, 0)
    for step in (1, 2):
        log.write({"step": step, "loss/fape": 0.5 * step, "time": 0.0})
    log.close()
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in board.Scalars("loss/fape")] == [(1, 0.5), (2, 1.0)]


def test_a_full_disk_is_explained_and_closing_does_not_hide_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file-size limit is the kind of full disk that a test can have."""
    log = MetricsLog(tmp_path, 0)
    log.write({"step": 1, "name": 99_000 * "x"})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(InputError, match=r"metrics\.jsonl.*--resume"):
            log.write({"step": 2, "name": 2_000 * "x"})
        with pytest.raises(InputError, match=r"metrics\.jsonl.*--resume"):
            log.sync()
        with caplog.at_level(logging.WARNING):
            log.close()
        assert "metrics.jsonl: not written to its end (File too large)" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
