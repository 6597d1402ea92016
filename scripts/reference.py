"""The pages docs/reference/commands.md and docs/reference/settings.md. scripts/make_docs writes them."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import typer
from typer.cli import get_docs_for_click

from minigpt.cli.app import app
from minigpt.cli.config import type_name
from minigpt.cli.options import RUN
from minigpt.config.presets import presets
from minigpt.config.resolve import show
from minigpt.config.schema import FAMILIES, NO_ATTENTION, RECURRENT, RunConfig


def commands() -> str:
    """Return the page of all commands, arguments and options."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("minigpt", [], resilient_parsing=True)
    page: str = get_docs_for_click(obj=command, ctx=context, name="minigpt", title="Command line")
    page = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n", "", page)  # typer cuts these descriptions; sections follow
    page = re.sub(
        r"\*\*Usage\*\*:\n\n```console\n.*\n```\n\n|(?m:^\* `-h, --help`: .*\n)", "", page
    )  # the arguments follow
    top, heading, rest = page.partition("\n## ")
    rest = rest.replace(RUN, "A run or checkpoint: see above.")
    page = f"{top}\n`RUN` is {RUN.replace('A', 'a', 1)}\n{heading}{rest}"
    return re.sub(r"^Examples:\n((?:  .*\n)+)", _as_block, page, flags=re.MULTILINE)


def _as_block(examples: re.Match[str]) -> str:
    return f"**Examples**:\n\n```text\n{textwrap.dedent(examples[1])}```\n"


def settings() -> str:
    """Return the page of all settings."""
    lines = [
        "# Settings",
        "",
        "Set a value in a YAML file (`--config my.yaml`) or on the command line (`--n-layer 6`).",
        "`minigpt config show` prints each value and what set it. For what overrides what, see",
        "[Choose settings](../guides/settings.md).",
    ]
    for name, section in RunConfig.model_fields.items():
        annotation: Any = section.annotation
        lines += [
            "",
            f"## {name}",
            "",
            annotation.__doc__,
            "",
            "| key | value | default | description |",
            "|---|---|---|---|",
        ]
        for key, field in annotation.model_fields.items():
            kind = type_name(field.annotation).replace("|", "\\|")
            lines.append(f"| `{name}.{key}` | {kind} | `{show(field.default)}` | {field.description} |")
    classic = ", ".join(f"`{key}: {show(value)}`" for key, value in FAMILIES["classic"].items())
    lines += ["", "## Model families", "", f"`classic` has other defaults: {classic}."]
    unused = ", ".join(f"`{key}`" for key in NO_ATTENTION)
    rates = ", ".join(f"`{family}` {rate}" for family, rate in RECURRENT.items())
    lines += ["", f"Recurrent families have biases, their own `optim.lr` ({rates}), and no {unused}."]
    lines += ["", "## Presets", "", "| preset | description |", "|---|---|"]
    lines += [f"| `{name}` | {description} |" for name, description in presets().items()]
    return "\n".join(lines) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON schema for configuration files."""
    tree = RunConfig.model_json_schema()
    preset = {"type": "string", "description": "Shipped preset to start from. The other keys override its values."}
    tree["properties"] = {"preset": preset, **tree["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **tree}
