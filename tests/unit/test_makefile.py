from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('case "$1" in --version) echo Python 3.8.1 ;; *) exit 1 ;; esac', "is Python 3.8.1"),
        ("echo one line >&2; echo another >&2; exit 127", "is no interpreter"),
        (None, "no interpreter"),
    ],
    ids=["old", "broken", "missing"],
)
def test_an_interpreter_that_does_not_serve_is_told_in_one_line(
    script: str | None, said: str, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    command = ["make", "environment", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    own = [
        line for line in done.stderr.splitlines() if not re.match(r"make(\[\d+\])?: \*\*\*", line)
    ]
    assert len(own) == 1, done.stderr
    assert said in own[0]
    assert not (tmp_path / "venv").exists()
