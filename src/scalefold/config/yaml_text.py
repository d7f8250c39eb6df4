"""Read YAML that a user wrote: what cannot be a configuration is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from scalefold.errors import InputError

_MAX_NODES: Final = 100_000
_MAX_TEXT: Final = 10_000
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, where YAML's reader would drop the first silently.

    A date is a text: no key of the configuration takes a date.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        start: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError):
            if not isinstance(node, yaml.ScalarNode):
                raise
            kind = node.tag.rpartition(":")[2].replace("int", "integer")
            line = node.start_mark.line + 1
            raise yaml.YAMLError(
                f"line {line}: {node.value[:40]!r} is not a valid {kind}"
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: a key is not text")
            line = key.start_mark.line + 1
            if key.value in lines:
                raise yaml.YAMLError(
                    f"key {key.value!r} appears on lines {lines[key.value]} and {line}: merge them"
                )
            lines[key.value] = line
        mapping = super().construct_mapping(node, deep)
        if odd := [key for key in mapping if not isinstance(key, str)]:
            raise yaml.YAMLError(f"key {odd[0]!r} is not text: put it in quotes, or correct it")
        return mapping


def read_yaml(text: str, file: Path | None = None) -> Any:
    """Return what a text says: texts, numbers, truth values, nulls, lists and mappings of them.

    Raises
    ------
    InputError
        Says in one line why it is not valid YAML, or more than a configuration can be, after the
        ``file`` that the text is from, and the place in it.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node)
        return loader.construct_document(node)
    except RecursionError:
        mark, said = None, "nested too deeply"
    except yaml.MarkedYAMLError as error:
        mark, said = error.problem_mark, _in_words(error)
    except Exception as error:  # tags on the wrong values raise errors of many types
        mark, said = None, str(error) or type(error).__name__
    where = f"{file}: " if file else ""
    said = f"not valid YAML: {' '.join(said.split())[:500]}"
    if mark and file:
        where = f"{file}:{mark.line + 1}:{mark.column + 1}: "
    elif mark:
        said += f" at line {mark.line + 1}, column {mark.column + 1}"
    raise InputError(f"{where}{said}")


def _in_words(error: yaml.MarkedYAMLError) -> str:
    """As "while parsing a flow sequence from line 2, expected ']'"."""
    context, start, mark = error.context, error.context_mark, error.problem_mark
    if context and start and mark and start.line != mark.line:
        context = f"{context} from line {start.line + 1}"
    return ", ".join(filter(None, (context, error.problem)))


def _check_size(root: yaml.Node) -> None:
    """Refuse a tree that is too large with its aliases written out, or odd characters in it."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, above: frozenset[int]) -> int:
        if id(node) in above:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: an alias holds itself")
        if id(node) not in sizes:
            sizes[id(node)] = 1 + sum(size(part, above | {id(node)}) for part in _parts(node))
        return sizes[id(node)]

    if size(root, frozenset()) > _MAX_NODES:
        raise yaml.YAMLError(f"more than {_MAX_NODES} values, with aliases written out")


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    where = f"line {node.start_mark.line + 1}"
    if len(node.value) > _MAX_TEXT:
        raise yaml.YAMLError(f"{where}: a text of {len(node.value)} characters")
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in node.value):
        raise yaml.YAMLError(f"{where}: a character that no name can have")
    return []
