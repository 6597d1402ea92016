"""A small subset of YAML: numbers, words, strings, lists and sections, without the surprises of YAML 1.1."""

import re
from typing import Any

import yaml

from minigpt.errors import ConfigError, escape, reason

LIMIT = 128 << 10
"""The maximum size of a configuration, in bytes."""
_TYPES = {  # types of unquoted words; all other words are strings
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?",
}


class _Loader(yaml.SafeLoader):
    """Read 1e-3 as a number, but 010, 1:30, 1_000, dates and yes as text. Reject duplicate keys, tags and aliases.

    Settings need no tags or aliases, and a few lines of nested aliases can expand to gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem="tags and aliases are not supported", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a key appears twice", problem_mark=node.start_mark)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Quote all strings except identifiers, so that "1e-3" remains a string."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isidentifier() else '"')


_Dumper.add_representer(str, _Dumper.represent_str)
_Loader.yaml_implicit_resolvers = {}
for _type, _pattern in _TYPES.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", re.compile(rf"(?:{_pattern})$"), None)


def parse(text: str, origin: str) -> Any:
    """Parse `text`. Raise a ConfigError that names `origin` if `text` is too long or not valid YAML."""
    if len(text.encode(errors="surrogatepass")) > LIMIT:
        raise ConfigError(f"{escape(origin)} is longer than {LIMIT:,} bytes")
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
    except (ValueError, LookupError, AttributeError, RecursionError) as error:  # deep nesting or very long numbers
        line, problem = "", reason(error)
    raise ConfigError(f"{escape(origin)}{line}: not valid YAML: {escape(problem)}")


def lines(text: str) -> dict[str, int]:
    """Return the line of each key of a mapping, and of each "key.key" of the mappings in it, in valid `text`."""

    def entries(node: Any) -> list[tuple[Any, Any]]:
        return node.value if isinstance(node, yaml.MappingNode) else []

    found = {}
    for key, value in entries(yaml.compose(text, _Loader)):
        found[key.value] = key.start_mark.line + 1
        found |= {f"{key.value}.{inner.value}": inner.start_mark.line + 1 for inner, _ in entries(value)}
    return found


def dump(values: Any) -> str:
    """Return YAML that `parse` reads as the same values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
