"""`minigpt config`."""

from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer import Option

from minigpt.cli.options import GROUP, ConfigOption, JsonOption, SetOption
from minigpt.cli.output import json_text, table, write

config_app = typer.Typer(**GROUP, help="Show presets and settings.")


@config_app.command("list")
def config_list(as_json: JsonOption = False) -> None:
    """List the presets."""
    from minigpt.config.presets import presets

    if as_json:
        write(json_text(presets()))
        return
    table(("preset", "description"), list(presets().items()))


@config_app.command("show")
def config_show(
    config: ConfigOption = None,
    set_: SetOption = None,
    as_yaml: Annotated[
        bool, Option("--yaml", help="Print a YAML file with every setting, to edit and use with --config.")
    ] = False,
) -> None:
    """Print the value of every setting and where it comes from.

    Examples:
      minigpt config show -c shakespeare
      minigpt config show -c tiny --set train.steps=500 --yaml > mine.yaml
    """
    from minigpt.config.presets import read_preset
    from minigpt.config.resolve import flatten, parse_overrides, resolve, show, to_yaml

    sources = read_preset(config) if config is not None else ()
    resolved = resolve(*sources, parse_overrides(set_ or []))
    if as_yaml:
        write(to_yaml(resolved.config))
    else:
        values = flatten(resolved.config).items()
        table(("setting", "value", "from"), [(key, show(value), resolved.sources[key]) for key, value in values])


@config_app.command("settings")
def config_settings(as_json: JsonOption = False) -> None:
    """Describe every setting, with its type and default."""
    from minigpt.config.resolve import fields, show

    if as_json:
        settings = {
            key: {"description": field.description, "type": type_name(field.annotation), "default": field.default}
            for key, field in fields().items()
        }
        write(json_text(settings))
        return

    rows = [
        (key, f"{field.description} [{type_name(field.annotation)}; {show(field.default)}]")
        for key, field in fields().items()
    ]
    table(("setting", "description [type; default]"), rows)


def type_name(annotation: Any) -> str:
    """Describe the type of a setting in words."""
    if annotation == tuple[str, ...]:
        return "text, or a list of texts"
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, get_args(annotation)))
    if get_origin(annotation) is Annotated:
        return type_name(get_args(annotation)[0])
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null"}
    return names.get(annotation) or " or ".join(map(type_name, get_args(annotation)))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of configuration files, for completion and validation in editors."""
    from minigpt.config.resolve import schema

    write(json_text(schema()))
