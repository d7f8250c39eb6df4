"""Recipes, environments and the release as they are written: what can be told without building."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.containers.conftest import Workshop

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "containers/Containerfile").read_text("utf-8")
DEFINITION = (ROOT / "containers/scalefold.def").read_text("utf-8")
RELEASE = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
PINS = runpy.run_path(str(ROOT / "envs/pins.py"))
ENVIRONMENTS = ["data", "scalefold"]
TOOLS = {"hhsuite", "hmmer", "kalign3", "mmseqs2"}


def instructions(name: str) -> list[str]:
    """Arguments of all instructions of a kind in the Containerfile."""
    text = CONTAINERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name}\s+(.*)$", text, flags=re.MULTILINE)


def build_context() -> set[str]:
    """What the Containerfile copies from the repository."""
    lines = [line for line in instructions("COPY") if "--from=" not in line]
    return {source for line in lines for source in line.split()[:-1]}


def environment(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / f"envs/{name}.yaml").read_text("utf-8"))


# --- the image ----------------------------------------------------------------------------------


def test_base_is_pinned_by_digest_and_every_stage_starts_from_it() -> None:
    base = instructions("ARG")[0]
    assert re.fullmatch(
        r"BASE=docker\.io/nvidia/cuda:[\w.-]+-base-ubuntu24\.04@sha256:[0-9a-f]{64}", base
    )
    sources = [line.split()[0] for line in instructions("FROM")]
    stages = [line.split()[2] for line in instructions("FROM") if " AS " in line]
    assert set(sources) <= {"${BASE}", *stages}
    assert sources[-1] == "${BASE}"


def test_base_has_the_cuda_that_torch_is_built_with() -> None:
    (version,) = re.findall(r"nvidia/cuda:(\d+\.\d+)\.", CONTAINERFILE)
    (toolkit,) = re.findall(r"^cuda-toolkit==(\d+\.\d+)\.", constraints(), flags=re.MULTILINE)
    assert version == toolkit


def test_image_ends_as_an_unprivileged_user() -> None:
    assert instructions("USER") == ["10001"]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "containers/Containerfile"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_build_context_holds_what_is_copied_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in lines
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert build_context() == allowed
    assert all((ROOT / path).exists() for path in allowed)


def test_definition_and_containerfile_start_from_one_base() -> None:
    header = dict(re.findall(r"^(Bootstrap|From): \{\{ (\w+) \}\}$", DEFINITION, re.MULTILINE))
    assert header == {"Bootstrap": "BOOTSTRAP", "From": "BASE"}
    # Apptainer takes a tag or a digest, not both.
    base = re.sub(r":[\w.-]+@", "@", instructions("ARG")[0])
    assert f"    {base}\n" in DEFINITION


def test_definition_copies_what_the_containerfile_copies() -> None:
    files = DEFINITION.partition("%files\n")[2].partition("\n\n")[0]
    copied = {line.split()[0] for line in files.splitlines()}
    assert copied == build_context()


@pytest.mark.parametrize("script", sorted(ROOT.glob("containers/*.sh")), ids=lambda path: path.name)
def test_scripts_can_be_run(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True)


def test_check_says_what_is_missing(tmp_path: Path) -> None:
    for name in ("realpath", "dirname"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = subprocess.run(
        ["/bin/bash", ROOT / "containers/check.sh", "scalefold.sif"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no nvidia-smi: this machine has no NVIDIA driver" in done.stderr


# --- the release --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ci", "release"])
def test_actions_are_pinned_by_commit(name: str) -> None:
    jobs = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text("utf-8"))["jobs"]
    used = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action) for action in used)


def test_release_tags_only_what_has_run() -> None:
    script = "\n".join(step.get("run", "") for step in RELEASE["jobs"]["image"]["steps"])
    order = ["imagetools inspect", "push-by-digest=true", "smoke_test.sh", "imagetools create"]
    places = [script.index(words) for words in order]
    assert places == sorted(places)
    given = set(re.findall(r'--build-arg "(\w+)=', script))
    declared = {name.partition("=")[0] for line in instructions("ARG") for name in line.split()}
    assert given == declared - {"BASE"}


# --- conda environments -------------------------------------------------------------------------


def constraints() -> str:
    return (ROOT / "envs/constraints.txt").read_text("utf-8")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_pins_are_those_of_the_project(name: str) -> None:
    path = ROOT / f"envs/{name}.yaml"
    assert path.read_text("utf-8") == PINS["with_pins"](path), "run: python envs/pins.py"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_package_of_an_environment_is_pinned(name: str) -> None:
    tree = environment(name)
    assert tree["channels"] == ["conda-forge", "bioconda", "nodefaults"]
    *packages, by_pip = tree["dependencies"]
    versions = dict(package.split("=", 1) for package in packages)
    assert versions.keys() >= {"python", "pip", *TOOLS}
    assert all(re.match(r"\d", version) for version in versions.values())
    assert list(by_pip) == ["pip"]
    pins = set(constraints().splitlines())
    assert set(by_pip["pip"]) <= pins


def test_the_environments_hold_what_their_stages_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    direct = {re.match(r"[\w.-]+", line)[0].lower() for line in project["dependencies"]}
    names = {
        name: {
            pin.partition("==")[0].lower() for pin in environment(name)["dependencies"][-1]["pip"]
        }
        for name in ENVIRONMENTS
    }
    direct.remove(PINS["OWN"])
    assert names["scalefold"] >= direct | {"snakemake", "triton", "nvidia-nccl-cu13"}
    assert names["data"] >= direct - PINS["NOT_FOR_DATA"]
    assert not names["data"] & {"torch", "triton", "snakemake"}


def test_data_stages_import_nothing_that_their_environment_lacks() -> None:
    program = f"""
import importlib, pkgutil, sys
for name in {sorted(PINS["NOT_FOR_DATA"])} + ["triton", "snakemake"]:
    sys.modules[name] = None
import scalefold.cli.application
for package in ("raw", "search", "shards"):
    try:
        package = importlib.import_module("scalefold." + package)
    except ModuleNotFoundError as error:
        if error.name != "scalefold.search":
            raise
        continue
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_post_deploy_refuses_another_folder(name: str, tmp_path: Path) -> None:
    script = ROOT / f"envs/{name}.post-deploy.sh"
    done = subprocess.run(
        ["bash", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "run Snakemake in the root of ScaleFold's repository" in done.stderr


def test_rules_name_environments_that_exist() -> None:
    named = set()
    for path in (ROOT / "workflow/rules").glob("*.smk"):
        named |= set(re.findall(r"envs/([\w-]+\.yaml)", path.read_text("utf-8")))
    existing = {path.name for path in (ROOT / "envs").glob("*.yaml")}
    assert named == existing


# --- the tests themselves -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("Err:1 http://deb.debian.org Temporary failure resolving", pytest.skip.Exception),
        ("E: mount: permission denied", RuntimeError),
    ],
)
def test_only_a_network_out_of_reach_skips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, outcome: type[BaseException]
) -> None:
    tool = tmp_path / "mmdebstrap"
    tool.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(outcome, match=said):
        Workshop(tmp_path).debian("bookworm", tmp_path / "root")
