"""What the system refuses is the user's to fix: one message, not a traceback; exit code 2."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
WITHOUT = "-dac_override,-dac_read_search,-fowner"
"""Capabilities that let root read everything."""

FIXTURE = ROOT / "tests/data/a3f069b"

# One process runs all commands: each takes one file's permission away and gives it back.
SCRIPT = """
import json, sys
from pathlib import Path
from typer.testing import CliRunner
from scalefold.cli import app
said = []
for file, arguments in json.load(sys.stdin):
    mode = Path(file).stat().st_mode
    Path(file).chmod(0)
    result = CliRunner().invoke(app, arguments, prog_name="scalefold")
    Path(file).chmod(mode)
    said.append((result.exit_code, result.stderr, repr(result.exception)))
print(json.dumps(said))
"""


def as_a_user(*command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run without root's permissions, where this is root."""
    dropped = ["setpriv", "--bounding-set", WITHOUT, "--inh-caps", WITHOUT]
    prefix = dropped if os.geteuid() == 0 else []
    return subprocess.run([*prefix, *command], capture_output=True, text=True, check=False, **more)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Data, a training and its evaluation; skips where no permission can be taken away."""
    closed = tmp_path / "closed"
    closed.touch(mode=0)
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root reads everything, and setpriv is not there")
    if as_a_user("cat", str(closed)).returncode == 0:
        pytest.skip("root's permissions cannot be given up here")
    return Path(shutil.copytree(FIXTURE / "run", tmp_path / "run"))


def test_a_file_that_may_not_be_read_is_named_and_not_called_damaged(run_folder: Path) -> None:
    options = ["-c", str(FIXTURE / "config.yaml")]
    raw, shards = run_folder / "raw", run_folder / "shards"
    (step,) = run_folder.glob("weights/*/step-00000004")
    (made,) = run_folder.glob("evaluation/*/step-00000004.json")
    training = step.parent
    train = ["train", *options, "--shards", str(shards), "--device", "cpu", "--out"]
    evaluate = [
        *("evaluate", str(step), *options, "--shards", str(shards), "--device", "cpu", "--out"),
    ]
    report = ["report", str(run_folder)]
    fetch = [sys.executable, "-m", "scalefold", "fetch", *options, "--out", str(raw)]
    subprocess.run(fetch, cwd=ROOT, capture_output=True, check=True)
    again, other = str(run_folder / "again"), str(run_folder / "other.json")
    export = ["weights", "export", str(step), "--out", str(run_folder / "w.pt")]
    mmcif = next(raw.rglob("*.cif.gz"))
    cases = [
        (mmcif, ["pack", *options, "--raw", str(raw), "--out", again]),
        *((shards / name, ["inspect", str(shards)]) for name in ("manifest.json", "index.arrow")),
        (shards / "chain-00000.arrow", ["inspect", str(shards), "--chain", "5pti_A"]),
        (shards / "chain-00000.arrow", ["verify", str(shards)]),
        (shards / "msa-00000.arrow", [*train, again]),
        (shards / "index.arrow", [*train, again]),
        (shards / "chain-00000.arrow", [*evaluate, other]),
        (step / "averaged.pt", [*evaluate, other]),
        (step / "averaged.pt", export),
        (step / "checkpoint.json", export),
        (step / "checkpoint.json", report),
        (training / "metrics.jsonl", report),
        (made, report),
        (training.parent, report),
        (
            step / "averaged.pt",
            ["config", "check", *options, "-s", f"training.initial_weights={step}"],
        ),
    ]
    done = as_a_user(
        sys.executable, "-c", SCRIPT, cwd=ROOT,
        input=json.dumps([(str(file), arguments) for file, arguments in cases]),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for (file, arguments), (code, said, raised) in zip(cases, json.loads(done.stdout), strict=True):
        words = " ".join(said.split())
        assert code == 2, (file, arguments, said, raised)
        # Of a folder it is the first file of it.
        assert re.search(rf"{file}\S*: .*permission", words), said
        assert "damaged" not in words
        assert "delete" not in words
    assert not Path(other).exists()


@pytest.mark.parametrize(
    "arguments",
    [["config", "show", "-c", "demo/config.yaml"], ["--help"], ["config", "--help"], ["--version"]],
    ids=" ".join,
)
def test_standard_output_to_a_full_disk(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "scalefold", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["config", "presets"], ["--help"]], ids=" ".join)
def test_an_output_that_nobody_reads_any_more_ends_silently(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "scalefold", *arguments]
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            command, cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == ""
