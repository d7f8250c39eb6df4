"""What runs again after what has changed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.unit.cli.conftest import run

from scalefold.raw.raw_folder import mmcif_path

AFTER_INDEX = {"train": 1, "evaluate": 3, "report": 1}


@contextlib.contextmanager
def touched(path: Path) -> Iterator[None]:
    """Give a file a new time, for a while."""
    before = path.stat()
    os.utime(path, (time.time() + 2, time.time() + 2))
    try:
        yield
    finally:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextlib.contextmanager
def absent(path: Path) -> Iterator[None]:
    """Take a file away, for a while."""
    aside = path.with_name(path.name + ".aside")
    path.rename(aside)
    try:
        yield
    finally:
        aside.rename(path)


@contextlib.contextmanager
def rewritten(path: Path, text: str) -> Iterator[None]:
    """Give a file other content, for a while."""
    before, times = path.read_bytes(), path.stat()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_whole_run(finished) -> None:
    workflow, output = finished
    run = workflow.run
    assert "step 2/2" in output  # progress of training is shown
    _, end = output.split("(100%) done")
    assert "results/micro/report.html" in end
    assert {"report.html", "report.json"} <= {path.name for path in run.iterdir()}
    assert (workflow.training() / "step-00000002/averaged.pt").is_file()
    assert (workflow.training() / "metrics.jsonl").is_file()
    evaluations = sorted(workflow.evaluation().glob("*.json"))
    assert [json.loads(path.read_text())["step"] for path in evaluations] == [0, 1, 2]
    complete = yaml.safe_load((run / "config.yaml").read_text())
    assert complete["training"]["steps"] == 2
    assert complete["optimiser"]["beta2"] == 0.999
    for folder in ("logs", "benchmarks"):
        names = {path.stem for path in (run / folder).iterdir()}
        assert {"fetch_structures", "structures", "pack", "index", "train", "report"} <= names


def test_damaged_chain_is_set_aside_and_the_rest_goes_on(workflow) -> None:
    header, *rows = (workflow.run / "rejected.tsv").read_text().splitlines()
    assert header == "chain_key\tstage\treason"
    assert {row.split("\t")[0] for row in rows} == {"1mol_A"}
    assert "1mol.cif.gz" in rows[0]
    evaluation = json.loads((workflow.evaluation() / "step-00000002.json").read_text())
    scored = {chain["chain_key"] for chain in evaluation["chains"]}
    assert scored == {"5pti_A", "1a8o_A", "1lcd_A", "4zey_A", "1ay7_B"}


def test_second_run_does_nothing(workflow) -> None:
    assert "Nothing to be done" in workflow.succeed()


def test_report_of_snakemake(workflow) -> None:
    workflow.succeed("--report", "snakemake.html")
    page = (workflow.folder / "snakemake.html").read_text()
    assert "Chains that a stage set aside" in page


def test_a_mirror_that_is_gone_is_not_missed(workflow) -> None:
    with absent(workflow.folder / "mirror"):
        assert workflow.planned() == {}
        assert "data.mirrors.mmcif: mirror/wwpdb is not a folder" in workflow.succeed("--dry-run")
    assert workflow.planned() == {}


def test_touched_structure(workflow) -> None:
    path = mmcif_path(workflow.folder, "5pti").name
    (source,) = workflow.folder.glob(f"mirror/wwpdb/**/{path}")
    with touched(source):
        assert workflow.planned() == {
            "fetch_structures": 1,
            "structures": 1,
            "pack": 1,
            "index": 1,
            **AFTER_INDEX,
        }
    assert workflow.planned() == {}


def test_touched_alignment(workflow) -> None:
    source = workflow.folder / "mirror/openproteinset/pdb/5pti_A/a3m/swissprot_hits.a3m"
    with touched(source):
        assert workflow.planned() == {"fetch_alignments": 1, "pack": 1, "index": 1, **AFTER_INDEX}


def test_new_line_in_the_list_of_chains_concerns_its_bucket(workflow) -> None:
    path = workflow.folder / "chains.tsv"
    text = path.read_text().replace("2crb_A\ttemplate", "2crb_A\tvalidation")
    with rewritten(path, text):
        planned = workflow.planned()
    assert planned["fetch_alignments"] == planned["structures"] == 1


def test_a_list_of_chains_under_another_name_packs_nothing_again(workflow) -> None:
    (workflow.folder / "renamed.tsv").write_bytes((workflow.folder / "chains.tsv").read_bytes())
    planned = workflow.planned("--config", "data={chains: renamed.tsv}")
    assert planned == {"config": 1}  # the record of the configuration


@pytest.mark.parametrize("rule", ["structures", "pack", "index", "train", "evaluate", "report"])
def test_every_stage_can_be_rerun_alone(workflow, rule: str) -> None:
    planned = workflow.planned("--forcerun", rule)
    order = ["fetch_structures", "structures", "pack", "index", "train", "evaluate", "report"]
    assert set(planned) == set(order[order.index(rule) :])


def test_deleted_results_are_made_again(workflow) -> None:
    shards = workflow.run / "shards"
    with absent(next(shards.glob("msa-*.arrow"))):
        assert workflow.planned() == {"pack": 1, "index": 1, **AFTER_INDEX}
    with absent(workflow.evaluation() / "step-00000001.json"):
        assert workflow.planned() == {"evaluate": 1, "report": 1}
        with absent(next(workflow.evaluation().glob("evaluated-*.done"))):  # interrupted
            assert workflow.planned() == {"evaluate_all": 1, "report": 1}
    with absent(workflow.run / "report.html"):
        assert workflow.planned() == {"report": 1}


def test_changed_settings_concern_their_stages(workflow) -> None:
    def planned(**section: object) -> dict[str, int]:
        tree = yaml.safe_load(path.read_text())
        for name, values in section.items():
            tree[name] = {**tree.get(name, {}), **values} if isinstance(values, dict) else values
        with rewritten(path, yaml.safe_dump(tree)):
            return workflow.planned()

    path = workflow.folder / "micro.yaml"
    another_training = {"train": 1, "evaluate_all": 1, "report": 1}
    assert planned(optimiser={"clip_norm": 0.2}) == {"config": 1, **another_training}
    assert planned(evaluation={"seed": 5}) == {"config": 1, "evaluate_all": 1, "report": 1}
    assert planned(data={"download_threads": 3}) == {"config": 1}
    packed = planned(shards={"compression": "lz4"})
    assert packed.keys() == {"config", "structures", "pack", "index", *AFTER_INDEX}


def test_a_changed_list_says_before_that_training_starts_over(workflow, monkeypatch) -> None:
    table = workflow.folder / "chains.tsv"
    rows = table.read_text().splitlines(keepends=True)
    monkeypatch.chdir(workflow.folder)
    fewer = rows[:-2] + rows[-1:]
    for text, accepted, is_said in (
        (rows, "false", False),
        (fewer, "false", True),
        (fewer, "true", False),
    ):
        setting = f"training={{accept_new_data: {accepted}}}"
        with rewritten(table, "".join(text)):
            planned = workflow.succeed("--dry-run", "--config", setting)
            checked = run("config", "check", "-c", "micro.yaml", "-s", setting)
        assert checked.exit_code == 0
        for said in (planned, checked.stderr):
            assert ("set training.accept_new_data: true" in said) is is_said


def test_report_is_made_again_for_real(workflow) -> None:
    def numbers() -> dict:
        content = json.loads((workflow.run / "report.json").read_text())
        del content["timings"]  # the first report's own is not in it
        return content

    before = numbers()
    (workflow.run / "report.html").unlink()
    output = workflow.succeed()
    assert re.findall(r"^(?:local)?rule (\w+):", output, re.MULTILINE) == ["report", "all"]
    assert numbers() == before


def test_another_seed_is_another_training_and_the_way_back_is_free(workflow) -> None:
    output = workflow.succeed("--config", "seed=1", "--until", "train")
    assert "report.html" not in output
    first, second = (workflow.training(seed=seed) / "step-00000002/weights.pt" for seed in (0, 1))
    assert first.read_bytes() != second.read_bytes()
    assert workflow.planned() == {}


def test_checkpoints_of_other_steps_keep_a_training(workflow) -> None:
    def settings(**training: int) -> list[str]:
        return ["--config", "seed=3", f"training={json.dumps({**training, 'max_recycling': 0})}"]

    training = workflow.training(seed=3)
    evaluations = workflow.run / "evaluation" / training.name
    workflow.succeed(*settings(steps=4, checkpoint_every=2), "--until", "train")

    complete = settings(steps=4, checkpoint_every=3)
    said = "has passed step 4 and has no checkpoint of 3, wanted now"
    assert said in workflow.succeed("--dry-run", *complete)
    workflow.succeed(*complete)
    assert [path.stem for path in sorted(evaluations.glob("*.json"))] == [
        "step-00000000",
        "step-00000004",
    ]
    assert "Nothing to be done" in workflow.succeed(*complete)

    workflow.succeed(*settings(steps=6, checkpoint_every=3))
    steps = [int(path.stem.removeprefix("step-")) for path in sorted(training.glob("*.ready"))]
    assert steps == [0, 2, 4, 6]
    report = json.loads((workflow.run / "report.json").read_text())
    assert [row["step"] for row in report["evaluations"]] == [0, 4, 6]
    assert not (training / "replaced").exists()

    fewer = settings(steps=5, checkpoint_every=3)
    output = workflow.succeed("--dry-run", *fewer)
    assert "has no checkpoint of step 5" in output
    assert "training.steps to one of 2, 4, 6" in output
    workflow.succeed(*fewer, "--until", "train")
    assert (training / "replaced/1/step-00000006").is_dir()
    said = (training / "training.log").read_text().partition("training starts over")[2]
    assert "step 5/5" in said
    workflow.succeed()  # the report is again that of the other tests


def test_shards_are_verified_whenever_it_is_asked_for(workflow) -> None:
    workflow.succeed("verify")
    assert "sound" in (workflow.run / "verified.txt").read_text()
    shard = next((workflow.run / "shards").glob("msa-*.arrow"))
    before, content = shard.stat(), bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1  # as it decays on a disk: no new date
    sound = shard.read_bytes()
    try:
        shard.write_bytes(content)
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
        code, output = workflow.outcome("verify")
        assert code != 0, output
        assert shard.name in output
        assert not (workflow.run / "verified.txt").exists()
    finally:
        shard.write_bytes(sound)
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_mlperf_log(workflow) -> None:
    path = workflow.run / "mlperf.log"
    workflow.succeed(str(path.relative_to(workflow.folder)))
    lines = path.read_text().splitlines()
    assert all(line.startswith(":::MLLOG ") for line in lines)
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    times = [event["time_ms"] for event in events]
    assert times == sorted(times)
    values = {event["key"]: event["value"] for event in events}
    assert (values["global_batch_size"], values["train_samples"]) == (1, 4)
    assert values["eval_samples"] == 4  # of the first split, which is train here
    keys = [event["key"] for event in events]
    assert keys[0] == "init_start"
    assert (keys[-1], events[-1]["metadata"]["status"]) == ("run_stop", "aborted")  # no target
    evaluated = [e["metadata"]["epoch_num"] for e in events if e["key"] == "eval_accuracy"]
    assert sorted(evaluated) == [0, 1, 2]  # after training, in any order
    assert keys.count("epoch_start") == keys.count("epoch_stop") == 2


def begun(workflow, *arguments: str, log: Path) -> subprocess.Popen[str]:
    """A workflow whose training, of 400 steps, has made its first one, as the log says."""
    process = workflow.start(*arguments, output=subprocess.PIPE)
    while "step 1/400" not in (log.read_text() if log.exists() else ""):
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    return process


def test_interrupted_training_goes_on(workflow) -> None:
    options = ["seed=2", "training={steps: 400, checkpoint_every: 400, max_recycling: 0}"]
    training = workflow.training(seed=2)
    log = workflow.run / f"logs/train/{training.name}.log"
    first = begun(workflow, "--config", *options, "--until", "train", log=log)
    os.killpg(first.pid, signal.SIGINT)  # Ctrl-C
    of_jobs, _ = first.communicate()
    assert first.returncode != 0
    assert "stopped by SIGINT; the same command continues" in of_jobs
    last = sorted(training.glob("step-*.ready"))[-1].stem
    step = int(last.removeprefix("step-"))
    assert 1 <= step < 400
    assert not (training / "training.done").exists()

    options[1] = f"training={{steps: {step + 1}, checkpoint_every: 400, max_recycling: 0}}"
    workflow.succeed("--config", *options, "--until", "train")
    assert f"continuing from {(training / last).relative_to(workflow.folder)}" in log.read_text()
    steps = {path.stem for path in training.glob("step-*.ready")}
    assert steps == {"step-00000000", last, f"step-{step + 1:08d}"}


def test_a_closed_terminal_ends_the_training_in_order_and_its_log_says_so(
    workflow, without_nohup: None
) -> None:
    options = ["seed=4", "training={steps: 400, checkpoint_every: 400, max_recycling: 0}"]
    training = workflow.training(seed=4)
    log = training / "training.log"
    process = begun(workflow, "--config", *options, "--until", "train", log=log)
    os.killpg(process.pid, signal.SIGHUP)
    process.communicate()  # until the training, which has the pipe, too, has ended
    assert "stopped by SIGHUP; the same command continues" in log.read_text()
    assert sorted(training.glob("step-*.ready"))[-1].stem != "step-00000000"
    workflow.succeed("--unlock")  # Snakemake itself was killed
