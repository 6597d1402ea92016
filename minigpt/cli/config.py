"""`minigpt config`."""

import typer

from minigpt.cli.options import PLAIN, ConfigOption, SetOption
from minigpt.cli.output import json_text, table, write

config_app = typer.Typer(**PLAIN, help="List presets, explain settings, print the schema.")


@config_app.command("list")
def config_list() -> None:
    """List the presets."""
    from minigpt.config.presets import presets

    table(("preset", "what it is"), list(presets().items()))


@config_app.command("show")
def config_show(config: ConfigOption = None, set_: SetOption = None) -> None:
    """Print every setting with its value and where that comes from."""
    from minigpt.config.presets import read_preset
    from minigpt.config.resolve import explain, parse_overrides, resolve

    layers = [read_preset(config)] if config is not None else []
    table(("setting", "value", "from"), explain(resolve(*layers, parse_overrides(set_ or []))))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of a configuration file, for an editor to complete and check it."""
    from minigpt.config.resolve import schema

    write(json_text(schema()))
