"""The commands as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from tests.unit.cli.conftest import DEMO, ROOT, run

from scalefold.cli import app
from scalefold.cli.options import parse_overrides, parse_variations
from scalefold.config import json_schema, load_config, preset_names
from scalefold.errors import InputError
from scalefold.train.loop import TrainingResult
from scalefold.train.signals import StopRequest

SHARDS = str(ROOT / "tests/data/a3f069b/run/shards")


def commands(command: Any, names: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """All commands that do something, by their words."""
    if not hasattr(command, "commands"):
        return [names]
    parts = [commands(c, (*names, n)) for n, c in command.commands.items()]
    return [words for part in parts for words in part]


ALL = commands(typer.main.get_command(app))


def command(words: tuple[str, ...]) -> Any:
    """The command of these words."""
    found: Any = typer.main.get_command(app)
    for word in words:
        found = found.commands[word]
    return found


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_breaks_lines_between_paragraphs_only(words: tuple[str, ...]) -> None:
    text = command(words).help
    assert text
    assert all(line == "" or before == "" for before, line in pairwise(text.split("\n")))


def test_commands() -> None:
    named = {words[0] for words in ALL}
    assert {"fetch", "pack", "inspect", "verify", "train", "evaluate", "report"} <= named
    assert {("weights", "import"), ("weights", "export"), ("config", "schema")} <= set(ALL)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_of_every_command_explains_every_option(words: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    assert len(command.help) > 20
    for parameter in command.params:
        if parameter.name != "help":
            assert parameter.help, f"{' '.join(words)}: no help for {parameter.name}"
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert "Usage: scalefold" in result.output


def test_help_is_immediate() -> None:
    """Neither help nor an error of usage loads what only running a command needs."""
    code = (
        "import sys; from scalefold.cli import app\n"
        "try: app(['train', '--help'], prog_name='scalefold')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'gemmi', 'Bio', 'matplotlib', 'scalefold.config'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_input_error_is_one_message_and_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scalefold", "config", "check", "-c", "no[1].yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no[1].yaml: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.output) == (0, "scalefold 0.1.0\n")


def test_config_show_resolves_files_and_overrides(tmp_path: Path) -> None:
    second = tmp_path / "second.yaml"
    second.write_text("training: {steps: 5, prefetch: 3}\n")
    result = run("config", "show", "-c", DEMO, "-c", str(second), "-s", "training.steps=20")
    tree = yaml.safe_load(result.output)
    assert (tree["training"]["steps"], tree["training"]["prefetch"]) == (20, 3)
    assert tree == load_config([Path(DEMO), second], {"training": {"steps": 20}}).model_dump(
        mode="json"
    )


def test_stages(tmp_path: Path) -> None:
    path = tmp_path / "stages.yaml"
    path.write_text("stages: {first: {}, second: {training: {steps: 7}}}")
    files = ["-c", DEMO, "-c", str(path)]
    lines = run("config", "key", *files).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["first", "second"]
    second = yaml.safe_load(run("config", "show", *files, "--stage", "second").stdout)
    assert second["training"]["steps"] == 7
    assert lines[0].split()[0] in second["training"]["initial_weights"]
    training = ["--shards", SHARDS, "--out", str(tmp_path / "out")]
    for arguments, message in [
        (files, "first, second"),
        ([*files, "--stage", "third"], "'third'"),
        (["-c", DEMO, "--stage", "first"], "stages"),
    ]:
        result = run("train", *arguments, *training)
        assert result.exit_code == 2
        assert message in result.output.replace("\n", " ")


def test_config_schema_and_presets(tmp_path: Path) -> None:
    assert run("config", "schema").output == json_schema()
    assert run("config", "schema", "-o", str(tmp_path / "s.json")).exit_code == 0
    assert json.loads((tmp_path / "s.json").read_text()) == json.loads(json_schema())
    lines = [line.split(maxsplit=1) for line in run("config", "presets").output.splitlines()]
    assert [name for name, _ in lines] == preset_names()  # each with what it is for


def test_config_check_names_the_nearest_key() -> None:
    result = run("config", "check", "-c", DEMO, "-s", "training.step=5")
    assert result.exit_code == 2
    assert "'training.step'" in result.stderr
    assert "'training.steps'" in result.stderr
    assert run("config", "check", "-c", DEMO).exit_code == 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.initial_weights=/no.pt", "training.initial_weights: /no.pt: "),
        (f"training.initial_weights={DEMO}", f"training.initial_weights: {DEMO}: "),
        ("training.initial_weights=/", "training.initial_weights: /: "),
        ("container=no.sif", "container: no.sif: "),
        ("data.alignments=[swiss_hits]", "5pti_A/a3m/swiss_hits.a3m"),
        (
            "data.template_hits=pdb_hits",
            "data.template_hits",
        ),
        ("data.mirrors.mmcif_path=flat/{entry}.cif.gz", "data.mirrors.mmcif"),
        (f"results={DEMO}/x", f"results: {DEMO}/x/demo"),
        ("evaluation.splits=[test]", "'test'"),
        ("predict={fasta: no.fasta, query_alone: true}", "no.fasta: no such FASTA file"),
        ("report={against: [no.json]}", "no.json: no such evaluation"),
    ],
)
def test_config_check_finds_what_would_fail_late(override: str, message: str) -> None:
    result = run("config", "check", "-c", DEMO, "-s", override)
    assert result.exit_code == 2
    assert message in result.stderr


def test_weights_import_sends_back_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-00000001"
    checkpoint.mkdir()
    (checkpoint / "checkpoint.json").write_text("{}")
    out = tmp_path / "out.pt"
    result = run("weights", "import", str(checkpoint), "--preset", "tiny", "--out", str(out))
    assert result.exit_code == 2
    assert f"{checkpoint}: " in result.stderr
    assert "training.initial_weights" in result.stderr
    assert not out.exists()


def test_weights_export_writes_over_no_file_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text("{}")
    averaged = tmp_path / "averaged.pt"
    averaged.write_bytes(b"as it was")
    result = run("weights", "export", str(tmp_path), "--out", str(averaged))
    assert result.exit_code == 2
    assert f"{tmp_path} " in result.stderr
    assert averaged.read_bytes() == b"as it was"


def test_config_check_reads_initial_weights(tmp_path: Path) -> None:
    weights = tmp_path / "other.pt"
    torch.save({"another.weight": torch.zeros(2)}, weights)
    result = run("config", "check", "-c", DEMO, "-s", f"training.initial_weights={weights}")
    assert result.exit_code == 2
    assert f"training.initial_weights: {weights} " in result.stderr
    assert "another.weight" in result.stderr


@pytest.mark.parametrize(
    ("step", "completed", "options", "said"),
    [
        (1000, True, [], "step 1000 of 1000\n"),
        (1090, True, ["--resume"], "step 1090, training.steps is only 1000\n"),
        (90, False, [], "stopped by SIGINT; the same command with --resume continues\n"),
        (90, False, ["--resume"], "stopped by SIGINT; the same command continues\n"),
    ],
)
def test_how_a_training_ended(
    step: int, completed: bool, options: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(*_: Any, stop: StopRequest, **__: Any) -> TrainingResult:
        stop.reason = "SIGINT"
        return TrainingResult(step, Path("here"), completed, skipped_steps=0)

    monkeypatch.setattr("scalefold.train.start.train", trained)
    result = run("train", "-c", DEMO, "--shards", SHARDS, "--out", "y", *options)
    assert result.exit_code == (0 if completed else 75)
    assert said in result.output


def test_a_list_without_a_chain_to_train_on(tmp_path: Path) -> None:
    """Not a configuration to train with; but its chains can be fetched, for evaluation."""
    chains = tmp_path / "chains.tsv"
    chains.write_text("chain_key\tsplit\tcluster_id\n5pti_A\tvalidation\t\n")
    options = ("-c", DEMO, "-s", f"data.chains={chains}")
    check = run("config", "check", *options)
    assert check.exit_code == 2
    assert f"{chains}: " in check.stderr
    fetched = run("fetch", *options, "--out", str(tmp_path / "raw"))
    assert fetched.exit_code == 0
    assert f"{chains}: " in fetched.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config", "schema", "-o", "{here}/no/s.json"], "no/s.json"),
        (["weights", "export", "{here}/no", "-o", "{here}/w.pt"], "/no: "),
        (
            [
                *("bench", "step", "-c", DEMO, "--shards", "{here}", "-o", "x", "--device", "cpu"),
                *("--vary", "training.precision=[fp17]"),
            ],
            "fp17",
        ),
        (["report", "{here}", "--shards", "{here}/no"], "/no: "),
        (["report", "{here}", "--out", "{here}/no/r.html"], "no/r.html: "),
        (["report", "{here}", "--set", "seed=1"], "--config"),
        (["plan", "-c", "{here}"], "is a folder"),
        (["plan", "--kind", "a100"], "records are of NVIDIA H200 and NVIDIA H100"),
        (["plan", "--memory-gib", "-5"], "--memory-gib"),
    ],
)
def test_bad_paths_and_values(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = run(*[text.format(here=tmp_path) for text in arguments])
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("texts", "tree"),
    [
        (["training.steps=20"], {"training": {"steps": 20}}),
        (["a.b=1", "a.c=[x, y]"], {"a": {"b": 1, "c": ["x", "y"]}}),
        (['a={"b": 1}', "a.c=2"], {"a": {"b": 1, "c": 2}}),
        (["a.b=null"], {"a": {"b": None}}),
        (["a=b=c"], {"a": "b=c"}),
    ],
)
def test_overrides(texts: list[str], tree: dict[str, Any]) -> None:
    assert parse_overrides(texts) == tree


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["training.steps"], "expected KEY=VALUE"),
        (["training..steps=1"], "expected KEY=VALUE"),
        (["a=[1"], "YAML.* line 1"),
        (["a=1", "a.b=2"], "'a'"),
    ],
)
def test_bad_overrides(texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_overrides(texts)


def test_variations() -> None:
    texts = ["training.recomputation=[none, full]", "training.kernels=[auto, [norm, dropout]]"]
    assert parse_variations(texts) == {
        "training.recomputation": ["none", "full"],
        "training.kernels": ["auto", ["norm", "dropout"]],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.recomputation=full", "expected a list of values"),
        ("training.recomputation=[]", "expected a list of values"),
        ("=[1]", "KEY=VALUE"),
    ],
)
def test_bad_variations(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_variations([text])


@pytest.mark.parametrize("kind", ["mmcif", "alignments"])
def test_mirror_that_is_no_folder_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    options = ("-c", DEMO, "-s", f"data.mirrors.{kind}=[{tmp_path / 'no'}]")
    out = tmp_path / "raw"
    only = "structures" if kind == "mmcif" else "alignments"
    for result in (
        run("config", "check", *options),
        run("fetch", *options, "--out", str(out)),
        run("fetch", *options, "--out", str(out), "--only", only, "--bucket", "0"),
    ):
        assert result.exit_code == 2, result.output
        assert f"data.mirrors.{kind}: {tmp_path / 'no'} " in result.stderr
    assert not out.exists()
    # A fetch of the other kind does not use it.
    other = "alignments" if kind == "mmcif" else "structures"
    assert run("fetch", *options, "--out", str(out), "--only", other).exit_code == 0


def test_fetch_pack_inspect_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    chains = tmp_path / "chains.tsv"
    lines = (ROOT / "demo/chains.tsv").read_text().splitlines()
    kept = [line for line in lines if line[:6] in ("chain_", "5pti_A", "1a8o_A", "2crb_A")]
    chains.write_text("\n".join([*kept, "5pti_Z\ttrain\t"]) + "\n")  # no such chain
    raw, shards = tmp_path / "raw", tmp_path / "shards"
    options = ("-c", DEMO, "-s", f"data.chains={chains}", "-s", "data.buckets=1")
    fetched = run("fetch", *options, "--out", str(raw))
    packed = run("pack", *options, "--raw", str(raw), "--out", str(shards))
    mixed = run("pack", *options, "--raw", str(raw), "--out", str(raw))
    assert mixed.stderr.startswith(f"error: {raw}: --out holds raw files.")
    mixed = run("fetch", *options, "--out", str(shards))
    assert mixed.stderr.startswith(f"error: {shards}: --out holds shards.")
    for result in (fetched, packed, run("verify", str(shards))):
        assert result.exit_code == 0, result.output
    assert "  5pti_Z\n" in fetched.stderr
    assert f"{shards / 'rejected.tsv'} " in packed.stderr
    assert "5pti_A" in run("inspect", str(shards / "chain-00000.arrow")).output
    assert "RPDFCLEPPYTGPCKARI" in run("inspect", str(shards), "--chain", "5pti_A").output
    missing = run("inspect", str(shards), "--chain", "9xyz_A")
    assert (missing.exit_code, "'9xyz_A'" in missing.stderr) == (2, True)

    shard = shards / "msa-00000.arrow"
    killed = shard.with_name(f"{shard.name}.tmp.123")
    killed.write_bytes(b"x")
    noted = run("verify", str(shards))
    assert (noted.exit_code, f"{killed}: " in noted.stderr) == (0, True)
    killed.rename(shards / "msa-00001.arrow")  # of no bucket that there is
    strayed = run("verify", str(shards))
    assert (strayed.exit_code, "msa-00001.arrow: " in strayed.stderr) == (0, True)
    (shards / "msa-00001.arrow").unlink()
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    damaged = run("verify", str(shards))
    assert damaged.exit_code == 2
    assert f"{shard}" in damaged.stderr


def test_fetch_says_what_no_mirror_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    options = ("-c", DEMO, "--out", str(tmp_path))
    misspelt = ("-s", "data.alignments=[swisprot_hits]", "-s", "data.template_hits=pdb7_hits")
    bucket = run("fetch", *options, *misspelt, "--bucket", "0")
    assert bucket.exit_code == 0, bucket.output  # whether others have it is not known
    for name, key in (("swisprot_hits.a3m", "alignments"), ("pdb7_hits.hhr", "template_hits")):
        assert f"{name} for any of 8 chains" in bucket.stderr
        assert f"data.{key}" in bucket.stderr
    assert "5pti_A" in bucket.stderr
    whole = tmp_path / "whole"
    for option in (("--dry-run",), ()):
        refused = run("fetch", "-c", DEMO, "--out", str(whole), *misspelt, *option)
        assert refused.exit_code == 2, refused.output
        assert "swisprot_hits.a3m" in refused.stderr
        assert "pdb7_hits.hhr" in refused.stderr
        assert "data.mirrors" in refused.stderr
        assert not whole.exists()  # nothing is downloaded before
    one_of_two = ("-s", "data.alignments=[swissprot_hits,unirref]")
    assert run("fetch", *options, *one_of_two).exit_code == 2
    searched = ("-s", "search={query_alone: true, steps: []}")  # makes what no mirror has
    fetched = run("fetch", *options, *one_of_two, *searched)
    assert fetched.exit_code == 0, fetched.output
    assert "unirref.a3m for any of 17 chains" in fetched.stderr
    assert "set aside" not in fetched.stderr


def test_fetch_names_a_mirror_that_failed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    damaged = tmp_path / "first/pub/pdb/data/structures/divided/mmCIF/pt/5pti.cif.gz"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"data_5PTI")
    roots = f"data.mirrors.mmcif=[{tmp_path / 'first'},demo/mirror/wwpdb]"
    options = ("-c", DEMO, "--only", "structures", "-s", roots)
    fetched = run("fetch", *options, "--out", str(tmp_path / "raw"))
    assert fetched.exit_code == 0, fetched.output
    assert fetched.stderr.count(f"{tmp_path / 'first'} failed for 1 file") == 1
    assert f"{damaged}: " in fetched.stderr


def test_report_of_a_training_and_an_evaluation_made_by_hand(tmp_path: Path) -> None:
    """A folder laid out like a run is one; what it lacks is said on the terminal too."""
    wrong = run("report", str(tmp_path))
    assert (wrong.exit_code, str(tmp_path) in wrong.stderr) == (2, True)
    (tmp_path / "weights/first").mkdir(parents=True)
    made = run("report", str(tmp_path), "--out", str(tmp_path / "first.html"))
    assert made.exit_code == 0, made.output
    notes = json.loads((tmp_path / "first.json").read_text())["notes"]
    assert len(notes) >= 3
    said = [line for line in made.stderr.splitlines() if line.startswith("note: ")]
    assert said == [f"note: {n}" for n in notes]
    twice = run("report", str(tmp_path), "--out", str(tmp_path / "first.json"))
    assert (twice.exit_code, "first.html" in twice.stderr) == (2, True)
    assert json.loads((tmp_path / "first.json").read_text())["notes"] == notes


def test_report_says_the_means_and_the_chains_that_they_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = {"step": 20, "value": 0.25, "over": "1 of 2 chains; 1 failed: c (bad)"}
    best = {"step": 10, "value": 0.5, "chains": "2 of 2 chains"}
    first = {"step": 0, "value": 0.125, "chains": "1 of 2 chains"}
    means = {
        "validation": {"last": last, "best": best, "first": first},
        "train": {"last": None},
    }
    content = {"notes": [], "findings": [], "summary": {"lddt_ca": means}}
    monkeypatch.setattr("scalefold.report.write_report", lambda *_: content)
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    said = run("report", "run").stdout.splitlines()
    assert said == [
        "step 20, validation: mean lDDT-Cα 0.250 over 1 of 2 chains; 1 failed: c (bad)",
        "  best 0.500 over 2 of 2 chains at step 10",
        "  first 0.125 over 1 of 2 chains at step 0",
        "run/report.html, run/report.json",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stage", "structures"), "--bucket"),
        (("--stage", "index", "--bucket", "0"), "--bucket"),
    ],
)
def test_pack_says_when_a_bucket_is_missing(arguments: tuple[str, ...], message: str) -> None:
    result = run("pack", "-c", DEMO, "--raw", "r", "--out", "s", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("size", [1, 2])
def test_following_a_training_is_not_for_several_processes(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = {"RANK": 0, "WORLD_SIZE": size, "LOCAL_RANK": 0, "MASTER_ADDR": "", "MASTER_PORT": 0}
    for name, value in launched.items():
        monkeypatch.setenv(name, str(value))
    options = ("-c", DEMO, "--shards", SHARDS, "--out", str(tmp_path / "e.json"))
    follow = ["--follow"] if size == 2 else []
    result = run("evaluate", str(tmp_path), *options, *follow)
    assert result.exit_code == 2
    refused = "2 processes"
    assert (refused in result.stderr) == (size == 2)


def test_a_checkpoint_is_no_folder_of_a_training_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text("{}")
    here = str(tmp_path)
    for words in (["train", "--out", here], ["evaluate", here, "--follow", "--out", f"{here}/e"]):
        result = run(*words, "-c", DEMO, "--shards", SHARDS, "--device", "cpu")
        assert result.exit_code == 2, result.output
        assert f"{here}: is a checkpoint" in result.stderr


@pytest.mark.parametrize("failed", [0, 5])
def test_an_evaluation_that_lacks_chains_says_so_and_is_done(
    failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [{"chain_key": f"c{n}", "split": "train", "reason": "bad. Fix"} for n in range(failed)]
    result = {
        "step": 20,
        "checkpoint": "step-00000020",
        "weights": "averaged",
        "mean": {"train": {"lddt_ca": 0.25, "tm_score": None}},
        "chains": [{"chain_key": "s", "split": "train", "lddt_ca": 0.25}],
        "skipped": [],
        "failed": lost,
    }
    monkeypatch.setattr("scalefold.evaluate.run.evaluate_weights", lambda *_, **__: result)
    out = tmp_path / "e.json"
    done = run("evaluate", str(tmp_path), "-c", DEMO, "--shards", SHARDS, "--out", str(out))
    assert done.exit_code == 0
    named = "; 5 failed: c0 (bad), c1 (bad), c2 (bad) and 2 more" if failed else ""
    assert done.stdout == f"step 20, train: lddt_ca 0.250 over 1 of {1 + failed} chains{named}\n"
    result |= {"step": 0, "checkpoint": "model_1.pt", "weights": "file"}
    done = run("evaluate", str(tmp_path), "-c", DEMO, "--shards", SHARDS, "--out", str(out))
    assert done.stdout.startswith("model_1.pt, train: lddt_ca 0.250 over 1 of ")
    assert ("failed (5)" in done.stderr and str(out) in done.stderr) == (failed > 0)


def test_doctor_says_what_the_model_runs_with() -> None:
    result = run("doctor", "--device", "cpu")
    assert result.exit_code == 0
    assert f"torch      {torch.__version__}" in result.output
    assert "the device is cpu" in result.output
    assert "not used" in result.output.partition("\ncaches ")[2], "whatever they hold"


def test_doctor_makes_the_first_step_of_a_configuration() -> None:
    assert run("doctor", "--device", "cpu", "--warm", "nope.yaml").exit_code != 0
    result = run("doctor", "--device", "cpu", "--warm", DEMO)
    assert result.exit_code == 0
    assert "first step" in result.output


def test_doctor_makes_no_step_on_a_cpu_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run("doctor", "--warm", DEMO)
    assert result.exit_code == 2
    assert "--device cpu" in result.stderr
    assert "first step" not in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["train", "-c", "nope.yaml", "--shards", "x", "--out", "y"],
        ["train", "-c", DEMO, "--shards", "nope", "--out", "y"],
        ["evaluate", "nope", "-c", DEMO, "--shards", "x", "--out", "y.json"],
        ["evaluate", DEMO, "-c", DEMO, "--shards", "nope", "--out", "y.json"],
        ["report", "nope"],
        ["mlperf-log", "nope", "--out", "y"],
        ["weights", "import", "nope", "--preset", "model_1", "--out", "y"],
        ["weights", "import", DEMO, "--preset", "nope", "--out", "y"],
        ["weights", "export", "nope", "--out", "y"],
        ["predict", "README.md", "--query-alone", "--weights", "nope", "--out", "y"],
        ["predict", "README.md", "--query-alone", "-w", DEMO, "-c", "nope", "--out", "y"],
        ["predict", "--shards", "nope", "--weights", DEMO, "--out", "y"],
        ["finetune", "nope", "--weights", DEMO, "--out", "y"],
        ["finetune", "demo", "--weights", "nope", "--out", "y"],
        ["config", "check", "-c", DEMO, "-s", "training.initial_weights=nope"],
        ["plan", "-c", "nope"],
        ["profile", "-c", "nope", "--out", "y"],
        ["bench", "step", "-c", DEMO, "--shards", "nope", "--out", "y.json"],
    ],
    ids=" ".join,
)
def test_a_wrong_path_is_told_before_torch_is_imported(words: list[str]) -> None:
    without = "import sys; sys.modules['torch'] = None; from scalefold.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", without, *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "nope" in done.stderr


def test_a_chain_that_may_share_an_alignment_is_not_called_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    chains = tmp_path / "chains.tsv"
    rows = ["5pti_A\ttrain\t", "2crb_A\ttrain\t", "9xyz_A\ttrain\t"]
    chains.write_text("\n".join(["chain_key\tsplit\tcluster_id", *rows]) + "\n")
    options = ("-c", DEMO, "-s", f"data.chains={chains}", "--out", str(tmp_path / "raw"))
    said = run("fetch", *options).stderr
    assert "set aside, 1:\n  9xyz_A" in said
    assert "of the same sequence, if there is one:\n  2crb_A" in said
