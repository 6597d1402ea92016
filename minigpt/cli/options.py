"""The options and arguments that commands share, and how the settings are shown in --help."""

from typing import Annotated, Any

from typer import Argument, Option
from typer.core import TyperCommand

from minigpt.errors import UserError

PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None, "add_completion": False}
"""How every group of commands is set up."""

TEXT = "Files, folders, globs, '-', builtin:NAME or download:NAME."
ConfigOption = Annotated[
    str | None, Option("--config", "-c", help="A preset's name or a YAML file.", metavar="FILE|PRESET")
]
SetOption = Annotated[
    list[str] | None, Option("--set", "-s", help="Override one setting; repeatable.", metavar="KEY=VALUE")
]
RunArgument = Annotated[str, Argument(help="A run's name or folder, a checkpoint folder, or 'last'.", metavar="RUN")]
CheckpointOption = Annotated[str | None, Option(help="best (the default), last or a step.", metavar="best|last|STEP")]
UnknownOption = Annotated[
    str, Option(help="What a character that the model does not know does.", metavar="error|skip|replace")
]
EncodingOption = Annotated[str, Option(help="Encoding of the files.", metavar="NAME")]
DeviceOption = Annotated[str, Option(help="Where to compute.", metavar="auto|cpu|cuda|cuda:N|mps")]
JsonOption = Annotated[bool, Option("--json", help="Print one JSON document.")]
RoundsOption = Annotated[int, Option(min=1, help="How often each side is measured, in turn.", metavar="N")]


class SettingsInHelp(TyperCommand):
    """A command whose --help ends with every setting that --set accepts."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from minigpt.config.resolve import describe_settings

        with formatter.section("Settings for --set, with their defaults"):
            formatter.write_dl(describe_settings())


def checked_unknown(choice: str) -> Any:
    """Return what --unknown was given. Raises UserError where that is no choice."""
    if choice not in ("error", "skip", "replace"):
        raise UserError(f"--unknown {choice}: expected error, skip or replace")
    return choice


def checked_device(device: str) -> str:
    """Return what --device was given. Raises UserError where that names no kind of device."""
    from minigpt.config.resolve import parse_overrides, resolve

    return resolve(parse_overrides([f"runtime.device={device}"])).config.runtime.device
