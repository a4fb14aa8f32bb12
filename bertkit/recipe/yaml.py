"""Read and write strict YAML: plain values, no repeated keys, and the line of each key for error messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from bertkit.errors import RecipeError

KeyPath = tuple[str, ...]
Lines = dict[KeyPath, int]

_MAX_CHARACTERS = 200_000
_MAX_DIGITS = 100
_MAX_DEPTH = 50  # levels of lists and mappings
_BREAKS = re.compile("[\x85\u2028\u2029]")
# The core schema of YAML 1.2, in which `no` and `on` are text and `1e-5` is a number; for PyYAML, it is the reverse.
# Tag -> (pattern, first characters); "\0" stands for an empty value.
_RESOLVERS = {
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", "~nN\0"),
    "tag:yaml.org,2002:int": (r"[-+]?[0-9]+", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    """Read decimal digits. PyYAML would read a number with a leading zero as octal."""
    if len(node.value) > _MAX_DIGITS:
        hint = f"at most {_MAX_DIGITS} are read; put text in quotes"
        raise RecipeError(f"a number of {len(node.value):,} digits", hint)
    return int(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # In any other style, these line breaks would be read back as spaces.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _BREAKS.search(text) else None)


_Dumper.add_representer(str, _represent_text)

for _tag, (_pattern, _characters) in _RESOLVERS.items():
    for _class in (_Loader, _Dumper):
        _first_characters = [character.replace("\0", "") for character in _characters]
        _class.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first_characters)


def read_yaml(
    text: str, file: object, kind: str = "recipe", example: str = "`bertkit recipes copy cola mine.yaml` writes one"
) -> tuple[dict[str, Any], Lines]:
    """Return a mapping and the line of each of its keys; error messages name the `kind` of file and an `example`.

    Raises:
        RecipeError: If the text is too long, has a syntax error, a repeated key, an anchor, an alias or a tag, or is
            not a mapping.
    """
    if len(text) > _MAX_CHARACTERS:
        raise RecipeError(f"a file of {len(text):,} characters", f"at most {_MAX_CHARACTERS:,} are read", file=file)
    try:
        values, lines = _parse_yaml(text, file)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, file) from None
    except yaml.YAMLError as error:
        raise RecipeError(f"not YAML: {str(error).splitlines()[0]}", file=file) from None
    if values is None:
        raise RecipeError(f"the {kind} is empty", example, file=file)
    if not isinstance(values, dict):
        raise RecipeError(f"a {kind} is a list of `key: value` lines", example, file=file)
    return values, lines


def read_value(text: str) -> Any:
    """Read one value as in a recipe: number, true/false, null, list, mapping or text.

    >>> read_value("1e-5"), read_value("no"), read_value("[a, 2]"), read_value("*")
    (1e-05, 'no', ['a', 2], '*')

    Raises:
        RecipeError: If the text has an anchor, an alias, a tag or a repeated key, or lists nest too deep.
    """
    try:
        value, _ = _parse_yaml(text, None)
    except yaml.YAMLError:
        return text
    is_comment = value is None and text.lstrip().startswith("#")
    # YAML reads `|` as an empty text and `#text` as a comment, but here they are text.
    return text if value == "" or is_comment else value


def write_yaml(values: dict[str, Any], file: Path | None = None, *, comment: str = "") -> str:
    """Return a mapping as YAML that `read_yaml` reads back, and also write it to `file` if given."""
    layout: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100, "default_flow_style": None}
    text: str = yaml.dump(values, Dumper=_Dumper, **layout)
    text = f"# {comment}\n{text}" if comment else text
    if file is not None:
        file.write_text(text, encoding="utf-8", newline="\n")
    return text


def _parse_yaml(text: str, file: object) -> tuple[Any, Lines]:
    """Return a YAML value and the line of each of its keys. All YAML from users is parsed here.

    Raises:
        RecipeError: If the text is valid YAML that bertkit rejects, such as an alias, or that Python cannot represent.
        YAMLError: If the syntax is wrong.
    """
    lines: Lines = {}
    _check_plain(text, file)
    loader = _Loader(text)
    node = loader.get_single_node()
    if node is None:
        return None, lines
    _find_lines(node, (), lines, file)
    return loader.construct_document(node), lines


def _check_plain(text: str, file: object) -> None:
    """Reject anchors, aliases, tags, lone surrogates and deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        # Count levels by events, because building the nodes of a deep file would exceed Python's recursion limit.
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise RecipeError("lists or mappings nest too deep", "flatten them", file=file)
        row = event.start_mark.line + 1 if file is not None and event.start_mark else None
        tag = getattr(event, "tag", None)
        if any("\ud800" <= character <= "\udfff" for character in getattr(event, "value", "")):
            message = "half a character (a lone surrogate), which is not text"
            raise RecipeError(message, "write the whole character", file=file, row=row)
        # A few nested aliases could expand to gigabytes (the billion laughs attack).
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise RecipeError("anchors and aliases are not supported", "repeat the value", file=file, row=row)
        if tag:
            raise RecipeError(f"the tag {tag} is not supported", "write a plain value", file=file, row=row)


def _find_lines(node: yaml.Node, path: KeyPath, lines: Lines, file: object) -> None:
    """Add the line of each key and list item below a node to `lines`, and reject a repeated key."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, str(index))] = item.start_mark.line + 1
            _find_lines(item, (*path, str(index)), lines, file)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        row = key.start_mark.line + 1
        key_path = (*path, str(key.value))
        if key_path in lines:
            message = f"the key {'.'.join(key_path)!r} occurs twice"
            raise RecipeError(message, f"it is in line {lines[key_path]} already", file=file, row=row)
        lines[key_path] = row
        _find_lines(value, key_path, lines, file)


def _syntax_error(error: yaml.MarkedYAMLError, file: object) -> RecipeError:
    mark = error.problem_mark or error.context_mark
    row = mark.line + 1 if mark else None
    if "\\t" in str(error.problem):
        return RecipeError("a tab where YAML needs spaces", "indent with spaces", file=file, row=row)
    return RecipeError(f"not YAML: {error.problem or error.context}", file=file, row=row)
