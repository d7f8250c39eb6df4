"""Load a configuration: defaults <- preset <- YAML files, in this order, then validate."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib import resources
from pathlib import Path
from typing import Any, Final, get_args

import yaml
from pydantic import BaseModel, ValidationError

from scalefold.config.model import ModelConfig
from scalefold.config.schema import Config
from scalefold.config.yaml_text import read_yaml
from scalefold.errors import InputError

Tree = dict[str, Any]
_NO_DATA: Final = {"chains": "-", "mirrors": {"mmcif": ["-"], "alignments": ["-"]}}
"""Stands for the section data of what needs none: a model, a prediction."""
_MOST_FINDINGS: Final = 20
_LONGEST_VALUE: Final = 200


@dataclass(frozen=True)
class Source:
    """Where a configuration's settings come from, for errors.

    Attributes
    ----------
    layers : sequence of (str, Tree)
        What each is called and holds; later ones win.
    """

    layers: Sequence[tuple[str, Mapping[str, Any]]]

    def __str__(self) -> str:
        return ", ".join(name for name, _ in self.layers)

    def of(self, location: Sequence[int | str]) -> str:
        """Name of the layer that sets a key, the last if several do; all names if none does."""
        names = [name for name, tree in self.layers if _sets(tree, location)]
        return names[-1] if names else str(self)


def load_config(paths: Sequence[Path], overrides: Mapping[str, Any] | None = None) -> Config:
    """Read and validate a configuration.

    Parameters
    ----------
    paths : sequence of Path
        YAML files; later ones override earlier ones, key by key.
    overrides : mapping, optional
        Applied last; same nesting as the files.

    Raises
    ------
    InputError
        Naming the file, the key and the nearest valid name.
    """
    return make_config(*read_files(paths, overrides or {}))


def read_files(paths: Sequence[Path], overrides: Mapping[str, Any]) -> tuple[Tree, Source]:
    """Lay files and overrides over each other; also returns what errors call them."""
    return _laid([(str(path), _read_yaml(path)) for path in paths], overrides)


def _laid(layers: Sequence[tuple[str, Tree]], overrides: Mapping[str, Any]) -> tuple[Tree, Source]:
    layers = [*layers, *_each_override(overrides)]
    return reduce(merge, (tree for _, tree in layers), {}), Source(layers)


def _each_override(tree: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Tree]]:
    """Yield the overrides one by one, after what errors call them: ``override <key>=<value>``."""
    for name, value in tree.items():
        key = f"{section}{name}"
        if isinstance(value, Mapping) and value:
            for called, below in _each_override(value, f"{key}."):
                yield called, {name: below}
        else:
            shown = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"override {key}={shown}", {name: value}


def make_config(tree: Mapping[str, Any], source: str | Source = "configuration") -> Config:
    """Validate a nested mapping (see ``load_config``); ``source`` names it in errors."""
    layers = source if isinstance(source, Source) else Source([(source, {})])
    preset = tree.get("preset", Config.model_fields["preset"].default)
    try:
        if not isinstance(preset, str):
            raise InputError(
                f"preset: expected a name, one of {', '.join(preset_names())} (found {preset!r})"
            )
        defaults = preset_tree(preset)
    except InputError as error:
        raise InputError(f"{layers.of(['preset'])}: {error}") from None
    predict = tree.get("predict")
    if isinstance(predict, Mapping) and predict.get("weights"):
        defaults = merge(defaults, {"data": _NO_DATA})
    try:
        return Config.model_validate(merge(defaults, dict(tree)))
    except ValidationError as error:
        raise InputError(_explain(error, layers)) from None


def preset_names() -> list[str]:
    """Names that ``preset:`` takes."""
    return list(_presets())


def preset_descriptions() -> dict[str, str]:
    """What each preset is for, by name."""
    return {name: tree["about"] for name, tree in _presets().items()}


def preset_tree(name: str) -> Tree:
    """The settings of a preset, with those it extends."""
    presets = _presets()
    if name not in presets:
        raise InputError(f"preset: {name!r} is not known{_nearest(name, presets)}")
    own = dict(presets[name])
    own.pop("about")
    parent = own.pop("extends", None)
    return merge(preset_tree(parent), own) if parent else own


def preset_config(name: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """The settings of a preset, for what needs no data: a model, a prediction.

    Parameters
    ----------
    overrides : mapping, optional
        Laid over the preset, nested as in a configuration file.

    Raises
    ------
    InputError
        Naming the preset or the key.
    """
    base = (f"preset {name}", {"preset": name, "data": _NO_DATA})
    return make_config(*_laid([base], overrides or {}))


def preset_model(name: str, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """The model of a preset; as `preset_config`, but only the section ``model`` counts."""
    return preset_config(name, overrides).model


def config_to_yaml(config: Config) -> str:
    """The complete configuration as YAML; loading it gives the same configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def json_schema() -> str:
    """JSON schema of the configuration file, for editors."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["preset"]["enum"] = preset_names()
    return json.dumps(schema, indent=2) + "\n"


def merge(base: Tree, top: Tree) -> Tree:
    """Return ``base`` with ``top`` laid over it, mapping by mapping."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


@cache
def _presets() -> dict[str, Tree]:
    return yaml.safe_load(
        resources.files("scalefold.config").joinpath("presets.yaml").read_text("utf-8")
    )


def _read_yaml(path: Path) -> Tree:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such configuration file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder: name the configuration file in it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a configuration file: {error}") from None
    tree = read_yaml(text, path)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(f"{path}: expected keys at the top level, found {type(tree).__name__}")
    return tree


def _sets(tree: Any, location: Sequence[int | str]) -> bool:
    for name in location:
        if not isinstance(tree, Mapping) or name not in tree:
            return not isinstance(tree, Mapping)
        tree = tree[name]
    return True


def _explain(error: ValidationError, source: Source) -> str:
    findings: dict[str, list[str]] = {}
    for origin, finding in _findings(error, source):
        findings.setdefault(origin, []).append(finding)
    return "; ".join(f"{origin}: {'; '.join(_few(found))}" for origin, found in findings.items())


def _few(findings: Sequence[str]) -> list[str]:
    rest = len(findings) - _MOST_FINDINGS
    return [*findings[:_MOST_FINDINGS], *([f"and {rest} more"] if rest > 0 else [])]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _findings(error: ValidationError, source: Source) -> Iterator[tuple[str, str]]:
    """Yield what is wrong, after the name of the layer or layers where it is."""
    wrong: dict[str, list[str]] = {}
    for item in error.errors():
        location = item["loc"]
        key = ".".join(map(str, location)) or "configuration"
        if item["type"] == "extra_forbidden":
            yield source.of(location), f"unknown key {key!r}{_right_key(location)}"
        elif item["type"] == "missing":
            yield str(source), f"key {key!r} is missing"
        elif item["type"] == "value_error" and isinstance(item["input"], dict):
            # Keys that contradict each other: the message names them, with their values.
            yield str(source), str(item["ctx"]["error"])
        else:
            message = item["msg"].removeprefix("Value error, ")
            if item["type"] == "model_type":
                message = "Input should be a section of keys"
            hint = _HINTS.get(item["type"], _no_hint)(item["input"])
            found = f"{message} (found {_shown(item['input'])}){hint}"
            wrong.setdefault(_own_key(location), []).append(found)
    # Of a key that takes values of several kinds there is a message for each kind.
    for key, messages in wrong.items():
        yield source.of(key.split(".")), f"{key}: {', or: '.join(messages)}"


def _no_hint(value: Any) -> str:
    return ""


def _whole_number(text: str) -> str:
    """Return a hint for a number such as 1e3, which YAML takes for text."""
    try:
        number = float(text)
    except ValueError:
        return ""
    return f": write {int(number)}" if number.is_integer() else ""


def _list_of_one(value: Any) -> str:
    """Return a hint for a single text where a list belongs."""
    return f": write [{value}]" if isinstance(value, str) else ""


_HINTS: Final[Mapping[str, Callable[[Any], str]]] = {
    "int_parsing": _whole_number,
    "list_type": _list_of_one,
}
"""How to fix a value, by the kind of what is wrong with it."""


def _own_key(location: Sequence[int | str]) -> str:
    """The dotted key of a wrong value, without the names of the kinds that it could have had."""
    valid = {*_keys(Config)}
    names = list(map(str, location))
    for end in range(len(names), 0, -1):
        without_places = ".".join(name for name in names[:end] if not name.isdigit())
        if not names[end - 1].isdigit() and without_places in valid:
            return ".".join(names[:end])
    return ".".join(names)


def _right_key(location: Sequence[Any]) -> str:
    """Return a hint: keys of this name in other sections, else the nearest of its own section."""
    *parents, name = map(str, location)
    section: type[BaseModel] | None = Config
    for parent in parents:
        if section and parent in section.model_fields:  # others are places in a list
            section = _section(section.model_fields[parent].annotation)
    elsewhere = [key for key in _keys(Config) if key.rpartition(".")[2] == name]
    if elsewhere:
        return f", did you mean {' or '.join(map(repr, elsewhere))}?"
    return _nearest(name, section.model_fields if section else {}, parents)


def _keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a section and of those within it."""
    for name, field in section.model_fields.items():
        yield prefix + name
        below = _section(field.annotation)
        if below is not None:
            yield from _keys(below, f"{prefix}{name}.")


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a key holds, also one that may be null."""
    candidates = [annotation, *get_args(annotation)]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _nearest(name: str, valid: Iterable[str], parents: Sequence[str] = ()) -> str:
    close = difflib.get_close_matches(name, list(valid), n=1)
    if close:
        return f", did you mean {'.'.join([*parents, *close])!r}?"
    return f", valid names are {', '.join(sorted(valid))}"
