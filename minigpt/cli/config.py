"""`minigpt config`."""

import typer

from minigpt.cli.options import PLAIN, ConfigOption, SetOption
from minigpt.cli.output import json_text, table, write

config_app = typer.Typer(**PLAIN, help="List presets and explain settings.")


@config_app.command("list")
def config_list() -> None:
    """List the presets."""
    from minigpt.config.presets import presets

    table(("preset", "description"), list(presets().items()))


@config_app.command("show")
def config_show(config: ConfigOption = None, set_: SetOption = None) -> None:
    """Print the value of every setting and its source."""
    from minigpt.config.presets import read_preset
    from minigpt.config.resolve import explain, parse_overrides, resolve

    sources = [read_preset(config)] if config is not None else []
    table(("setting", "value", "source"), explain(resolve(*sources, parse_overrides(set_ or []))))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of configuration files, for completion and validation in editors."""
    from minigpt.config.resolve import schema

    write(json_text(schema()))
