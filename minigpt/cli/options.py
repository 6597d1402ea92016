"""Options and arguments that several commands share."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from typer import Argument, Context, Option
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.exceptions import TyperException

from minigpt.errors import UserError, escape


class UnknownCommandError(TyperException):
    """A group has no command of this name."""

    exit_code = 2

    def __init__(self, name: str, ctx: Context, known: Iterable[str]) -> None:
        super().__init__(f"no command is named '{name}'")
        self.name, self.ctx, self.known = name, ctx, known


class _Group(TyperGroup):
    """A group whose error for an unknown command carries data instead of a sentence."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not (self.get_command(ctx, args[0]) or args[0].startswith("-") or ctx.resilient_parsing):
            raise UnknownCommandError(args[0], ctx, self.commands)
        return super().resolve_command(ctx, args)


GROUP: dict[str, Any] = {
    "cls": _Group,
    "no_args_is_help": True,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
}
"""Arguments of every `typer.Typer` group."""

# Hide the types of arguments and flags in help: "<list[str]>" and "<bool>" tell a user nothing.
_type_of_option = TyperOption.display_type_rich
TyperOption.display_type_rich = lambda self, ctx: None if self.is_flag else _type_of_option(self, ctx)  # type: ignore[method-assign]
TyperArgument.display_type_rich = lambda self, ctx: None  # type: ignore[method-assign]


def complete_run(incomplete: str) -> list[str]:
    """Return the names of runs that begin with `incomplete`, for shell completion."""
    from minigpt.storage.runs import all_runs

    return [name for name in ("last", *(run.name for run in all_runs())) if name.startswith(incomplete)]


TEXT = "Files, folders, globs, '-' (standard input), builtin:NAME or download:NAME."
ConfigOption = Annotated[str | None, Option("--config", "-c", help="Use a preset or a YAML file.", metavar="NAME")]
SetOption = Annotated[
    list[str] | None, Option("--set", "-s", help="Override a setting; repeatable.", metavar="KEY=VALUE")
]
MinutesOption = Annotated[
    float | None, Option(help="Choose settings for a run of this many minutes on this machine.", metavar="N")
]
RunArgument = Annotated[
    str,
    Argument(
        help="Name or folder of a run, folder of a checkpoint, or 'last'.", metavar="RUN", autocompletion=complete_run
    ),
]
CheckpointOption = Annotated[str | None, Option(help="best (the default), last or a step.", metavar="WHICH")]
OnUnknown = Literal["error", "skip", "replace"]
UnknownOption = Annotated[
    OnUnknown, Option(help="Characters outside the vocabulary: error, skip or replace.", metavar="WHAT")
]
EncodingOption = Annotated[str, Option(help="Encoding of the text files.", metavar="NAME")]
DeviceOption = Annotated[str, Option(help="Device to compute on: auto, cpu, cuda, cuda:N or mps.", metavar="NAME")]
JsonOption = Annotated[bool, Option("--json", help="Print the result as JSON.")]
ForceOption = Annotated[bool, Option("--force", help="Replace existing files.")]
SamplesOption = Annotated[int, Option("--num-samples", "-n", min=1, max=10_000, help="Number of samples.", metavar="N")]


def check_minutes(minutes: float | None, assignments: list[str] | None) -> None:
    """Raise UserError if `minutes` is not a duration, or not the only one."""
    if minutes is None:
        return
    if not 0 < minutes <= 1_000_000:
        raise UserError(f"--minutes must be more than 0 and at most 1,000,000, got {minutes:g}")
    if lengths := [setting for setting in assignments or [] if setting.startswith(("train.steps=", "train.epochs="))]:
        raise UserError(f"--minutes and --set {escape(lengths[0])} both give the duration; remove one of them")


def add_setting(assignments: list[str] | None, key: str, value: str | None, option: str) -> list[str]:
    """Add the value of an option to the values of --set. Raises UserError if both give it: one would silently win."""
    settings = assignments or []
    if value is not None and any(assignment.startswith(f"{key}=") for assignment in settings):
        raise UserError(f"{option} and --set {key} are the same setting; remove one of them")
    return settings if value is None else [*settings, f"{key}={value}"]


def checked_device(device: str) -> str:
    """Return the value of --device. Raises UserError if it is not a device."""
    from minigpt.config.resolve import parse_overrides, resolve

    return resolve(parse_overrides([f"runtime.device={device}"])).config.runtime.device
