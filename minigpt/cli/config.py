"""`minigpt config`."""

import json
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer import Argument

from minigpt.cli.options import LIST, TEXT, Command, ConfigOption, EncodingOption, JsonOption, SetOption, only_list
from minigpt.cli.output import json_text, table, write

config_app = typer.Typer(**LIST)


@config_app.callback(invoke_without_command=True)
def config(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the presets, or show settings.

    Examples:
      minigpt config
      minigpt config settings
      minigpt config init my.txt > my.yaml
    """
    if not only_list(context):
        config_list(as_json)


@config_app.command("list")
def config_list(as_json: JsonOption = False) -> None:
    """List the presets."""
    from minigpt.config.presets import presets

    if as_json:
        write(json_text([{"name": name, "description": description} for name, description in presets().items()]))
        return
    table(("preset", "description"), list(presets().items()))


@config_app.command("show", cls=Command)
def config_show(
    config: ConfigOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print every setting, its value, and where the value comes from.

    Examples:
      minigpt config show -c tiny --set train.steps=500
    """
    from minigpt.config.presets import read_preset
    from minigpt.config.resolve import flatten, parse_overrides, resolve, show

    sources = read_preset(config) if config is not None else ()
    resolved = resolve(*sources, parse_overrides(set_ or []))
    rows = [(key, value, resolved.sources[key]) for key, value in flatten(resolved.config).items()]
    if as_json:
        write(json_text([dict(zip(("setting", "value", "from"), row, strict=True)) for row in rows]))
        return
    table(("setting", "value", "from"), [(key, show(value), source) for key, value, source in rows])


@config_app.command("settings")
def config_settings(as_json: JsonOption = False) -> None:
    """Describe every setting, with its type and default."""
    from minigpt.config.resolve import fields, show

    rows = [(key, field.description, type_name(field.annotation), field.default) for key, field in fields().items()]
    if as_json:
        names = ("setting", "description", "type", "default")
        write(json_text([dict(zip(names, row, strict=True)) for row in rows]))
        return
    cells = [(key, f"{description} [{kind}; {show(default)}]") for key, description, kind, default in rows]
    table(("setting", "description [type; default]"), cells)


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


@config_app.command("init")
def config_init(
    text: Annotated[list[str] | None, Argument(help=TEXT, metavar="[TEXT]...")] = None,
    encoding: EncodingOption = "utf-8",
) -> None:
    """Print a YAML file with the settings that fit TEXT, to edit and use with `train --config`.

    Examples:
      minigpt config init my.txt > my.yaml
      minigpt train my.txt --config my.yaml
    """
    from minigpt.config.resolve import fields, flatten
    from minigpt.training.fit import FITTED
    from minigpt.training.setup import prepare_run

    prepared = prepare_run(text or [], None, [] if encoding == "utf-8" else [f"data.encoding={encoding}"])
    lines = ["# Settings that fit this text. Other settings have their defaults: minigpt config settings"]
    section = ""
    for key, value in flatten(prepared.config).items():
        if prepared.origins[key] in (FITTED, "command line"):
            if section != (section := key.partition(".")[0]):
                lines.append(f"{section}:")
            lines += [f"  # {fields()[key].description}", f"  {key.partition('.')[2]}: {json.dumps(value)}"]
    write("\n".join(lines) + "\n")
