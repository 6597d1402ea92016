"""Options and arguments that several commands share."""

from typing import Annotated, Any, Literal

from typer import Argument, Option
from typer.core import TyperCommand

PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None, "add_completion": False}
"""Arguments of every `typer.Typer` group."""

TEXT = "Files, folders, globs, '-' (standard input), builtin:NAME or download:NAME."
ConfigOption = Annotated[
    str | None, Option("--config", "-c", help="Use a preset or a YAML file.", metavar="PRESET|FILE")
]
SetOption = Annotated[
    list[str] | None, Option("--set", "-s", help="Override a setting; repeatable.", metavar="KEY=VALUE")
]
RunArgument = Annotated[
    str, Argument(help="Name or folder of a run, folder of a checkpoint, or 'last'.", metavar="RUN")
]
CheckpointOption = Annotated[str | None, Option(help="Checkpoint to load. Default: best.", metavar="best|last|STEP")]
OnUnknown = Literal["error", "skip", "replace"]
UnknownOption = Annotated[OnUnknown, Option(help="How to handle characters outside the vocabulary.")]
EncodingOption = Annotated[str, Option(help="Encoding of the text files, as a Python codec name.", metavar="NAME")]
DeviceOption = Annotated[str, Option(help="Device to compute on.", metavar="auto|cpu|cuda|cuda:N|mps")]
JsonOption = Annotated[bool, Option("--json", help="Print the result as JSON.")]
RoundsOption = Annotated[int, Option(min=1, help="Measure each side this many times.", metavar="N")]
SamplesOption = Annotated[int, Option("--num-samples", "-n", min=1, max=10_000, help="Number of samples.", metavar="N")]


class SettingsInHelp(TyperCommand):
    """A command whose help lists every setting that --set accepts."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from minigpt.config.resolve import describe_settings

        with formatter.section("Settings for --set, with their defaults"):
            formatter.write_dl(describe_settings())


def checked_device(device: str) -> str:
    """Return the value of --device. Raises UserError if it is not a device."""
    from minigpt.config.resolve import parse_overrides, resolve

    return resolve(parse_overrides([f"runtime.device={device}"])).config.runtime.device
