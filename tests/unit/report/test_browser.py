"""The report in a real browser: chromium without a window, where there is one."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.unit.report.conftest import CHAINS

from scalefold.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium on this machine")

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--enable-logging=stderr",
    "--virtual-time-budget=10000",
)

PROBE = f"""<pre id="probe"></pre>
<script>{Path(__file__).with_name("probe.js").read_text("utf-8")}</script>
"""


def chromium(folder: Path, page: Path, *options: str) -> tuple[str, list[str]]:
    """Open a page; returns standard output, and what was written to the console."""
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options]
    done = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, errors="replace", check=True
    )
    return done.stdout, re.findall(r".*:CONSOLE.*", done.stderr)


def probed(folder: Path, report: Path, width: int) -> tuple[dict, list[str]]:
    page = folder / f"probe-{width}.html"
    page.write_text(report.read_text("utf-8").replace("</body>", f"{PROBE}</body>"), "utf-8")
    dom, console = chromium(folder, page, f"--window-size={width},900", "--dump-dom")
    found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.S)
    return json.loads(html.unescape(found[1])), console


@pytest.fixture
def report(make_run) -> Path:
    run = make_run(structures=True)
    write_report(run)
    return run / "report.html"


def test_everything_works_in_a_browser(report, tmp_path):
    found, console = probed(tmp_path, report, 1200)
    assert console == []
    assert found["cut"] == []
    assert found["first"]["drawn"] > 500
    assert found["first"]["colours"] > 10
    assert found["first"]["url"] != found["byLddt"]["url"] != found["other"]["url"]
    assert found["nothing"]["drawn"] == 0
    assert found["articles"] == ["1"]
    by_length = [key for key, _, _ in sorted(CHAINS, key=lambda chain: chain[2])]
    assert found["rising"] == by_length
    assert found["falling"] == by_length[::-1]
    assert found["filtered"] == ["102m_A"]
    assert found["unreachable"] == []
    assert all(link.startswith("data:text/csv") for link in found["csv"])
    tables = [unquote(link.partition(",")[2]).splitlines() for link in found["csv"]]
    (chains,) = [rows for rows in tables if rows[0].startswith("Chain,Split,")]
    assert sorted(row.split(",")[0] for row in chains[1:]) == sorted(key for key, _, _ in CHAINS)


def test_a_narrow_screen_does_not_scroll_sideways(report, tmp_path):
    found, console = probed(tmp_path, report, 400)
    assert console == []
    assert found["width"] <= 500  # the narrowest window of some versions
    assert found["scroll"] <= found["width"]


def test_it_prints(report, tmp_path):
    pdf = tmp_path / "report.pdf"
    _, console = chromium(tmp_path, report, f"--print-to-pdf={pdf}")
    assert console == []
    assert len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())) > 2
