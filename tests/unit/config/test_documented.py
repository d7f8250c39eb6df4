"""config.yaml names every key with its default; the JSON schema agrees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from scalefold.config import json_schema, load_config, make_config
from scalefold.config.identity import packing_hash
from scalefold.config.search import SearchConfig

ROOT = Path(__file__).parents[3]
COMMENTED_KEY = re.compile(r"#(?=( {2})*[a-z_0-9]+:)")


def uncommented() -> dict[str, Any]:
    """Return config.yaml with every key that stands behind a `#`."""
    lines = (ROOT / "config.yaml").read_text("utf-8").splitlines()
    return yaml.safe_load("\n".join(COMMENTED_KEY.sub("", line, count=1) for line in lines))


def keys(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def test_config_yaml_names_every_key_and_its_default() -> None:
    complete = load_config([ROOT / "config.yaml"]).model_dump(mode="json")
    assert sorted(keys(uncommented())) == sorted(keys(complete))
    assert uncommented() == complete


def test_config_yaml_names_every_key_of_a_search() -> None:
    """Its section is null by default, so they stand below it with an indent of their own."""
    lines = re.findall(r"^#( {3}[a-z_]+:.*)", (ROOT / "config.yaml").read_text("utf-8"), re.M)
    assert yaml.safe_load("\n".join(lines)) == SearchConfig().model_dump(mode="json")


def test_demo_configuration() -> None:
    config = load_config([ROOT / "demo/config.yaml"])
    assert (config.preset, config.run_name) == ("tiny", "demo")
    assert (ROOT / config.data.chains).is_file()
    assert len(packing_hash(config)) == 12


@pytest.mark.parametrize("name", ["config.yaml", "demo/config.yaml"])
def test_schema_takes_the_configurations(name: str) -> None:
    schema = yaml.safe_load(json_schema())
    jsonschema.validate(yaml.safe_load((ROOT / name).read_text("utf-8")), schema)


def test_schema_refuses_what_the_typed_configuration_refuses() -> None:
    schema = yaml.safe_load(json_schema())
    tree = yaml.safe_load((ROOT / "demo/config.yaml").read_text("utf-8"))
    wrongs: list[dict[str, Any]] = [
        {"trainig": {}},
        {"preset": "tinny"},
        {"training": {"steps": 0}},
    ]
    for wrong in wrongs:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tree | wrong, schema)
        with pytest.raises(ValueError, match=r"trainig|tinny|steps"):
            make_config(tree | wrong)
