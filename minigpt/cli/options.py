"""Options and arguments that several commands share."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Context, Option
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException

from minigpt.errors import UserError, escape

if TYPE_CHECKING:
    from minigpt.config.schema import RuntimeConfig


class UsageError(TyperException):
    """The command line is wrong."""

    exit_code = 2


class UnknownCommandError(UsageError):
    """A group has no command of this name."""

    def __init__(self, name: str, ctx: Context, known: Iterable[str]) -> None:
        super().__init__(f"no command is named '{name}'")
        self.name, self.ctx, self.known = name, ctx, known


class ExtraArgumentError(UsageError):
    """A command takes fewer arguments."""

    def __init__(self, argument: str, ctx: Context) -> None:
        super().__init__(f"'{argument}' is one argument too many")
        self.argument, self.ctx = argument, ctx


class _Group(TyperGroup):
    """A group whose error for an unknown command carries data instead of a sentence."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not (self.get_command(ctx, args[0]) or args[0].startswith("-") or ctx.resilient_parsing):
            raise UnknownCommandError(args[0], ctx, self.commands)
        return super().resolve_command(ctx, args)


HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
"""The names of the option --help."""
GROUP: dict[str, Any] = {
    "cls": _Group,
    "no_args_is_help": True,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
}
"""Arguments of every `typer.Typer` group."""


class Command(TyperCommand):
    """A command that takes settings as options, also by other programs' names: --max_iters=9 is --set train.steps=9."""

    allow_extra_args = True  # else the error for extra arguments would have no data

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        extra = super().parse_args(ctx, list(self._translated(args, ctx.help_option_names)))
        if extra and not ctx.resilient_parsing:
            raise ExtraArgumentError(extra[0], ctx)
        return extra

    def _translated(self, args: list[str], known_too: Iterable[str]) -> Iterator[str]:
        known = {*known_too, *options_of(self)}
        words = iter(args)
        for word in words:
            name, equals, value = word.partition("=")
            if word == "--":
                yield from (word, *words)
            elif not name.startswith("--") or name in known:
                yield word
            elif (hyphens := name.replace("_", "-")) in known:
                yield f"{hyphens}{equals}{value}"
            elif (key := setting_named(name)) and "--set" in known:  # --name and --seed may mean something else
                given = value if equals else next(words, None)
                if given is None:
                    raise UsageError(f"Option '{name}' requires an argument")
                yield from ("--set", f"{key}={given}")
            elif key and (option := option_of(key)) in known:
                yield f"{option}{equals}{value}"
            else:
                yield word


def options_of(command: Any) -> frozenset[str]:
    """Return the names of the options and arguments of a command, such as --prompt and -p."""
    return frozenset(name for parameter in command.params for name in parameter.opts)


def setting_named(option: str) -> str:
    """Return the setting that an option such as --n-layer or --block_size means, or ""."""
    from minigpt.config.aliases import ALIASES
    from minigpt.config.resolve import fields

    key = option.lstrip("-").replace("-", "_")
    named = [field for field in fields() if key in (field, field.partition(".")[2])]
    alias = ALIASES.get(key, "")  # some aliases say more: their value means something else
    return named[0] if len(named) == 1 else alias if alias in fields() else ""


def option_of(setting: str) -> str:
    """Return the option for a setting, such as --lr, in the commands that have one."""
    return f"--{setting.partition('.')[2].replace('_', '-')}"


LIST: dict[str, Any] = {**GROUP, "no_args_is_help": False}
"""Arguments of a group that lists without a command."""


def only_list(context: Context) -> bool:
    """Return whether a command follows a group that lists. Raises UsageError if options come before it."""
    if context.invoked_subcommand is None:
        return False
    for parameter in context.command.params:
        if context.params.get(str(parameter.name)) not in (parameter.default, None):
            group, command = context.info_name, context.invoked_subcommand
            raise UsageError(
                f"{parameter.opts[0]} is an option of the list of {group}; options of {command} come after {command}"
            )
    return True


# Hide the types of arguments and flags in help: "<list[str]>" and "<bool>" tell a user nothing.
_type_of_option = TyperOption.display_type_rich
TyperOption.display_type_rich = lambda self, ctx: None if self.is_flag else _type_of_option(self, ctx)  # type: ignore[method-assign]
TyperArgument.display_type_rich = lambda self, ctx: None  # type: ignore[method-assign]


def complete_run(incomplete: str) -> list[str]:
    """Return the names of runs that begin with `incomplete`, for shell completion."""
    from minigpt.storage.runs import all_runs

    return [name for name in ("last", *(run.name for run in all_runs())) if name.startswith(incomplete)]


def complete_preset(incomplete: str) -> list[str]:
    """Return the names of presets that begin with `incomplete`."""
    from minigpt.config.presets import presets

    return [name for name in presets() if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[str]:
    """Return the settings that begin with `incomplete`, as KEY=."""
    from minigpt.config.resolve import fields

    return [f"{key}=" for key in fields() if key.startswith(incomplete)]


TEXT = "Files, folders, globs, '-' (standard input), builtin:NAME or download:NAME."
ConfigOption = Annotated[
    str | None,
    Option("--config", "-c", help="Use a preset or a YAML file.", metavar="NAME", autocompletion=complete_preset),
]
SetOption = Annotated[
    list[str] | None,
    Option("--set", "-s", help="Override a setting; repeatable.", metavar="KEY=VALUE", autocompletion=complete_setting),
]
MinutesOption = Annotated[
    float | None, Option(help="Choose settings for a run of this many minutes on this machine.", metavar="N")
]
RUN = "A run (its name, its folder or 'last'), or a checkpoint: NAME@STEP, NAME@best or NAME@last."
RunArgument = Annotated[str, Argument(help=RUN, metavar="RUN", autocompletion=complete_run)]
RunsArgument = Annotated[list[str], Argument(help="Names or folders.", metavar="RUN", autocompletion=complete_run)]
RunsFolderOption = Annotated[Path, Option("--in", help="Folder that contains the runs.", metavar="FOLDER")]
OnUnknown = Literal["error", "skip", "replace"]
UnknownOption = Annotated[
    OnUnknown, Option(help="Characters outside the vocabulary: error, skip or replace.", metavar="WHAT")
]
EncodingOption = Annotated[str, Option(help="Encoding of the text files.", metavar="NAME")]
DeviceOption = Annotated[str, Option(help="Device to compute on: auto, cpu, cuda, cuda:N or mps.", metavar="NAME")]
JsonOption = Annotated[bool, Option("--json", help="Print the result as JSON.")]
ForceOption = Annotated[bool, Option("--force", help="Replace an existing file.")]


def check_minutes(minutes: float | None, assignments: list[str] | None) -> None:
    """Raise UserError if `minutes` is not a duration, or if a setting also gives the duration."""
    if minutes is None:
        return
    if not 0 < minutes <= 1_000_000:
        raise UserError(f"--minutes must be more than 0 and at most 1,000,000, got {minutes:g}")
    if lengths := [setting for setting in assignments or [] if setting.startswith(("train.steps=", "train.epochs="))]:
        raise UserError(f"--minutes and {escape(lengths[0])} both give the duration; remove one of them")


def add_settings(assignments: list[str], options: Mapping[str, str | None]) -> list[str]:
    """Add the values of options to those of --set. Raises UserError if both set a key: one would silently win."""
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if any(assignment.startswith(f"{key}=") for assignment in assignments):
            raise UserError(f"{key} is set twice; remove one of the options")
    return [*assignments, *(f"{key}={value}" for key, value in given.items())]


def runtime_settings(device: str) -> "RuntimeConfig":
    """Return the runtime settings for a value of --device. Raises UserError if it is not a device."""
    from minigpt.config.resolve import parse_overrides, resolve

    return resolve(parse_overrides([f"runtime.device={device}", "runtime.compile=false"])).config.runtime
