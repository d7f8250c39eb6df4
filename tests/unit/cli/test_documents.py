"""Every command, file and link that the documents name exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from scalefold.cli import app
from scalefold.config import load_config

ROOT = Path(__file__).parents[3]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "demo/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
RULES = {
    name
    for path in (ROOT / "workflow/rules").glob("*.smk")
    for name in re.findall(r"^(?:rule|checkpoint) (\w+):", path.read_text(), re.MULTILINE)
}


def commands(program: str) -> list[tuple[str, list[str]]]:
    """Return (document, words) of every command in a bash block or a code span."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
        for line in [*lines, *spans]:
            if line.split()[:1] == [program]:
                found.append((path.name, shlex.split(line, comments=True)[1:]))
    return found


@pytest.mark.parametrize(("document", "words"), commands("scalefold"))
def test_scalefold_commands(document: str, words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"{document}: no command {' '.join(words)}"
        command = command.commands[rest.pop(0)]
    options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    for word in rest:
        if word.startswith("-"):
            assert word in options, f"{document}: {' '.join(words)}: no option {word}"


@pytest.mark.parametrize(("document", "words"), commands("snakemake"))
def test_snakemake_commands(document: str, words: list[str]) -> None:
    taking_rules = False
    for i, word in enumerate(words):
        if word.startswith("-"):
            taking_rules = word in ("-R", "--until")
        elif words[i - 1] == "--profile":
            assert (ROOT / word).exists(), f"{document}: no profile {word}"
        elif words[i - 1] == "--configfile":
            assert word == "my.yaml" or (ROOT / word).is_file(), f"{document}: no {word}"
        elif taking_rules and not word.startswith("<"):
            assert word in RULES, f"{document}: no rule {word}"


@pytest.mark.parametrize(("document", "words"), commands("make"))
def test_make_targets(document: str, words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        if "=" in word:
            assert re.search(rf"^{word.partition('=')[0]} \?=", makefile, re.MULTILINE), document
        else:
            assert re.search(rf"^{word}:", makefile, re.MULTILINE), f"{document}: no target {word}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links(path: Path) -> None:
    for target, _, anchor in re.findall(r"\]\(([^)#]*)(#([^)]+))?\)", path.read_text("utf-8")):
        if "://" not in target:
            page = path.parent / target if target else path
            assert page.exists(), f"{path.name}: no {target}"
            assert not anchor or anchor in anchors(page), f"{path.name}: no {target}#{anchor}"


def anchors(path: Path) -> set[str]:
    """Names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_example_with_mirrors_of_ones_own_is_a_whole_configuration(tmp_path: Path) -> None:
    text = (ROOT / "docs/data.md").read_text("utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "my.yaml").write_text(example)
    mirrors = load_config([tmp_path / "my.yaml"]).data.mirrors
    files = {path for _, path in re.findall(r'"(.*?)" +# (/\S+)', example)}
    values = {"hash": "pt", "entry": "5pti", "chain": "5pti_A"}
    assert files == {
        f"{mirrors.mmcif[0]}/{mirrors.mmcif_path.format(**values)}",
        f"{mirrors.alignments[0]}/{mirrors.alignment_path.format(name='uniref90_hits', **values)}",
        f"{mirrors.alignments[0]}/{mirrors.hhr_path.format(name='pdb70_hits', **values)}",
    }


def test_readme_names_every_rule_and_every_stage() -> None:
    text = (ROOT / "README.md").read_text()
    for rule in RULES - {"config", "all_structures"}:
        assert f"`{rule}`" in text, rule


def test_configuration_of_the_full_model_on_the_demo() -> None:
    config = load_config([ROOT / "demo/mlperf.yaml"])
    assert config.preset == "mlperf"
    assert config.features.crop_size == 256
    assert config.data == load_config([ROOT / "demo/config.yaml"]).data
