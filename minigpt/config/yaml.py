"""YAML as people mean it: plain values only, and none of the traps of YAML 1.1."""

import re
from typing import Any

import yaml

from minigpt.errors import UserError, escape, reason

_PLAIN = {  # what an unquoted word is, if not text
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|yes|Yes|YES|on|On|ON|false|False|FALSE|no|No|NO|off|Off|OFF",
    "int": r"[-+]?(0|[1-9][0-9_]*)",
    "float": r"[-+]?((0|[1-9][0-9_]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?",
}


LIMIT = 128 << 10
"""Bytes that settings in YAML can have at most."""


class _Loader(yaml.SafeLoader):
    """YAML without its traps: a repeated key is an error, 1e-3 is a number, and 010, 1:30 and dates are not.

    Tags and aliases are refused: no setting needs them, and a few lines of aliases stand for gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        refused = "aliases (*name)" if isinstance(event, yaml.AliasEvent) else None
        if getattr(event, "tag", None) is not None:
            refused = f"tags ({event.tag})"
        if refused:
            raise yaml.MarkedYAMLError(problem=f"{refused} are not read here", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} stands twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` or another reader takes for something else, such as 1e-3, and escapes line ends."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_text)

_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern in _PLAIN.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})$"), None)


def parse(text: str, origin: str) -> Any:
    """Return the plain values of a YAML text. Raises UserError, naming `origin`, when it is none."""
    if len(text.encode(errors="surrogatepass")) > LIMIT:
        raise UserError(f"{escape(origin)}: is longer than the {LIMIT:,} bytes that settings can have")
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader: it builds plain values only)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"{escape(origin)}{where}: not valid YAML: {escape(' '.join(problem.split()))}") from error
    except (ValueError, LookupError, AttributeError, RecursionError) as error:  # from "!!int x", "[[[[[[..."
        raise UserError(f"{escape(origin)}: not valid YAML: {reason(error)}") from error


def dump(values: Any) -> str:
    """Return plain values as YAML that `parse` reads back to the same."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
