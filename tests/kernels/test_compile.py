"""Every configuration that the ops list compiles for A100 and H100/H200, without spilling."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalefold_kernels.compilation import Resources, all_cases, complaint

CASES = list(all_cases())


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Resources | str]]:
    """All results, from one process outside the interpreter."""
    out: Path = tmp_path_factory.mktemp("compiled") / "resources.json"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    subprocess.run(
        [sys.executable, "-m", "scalefold_kernels.compilation", "--json", out],
        env=environment,
        check=False,
        capture_output=True,
    )
    return {
        key: {a: r if isinstance(r, str) else Resources(**r) for a, r in by_arch.items()}
        for key, by_arch in json.loads(out.read_text()).items()
    }


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", CASES)
def test_compiles_without_spills(case: str, compiled: dict) -> None:
    wrong = {arch: complaint(result, arch) for arch, result in compiled[case].items()}
    assert not any(wrong.values()), wrong
    assert wrong
