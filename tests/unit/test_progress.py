from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from scalefold import progress
from scalefold.progress import LiveLine, format_duration
from scalefold.train.progress_line import ProgressLine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the lines see; change its entry to let time pass."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", logger="scalefold")
    return caplog


def _record(step: int, **values: float) -> dict[str, Any]:
    return {"step": step, "loss": 1.0, "lddt_ca": 0.5, "samples_per_second": 2.0, **values}


def test_a_log_has_each_line_with_the_time_left(
    clock: list[float], log: pytest.LogCaptureFixture
) -> None:
    with LiveLine("evaluating x:", 12, Console(file=io.StringIO()), done=2) as line:
        for done in range(3, 13):
            clock[0] += 60.0
            line.show(done, f"chain {done}")
    assert log.messages[0] == "evaluating x: 3/12  chain 3  9:00 left"
    assert log.messages[4] == "evaluating x: 7/12  chain 7  5:00 left"
    assert log.messages[-1] == "evaluating x: 12/12  chain 12  0:00 left"
    assert len(log.messages) == 10


@pytest.mark.parametrize("before", [0, 500])
def test_the_time_left_follows_a_machine_that_got_busy(
    clock: list[float], log: pytest.LogCaptureFixture, before: int
) -> None:
    """First a slow step, that compiles; then fast ones; then others use the machine."""
    seconds = [100.0] + 59 * [1.0] + 40 * [3.0]
    with LiveLine("x", before + 120, Console(file=io.StringIO()), done=before) as line:
        for done, passed in enumerate(seconds, before + 1):
            clock[0] += passed
            line.show(done, "")
    assert log.messages[59].endswith("  1:00 left")
    assert log.messages[99].endswith("  1:00 left")


def test_fast_steps_share_a_line_but_first_and_last_have_their_own(
    clock: list[float], log: pytest.LogCaptureFixture
) -> None:
    with ProgressLine(0, 10, Console(file=io.StringIO())) as line:
        for step in range(1, 11):
            clock[0] += 2.0
            line.update(_record(step))
    steps = [int(re.match(r"training step (\d+)/10  ", m)[1]) for m in log.messages]
    assert steps == [1, 4, 7, 10]  # more than 5 s lie between


def test_means_pass_over_steps_without_a_number(
    clock: list[float], log: pytest.LogCaptureFixture
) -> None:
    with ProgressLine(0, 4, Console(file=io.StringIO())) as line:
        for step, loss in enumerate((float("nan"), 4.0, float("inf"), 2.0), 1):
            clock[0] += 9.0
            line.update(_record(step, loss=loss))
    shown = [re.search(r"loss (\S+)", message)[1] for message in log.messages]
    assert shown == ["nan", "4.000", "4.000", "3.000"]
    assert "lDDT-Cα 0.500  2 samples/s  0:00 left" in log.messages[-1]


def test_means_are_of_the_last_steps_and_say_of_how_many(
    clock: list[float], log: pytest.LogCaptureFixture
) -> None:
    """After a resume there are none of before, and the first line is of one step."""
    with ProgressLine(100, 130, Console(file=io.StringIO())) as line:
        for step in range(101, 131):
            clock[0] += 9.0
            line.update(_record(step, loss=float(step)))
    said = [m.partition("  lDDT")[0] for m in log.messages]
    assert said[0] == "training step 101/130  mean of 1 step: loss 101.000"
    assert said[1] == "training step 102/130  mean of 2 steps: loss 101.500"
    assert said[-1] == "training step 130/130  mean of 25 steps: loss 118.000"  # of 106 to 130


def test_a_terminal_has_one_line_and_the_log_none(log: pytest.LogCaptureFixture) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with LiveLine("evaluating", 2, console) as line:
        for done in (1, 2):
            line.show(done, "[5pti_A]")  # not markup
    assert "2/2 [5pti_A]  0:00 left" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert not log.messages


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (36000, "10:00:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
