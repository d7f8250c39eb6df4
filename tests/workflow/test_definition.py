"""The workflow as it is written: configuration, profile, lint."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.workflow import forked

from scalefold.config import load_stages
from scalefold.plan.run_summary import num_buckets, num_jobs
from scalefold.raw.chains import read_chains
from scalefold.shards.bucket_count import default_bucket_count
from scalefold.shards.buckets import bucket_of

ROOT = Path(__file__).parents[2]


def snakemake(*arguments: str, folder: Path) -> str:
    _, output = forked.snakemake(["--nocolor", *arguments], folder)
    return output


def test_lint(template_folder: Path) -> None:
    output = snakemake("--lint", "--configfile", "micro.yaml", folder=template_folder)
    assert "your workflow is in a good condition" in output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trainig": {"steps": 3}}, "unknown key 'trainig', did you mean 'training'?"),
        ({"training": {"step": 3}}, "unknown key 'training.step', did you mean 'training.steps'?"),
        ({"results": "micro.yaml/results"}, "micro.yaml is no folder. Choose another folder"),
        ({"data": {"chains": "no.tsv"}}, "data.chains: no.tsv: no such file"),
        ({"data": {"mirrors": {"mmcif": ["ftp://x"]}}}, "data.mirrors.mmcif: has scheme 'ftp'"),
    ],
)
def test_configuration_errors_are_one_message(
    template_folder: Path, tmp_path: Path, change: dict, message: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(change))
    arguments = ["-n", "--profile", "local", "--configfile", "micro.yaml", str(path)]
    output = snakemake(*arguments, folder=template_folder)
    assert message in output
    assert "Traceback" not in output


@pytest.mark.parametrize("profile", ["local", "slurm", "test", "workflow/profiles/local"])
def test_a_missing_configuration_file_is_one_line(template_folder: Path, profile: str) -> None:
    arguments = ["-n", "--profile", profile, "--configfile", "micro.yaml", "no-such-target"]
    output = snakemake(*arguments, folder=template_folder)
    _, message = output.splitlines()  # the first names the profile
    assert "no-such-target" in message


def test_broken_yaml_is_one_line_with_its_place(template_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("run_name: my\ndata: [a\n")
    arguments = ["-n", "--profile", "local", "--configfile", str(broken)]
    _, message = snakemake(*arguments, folder=template_folder).splitlines()
    assert f"{broken}:3:1: " in message


def test_a_list_without_a_chain_to_train_on(template_folder: Path, tmp_path: Path) -> None:
    chains = tmp_path / "chains.tsv"
    chains.write_text("chain_key\tsplit\tcluster_id\n5pti_A\tvalidation\t\n")
    change = tmp_path / "wrong.yaml"
    change.write_text(yaml.safe_dump({"data": {"chains": str(chains)}}))
    arguments = ["-n", "--profile", "local", "--configfile", "micro.yaml", str(change)]
    output = snakemake(*arguments, folder=template_folder)
    assert f"{chains}: no chain of split train" in output
    shards = snakemake(*arguments, "--until", "index", folder=template_folder)
    assert "This was a dry-run" in shards


def test_dry_run_says_that_a_mirror_is_not_there(template_folder: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    change = tmp_path / "wrong.yaml"
    change.write_text(yaml.safe_dump({"data": {"mirrors": {"mmcif": [absent.as_uri()]}}}))
    arguments = ["-n", "--profile", "local", "--configfile", "micro.yaml", str(change)]
    output = snakemake(*arguments, folder=template_folder)
    message = f"data.mirrors.mmcif: {absent.as_uri()} is not a folder"
    assert output.count(message) == 1
    assert "MissingInput" not in output


def test_dry_run_says_that_no_chain_has_a_kind_of_alignment(template_folder: Path) -> None:
    arguments = ["-n", "--profile", "local", "--configfile", "micro.yaml", "--config"]
    output = snakemake(*arguments, "data={alignments: [swiss_hits]}", folder=template_folder)
    assert "data.alignments" in output
    assert "/a3m/swiss_hits.a3m, for example; there is swissprot_hits.a3m" in output
    assert "MissingInput" not in output


def test_dry_run_says_that_weights_to_start_from_are_not_there(template_folder: Path) -> None:
    arguments = ["-n", "--profile", "local", "--configfile", "micro.yaml", "--config"]
    output = snakemake(*arguments, "training={initial_weights: no.pt}", folder=template_folder)
    assert output.count("training.initial_weights: no.pt: no such file") == 1
    assert "MissingInput" not in output
    data = ("training={initial_weights: no.pt}", "--until", "index")
    assert "This was a dry-run" in snakemake(*arguments, *data, folder=template_folder)
    there = snakemake(*arguments, "training={initial_weights: micro.yaml}", folder=template_folder)
    assert "This was a dry-run" in there


def test_several_nodes_need_an_image_that_is_a_file(template_folder: Path) -> None:
    arguments = ["-n", "--configfile", "micro.yaml", "--profile", "local", "--sdm", "apptainer"]
    arguments += ["--config", "container=docker://registry/scalefold:0.1.0"]
    arguments += ["--set-resources", "train:nodes=2"]
    output = snakemake(*arguments, folder=template_folder)
    assert "apptainer pull scalefold.sif docker://registry/scalefold:0.1.0" in output


def test_processes_that_cannot_share_a_sample_are_named_before_anything_starts(
    template_folder: Path,
) -> None:
    arguments = ["-n", "--profile", "slurm", "--configfile", "micro.yaml"]
    output = snakemake(*arguments, "--config", "parallel={dap: 3}", folder=template_folder)
    assert "parallel.dap is 3, but there are 8 processes on each node" in output
    assert "Job stats" not in output


def test_an_image_that_is_not_there_is_named_where_jobs_are_to_run_in_it(
    template_folder: Path,
) -> None:
    arguments = ["-n", "--configfile", "micro.yaml", "--profile", "local", "--config"]
    arguments += ["container=no.sif"]
    assert "This was a dry-run" in snakemake(*arguments, folder=template_folder)
    output = snakemake(*arguments, "--sdm", "apptainer", folder=template_folder)
    assert "container: no.sif: no such image file" in output
    assert "Traceback" not in output


def test_profile_local_runs_what_config_yaml_says(checkout: Path) -> None:
    assert (ROOT / "local").is_symlink()
    assert (ROOT / "local").readlink() == Path("workflow/profiles/local")
    # config.yaml lists its chains in a table that the user makes.
    hint = "--configfile demo/config.yaml"
    for profile in ([], ["--profile", "local"]):
        own = snakemake("-n", *profile, folder=checkout)
        assert "data/chains.tsv: no such file" in own
        assert hint in own
    named = snakemake("-n", "--profile", "local", "--configfile", "config.yaml", folder=checkout)
    assert "data/chains.tsv: no such file" in named
    assert hint not in named


def test_the_demo_and_profile_test_name_their_configuration(checkout: Path) -> None:
    only = ("-n", "config", "--forceall", "--profile")
    demo = (*only, "local", "--configfile", "demo/config.yaml")
    assert "results/demo/config.yaml" in snakemake(*demo, folder=checkout)
    assert "results/test/config.yaml" in snakemake(*only, "test", folder=checkout)


def test_dry_run_shows_the_threads_that_a_job_on_the_cluster_gets(template_folder: Path) -> None:
    arguments = ["-n", "--profile", "slurm", "--configfile", "micro.yaml", "--until", "train"]
    output = snakemake(*arguments, folder=template_folder)
    profile = yaml.safe_load((ROOT / "slurm/config.yaml").read_text())
    threads, resources = profile["set-threads"]["train"], profile["set-resources"]["train"]
    assert f"srun --nodes={resources['nodes']} " in output
    assert f" --cpus-per-task={threads} " in output
    assert f"OMP_NUM_THREADS={threads // resources['processes']} " in output


@pytest.mark.parametrize(("name", "trainings"), [("mlperf", 1), ("scratch", 3)])
def test_full_reproductions_dry_run(
    checkout: Path, tmp_path: Path, name: str, trainings: int
) -> None:
    entries = [f"{number:04d}" for number in range(3000)]
    chains = tmp_path / "chains.tsv"
    rows = [f"{entry}_A\t{'train' if entry < '2900' else 'validation'}\t" for entry in entries]
    chains.write_text("\n".join(["chain_key\tsplit\tcluster_id", *rows]) + "\n")
    own = tmp_path / "my.yaml"
    own.write_text(yaml.safe_dump({"data": {"chains": str(chains)}, "results": str(tmp_path)}))
    weights = tmp_path / "weights.yaml"  # the benchmark's checkpoint is not here
    weights.write_text(yaml.safe_dump({"training": {"initial_weights": str(own)}}))
    files = ["config.yaml", str(own), f"configs/{name}.yaml", str(weights)]
    arguments = ["-n", "--quiet", "all", "--profile", "slurm", "--configfile", *files]
    output = snakemake(*arguments, folder=checkout)
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE))
    count = default_bucket_count(len(entries))
    buckets = str(len({bucket_of(entry, count) for entry in entries}))
    for rule in ("fetch_structures", "fetch_alignments", "structures", "pack"):
        assert jobs[rule] == buckets, output
    assert (jobs["train"], jobs["report"]) == (str(trainings), str(trainings))


@pytest.mark.parametrize("mode", ["after", "async", "with nothing more"])
def test_config_check_counts_the_jobs_of_a_new_run(
    checkout: Path, tmp_path: Path, mode: str
) -> None:
    own = tmp_path / "my.yaml"
    (tmp_path / "my.fasta").write_text(">a\nMKV\n")
    settings: dict[str, Any] = {
        "results": str(tmp_path),
        "evaluation": {"mode": mode},
        "predict": {"fasta": str(tmp_path / "my.fasta"), "relax": True},
        "search": {"query_alone": True, "jobs": 3},
        "distillation": {"fasta": str(tmp_path / "my.fasta"), "jobs": 2},
        "stages": {"first": {}, "second": {"sampling": {"distilled_share": 0.75}}},
    }
    if mode == "with nothing more":
        settings = {"results": str(tmp_path)}
    own.write_text(yaml.safe_dump({**settings, "data": {"buckets": None}}))
    files = [checkout / "demo/config.yaml", own]
    output = snakemake("-n", "--configfile", *map(str, files), folder=checkout)
    stages = load_stages(files)
    chains = read_chains(checkout / "demo/chains.tsv")
    buckets = num_buckets(next(iter(stages.values())), chains)
    assert re.search(rf"^total +{num_jobs(stages, buckets)}$", output, re.MULTILINE), output


@pytest.mark.skipif(shutil.which("sbatch") is not None, reason="Slurm is here")
def test_the_profile_for_slurm_says_that_there_is_none(
    template_folder: Path, tmp_path: Path
) -> None:
    own = tmp_path / "my.yaml"
    own.write_text(yaml.safe_dump({"results": str(tmp_path / "results")}))
    arguments = ["--profile", "slurm", "--configfile", "micro.yaml", str(own)]
    output = snakemake(*arguments, folder=template_folder)
    assert "no Slurm" in output
    assert "Error in rule" not in output
    assert not list((tmp_path / "results").rglob("*.log"))


def test_every_rule_has_log_benchmark_environment_threads_and_resources() -> None:
    for path in sorted((ROOT / "workflow/rules").glob("*.smk")):
        for text in re.split(r"^(?:rule|checkpoint) ", path.read_text(), flags=re.MULTILINE)[1:]:
            if "touch(" in text and "shell:" not in text:
                continue  # runs nothing
            words = [
                "log:",
                "benchmark:",
                "conda:",
                "threads:",
                "resources:",
                "mem_mb=",
                "runtime=",
            ]
            for word in words:
                assert word in text, f"{path.name}, rule {text.split(':')[0]}: no {word}"
