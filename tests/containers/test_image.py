"""The image runs: as any user, with all tools, from raw files to a report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BYTES_OF_A_SMALL_IMAGE = 3_000_000_000
"""2.5 GB with the CPU build of torch, half of it torch and pyarrow."""

pytestmark = [pytest.mark.timeout(3600)]  # the first test of a run builds the image
Run = Callable[..., str]


def test_smoke_test_passes(inside: Run) -> None:
    said = inside("bash", "/source/containers/smoke_test.sh", "/source")
    assert "the workflow ran from raw files to the report" in said


def test_smoke_test_on_a_cpu_fails_where_a_gpu_is_wanted(inside: Run) -> None:
    with pytest.raises(RuntimeError, match="not on a GPU"):
        inside("bash", "/source/containers/smoke_test.sh", "/source", "gpu")


def test_the_code_is_that_of_this_checkout(inside: Run) -> None:
    package = inside("python", "-c", "import scalefold; print(scalefold.__path__[0])")
    compare = f"diff -rq --exclude __pycache__ --exclude commit.txt /source/src/scalefold {package}"
    assert inside("sh", "-c", f"{compare} || true") == ""


def test_the_user_is_not_root_and_cannot_change_the_installation(inside: Run) -> None:
    assert inside("id", "-u") == "10001"
    assert inside("sh", "-c", "test -w /opt/scalefold/bin || echo protected") == "protected"


def test_any_user_can_run_it(inside: Run) -> None:
    said = inside("sh", "-c", "scalefold --help && touch ~/x && rm ~/x && id -u", user="4242:4242")
    assert "fetch" in said
    assert said.endswith("4242")


def test_versions_are_those_of_the_constraints(inside: Run) -> None:
    lines = (ROOT / "envs/constraints.txt").read_text("utf-8").splitlines()
    pins = {normalised(line) for line in lines if re.match(r"[\w.-]+==", line)}
    listed = json.loads(inside("python", "-m", "pip", "list", "--format", "json"))
    installed = {
        normalised(f"{package['name']}=={package['version'].partition('+')[0]}")
        for package in listed
        if package["name"] not in ("pip", "scalefold", "scalefold-kernels")
    }
    assert len(installed) > 50
    assert installed - pins == set()


def test_tools_of_the_data_stages(inside: Run) -> None:
    for command, version in {
        "hhblits -h | head -n 1": r"HHblits 3\.3\.",
        "hmmsearch -h | sed -n 2p": r"HMMER 3\.[34]",
        "mmseqs version": r"^1[4-9]",
        "kalign --version": r"kalign 3\.",
    }.items():
        assert re.search(version, inside("sh", "-c", command)), command


def test_nothing_of_the_build_machine_is_inside(untouched: Run, workshop, image: str) -> None:
    paths = "/etc/pip.conf /root/.cache /root/.config /run/secrets"
    assert untouched("sh", "-c", f"ls -d {paths} 2> /dev/null || true") == ""
    assert untouched("sh", "-c", "find /run/wheels /source /tmp /work -type f || true") == ""
    assert str(workshop.cache) not in workshop.buildah("inspect", "--type", "image", image)


def test_labels(workshop, image: str) -> None:
    inspected = json.loads(workshop.buildah("inspect", "--type", "image", image))
    labels = inspected["OCIv1"]["config"]["Labels"]
    prefix = "org.opencontainers.image."
    assert labels[f"{prefix}title"] == "ScaleFold"
    assert labels[f"{prefix}version"] == "1.2.3"
    assert labels[f"{prefix}licenses"] == "Apache-2.0"
    assert labels[f"{prefix}base.name"] == "localhost/scalefold-base"
    assert {"description", "revision", "created", "source"} <= {
        name.removeprefix(prefix) for name in labels
    }


def test_size(workshop, image: str) -> None:
    listed = json.loads(workshop.buildah("images", "--json", image))
    number, unit = listed[0]["size"].split()
    size = float(number) * {"MB": 1e6, "GB": 1e9}[unit]
    print(f"image: {size / 1e9:.2f} GB")
    assert size < BYTES_OF_A_SMALL_IMAGE


def normalised(pin: str) -> str:
    name, _, version = pin.strip().partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"
