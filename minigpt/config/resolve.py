"""Resolve a configuration: merge its sources, check all values, and explain or save the result.

Later sources override earlier ones: defaults, model family, preset, command line.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from minigpt.config import yaml as plain_yaml
from minigpt.config.aliases import ALIASES
from minigpt.config.schema import ADAMW_RATE, FAMILIES, NO_ATTENTION, NORMUON_RATE, RECURRENT, RunConfig
from minigpt.errors import ConfigError, did_you_mean, escape

LENGTHS = ("train.steps", "train.epochs")
DEFAULT_STEPS = 2000
UNUSED = "not used"
"""The name of the source of settings that the family of the model does not use."""
MAY_CHANGE = (
    "data.source", "data.val_source", "data.encoding", "runtime.", "sample.",
    "train.steps", "train.epochs", "train.patience", "train.log_every", "train.eval_every",
    "train.save_every", "train.keep_last", "train.frames", "train.micro_batch_size",
)  # fmt: skip
"""Prefixes of the settings that may change when a run is resumed. The text may move but must not change."""

WORDS = {
    "bool_type": "true or false", "bool_parsing": "true or false",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "float_parsing": "a number", "finite_number": "a finite number",
    "greater_than": "more than {gt}", "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}", "less_than_equal": "at most {le}",
    "string_type": "text", "tuple_type": "text, or a list of texts", "too_short": "at least one text",
    "string_too_long": "at most {max_length} characters long", "string_unicode": "text without lone surrogates",
    "literal_error": "{expected}", "value_error": "{error}",
}  # fmt: skip
"""What a value must be, by pydantic's type of the error."""

ConfigSource = tuple[str, Mapping[str, Any]]
"""A source of settings: its name, such as "preset tiny", and its values by dotted key."""


class FileSettings(dict[str, Any]):
    """The settings of a YAML file by dotted key."""

    def __init__(self, text: str, origin: str) -> None:
        super().__init__(dotted(plain_yaml.parse(text, origin), origin))
        self.origin, self.lines = origin, plain_yaml.lines(text)


@dataclass(frozen=True)
class Resolved:
    """A configuration, and the name of each setting's source."""

    config: RunConfig
    sources: dict[str, str]


def fields() -> dict[str, FieldInfo]:
    """Return every setting by its dotted key, with its type, default and description."""
    return {
        f"{section}.{key}": field
        for section, info in RunConfig.model_fields.items()
        for key, field in info.annotation.model_fields.items()  # type: ignore[union-attr]
    }


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return the values of `config` by dotted key."""
    return {f"{section}.{key}": value for section, values in config for key, value in values}


# --- reading -------------------------------------------------------------------------------------------


def dotted(tree: Any, origin: str) -> dict[str, Any]:
    """Flatten sections, or None, into values by dotted key. Raise a ConfigError that names `origin` for other trees."""
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{escape(origin)}: expected sections such as 'model:', got {show(tree)[:60]}")
    values: dict[str, Any] = {}
    for section, entries in tree.items():
        if isinstance(entries, dict):
            values |= {f"{section}.{key}": value for key, value in entries.items()}
        elif entries is not None or section not in RunConfig.model_fields:
            values[str(section)] = entries
    return values


def parse_overrides(assignments: Iterable[str]) -> ConfigSource:
    """Parse assignments such as "model.n_layer=6".

    Values are YAML, but the values of text settings are taken literally, except lists in brackets.
    """
    values, settings = {}, fields()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"expected KEY=VALUE such as model.n_layer=6, got {escape(assignment)!r}")
        annotation = settings[key].annotation if key in settings else None
        is_list = annotation == tuple[str, ...] and text.startswith("[") and text.endswith("]")
        is_text = annotation in (str, tuple[str, ...]) and not is_list
        values[key] = text if is_text else plain_yaml.parse(text, key)
    return "command line", values


# --- merging and checking ------------------------------------------------------------------------------


def resolve(*sources: ConfigSource, complete: bool = True) -> Resolved:
    """Merge sources over the defaults and the values of the model family.

    A source that sets the duration of the run (train.steps or epochs) replaces the duration of earlier sources.
    A source that changes the optimizer discards an earlier learning rate.
    If the family is recurrent, a source that sets it discards earlier values of `model.bias` and NO_ATTENTION.

    Args:
        sources: Settings, with the highest priority last.
        complete: False if sources added later may resolve a contradiction.

    Raises:
        ConfigError: Keys are unknown, or values are invalid or contradictory. The message lists all problems.
    """
    chosen = _merge(sources)
    config, wrong = _validate({key: value for key, (value, _) in chosen.items()})
    problems = [({key}, problem) for key, problem in wrong.items()]
    # A wrong value has its default here, which contradicts nothing that the user wrote.
    if complete:
        problems += [(keys, problem) for keys, problem in contradictions(config) if keys.isdisjoint(wrong)]
    if problems:
        placed = [(*_place(keys, sources), problem) for keys, problem in problems]
        first, *others = (escape(f"{place}{problem}") for _, place, problem in sorted(placed, key=itemgetter(0)))
        several = f"{len(problems)} problems:\n  " if others else ""
        raise ConfigError("\n  ".join((f"configuration: {several}{first}", *others)), wrong)
    return Resolved(config, {key: chosen[key][1] if key in chosen else "default" for key in fields()})


def _merge(sources: Sequence[ConfigSource]) -> dict[str, tuple[Any, str]]:
    """Return the value and the source's name of each setting that the family of the model or a source sets."""
    families = [values["model.family"] for _, values in sources if "model.family" in values]
    family = str(families[-1]) if families else "modern"  # of any type until it is checked
    defaults = {f"model.{key}": value for key, value in FAMILIES.get(family, {}).items()}
    if family in RECURRENT:
        defaults["optim.lr"] = RECURRENT[family]
    rates = {"adamw": ADAMW_RATE, "normuon": RECURRENT.get(family, NORMUON_RATE)}
    optimizer, chosen = "normuon", dict[str, tuple[Any, str]]()
    for label, values in ((f"family {family}", defaults), *sources):
        if (name := str(values.get("optim.name", optimizer))) != optimizer:  # another optimizer needs other rates
            optimizer, chosen["optim.lr"] = name, (rates.get(name, NORMUON_RATE), f"optimizer {name}")
        if any(values.get(key) is not None for key in LENGTHS):
            chosen |= dict.fromkeys(LENGTHS, (None, label))
        if "model.family" in values and family in RECURRENT:
            chosen |= {f"model.{key}": (value, UNUSED) for key, value in NO_ATTENTION.items()}
            chosen["model.bias"] = (True, f"family {family}")  # a transformer's preset may turn biases off
        chosen |= {key: (value, label) for key, value in values.items()}
    chosen = {key: choice for key, choice in chosen.items() if key not in LENGTHS or choice[0] is not None}
    if chosen.keys().isdisjoint(LENGTHS):
        chosen["train.steps"] = (DEFAULT_STEPS, "default")
    return chosen


def _validate(values: Mapping[str, Any]) -> tuple[RunConfig, dict[str, str]]:
    """Return the configuration without its wrong values, and the problem with each wrong value by key."""
    wrong = {key: _unknown_key(key) for key in values if key not in fields()}
    tree: dict[str, dict[str, Any]] = {section: {} for section in RunConfig.model_fields}
    for key in (key for key in values if key not in wrong):
        section, name = key.split(".")
        tree[section][name] = values[key]
    try:
        return RunConfig.model_validate(tree), wrong
    except ValidationError as error:
        wrong |= _wrong_values(error)
    return _validate({key: value for key, value in values.items() if key not in wrong})[0], wrong


def _wrong_values(error: ValidationError) -> dict[str, str]:
    """Return the problem with each setting that has a wrong value."""
    problems: dict[str, str] = {}
    for details in error.errors():
        key = ".".join(map(str, details["loc"][:2]))
        if key not in problems:
            examples = fields()[key].examples
            allowed = f"{', '.join(examples[:-1])} or {examples[-1]}" if examples else in_words(details)
            is_quoted = details["type"].startswith(("int_", "float_", "bool_"))  # "6" is a text, not a number
            shown = json.dumps(details["input"]) if is_quoted else show(details["input"])
            problems[key] = f"{key} is {shown[:60]}, but should be {allowed}"
        elif details["type"] == "literal_error":  # an alternative to the first type
            problems[key] += f" or {in_words(details)}"
    return problems


def in_words(problem: Mapping[str, Any]) -> str:
    """Return what a value should be, from the details of a `ValidationError`."""
    limits = problem.get("ctx", {})
    limits = {name: f"{limit:,.15g}" if isinstance(limit, int | float) else limit for name, limit in limits.items()}
    return WORDS[problem["type"]].format(**limits) if problem["type"] in WORDS else problem["msg"]


def _place(keys: Collection[str], sources: Sequence[ConfigSource]) -> tuple[float, str]:
    """Return the line at which the last source of `keys` sets one of them, and a text such as "my.yaml line 3: ".

    If this source is not a file, the line is infinite and the text is empty.
    """
    settings = next((values for _, values in reversed(sources) if values.keys() & keys), None)
    if not isinstance(settings, FileSettings):
        return math.inf, ""
    line = max((settings.lines[key] for key in settings.lines.keys() & keys), default=0)  # 0: the key is not text
    return line, f"{settings.origin} line {line}: " if line else f"{settings.origin}: "


def _unknown_key(key: str) -> str:
    if key in RunConfig.model_fields:
        return f"{key} is a section; set a key in it"
    section, _, name = key.rpartition(".")
    same = [setting for setting in fields() if setting.endswith(f".{name}")]  # in another section
    hint = f"; use {ALIASES[name]}" if name in ALIASES else f"; did you mean {' or '.join(same)}?" if same else ""
    hint = hint or did_you_mean(key, [*fields(), *({} if section else RunConfig.model_fields)])
    return f"{key}: unknown setting{hint or did_you_mean(name, fields())}"


def contradictions(config: RunConfig) -> list[tuple[set[str], str]]:
    """Return the keys of each group of settings that contradict each other, and the problem."""
    model, train, optim = config.model, config.train, config.optim
    problems = list[tuple[set[str], str]]()
    if model.is_recurrent:
        for setting in (f"model.{key}" for key, value in NO_ATTENTION.items() if getattr(model, key) != value):
            problems.append(({setting}, f"{setting} does not apply to model.family {model.family}; remove it"))
    elif model.n_embd % (unit := width_unit(model.n_head, model.position)):
        if model.n_embd % model.n_head:
            problem = f"model.n_embd ({model.n_embd}) must be divisible by model.n_head ({model.n_head})"
        elif model.position == "rotary":
            problem = f"model.position rotary needs an even head size; model.n_embd / model.n_head is {model.head_size}"
        else:
            problem = f"model.position {model.position} needs an even model.n_embd, got {model.n_embd}"
        keys = {"model.n_embd", "model.n_head", "model.position"}  # the suggestion depends on all of them
        problems.append((keys, f"{problem}: try model.n_embd={multiple(model.n_embd, unit)}"))
    if train.steps and train.epochs:
        problems.append((set(LENGTHS), f"{' and '.join(LENGTHS)} cannot be set together; set only one of them"))
    size, rest = divmod(train.batch_size, train.shards)
    keys = {"train.batch_size", "train.shards"}
    if rest:
        batch = f"train.batch_size ({train.batch_size})"
        problem = f"{batch} must be a multiple of train.shards ({train.shards}), by default the number of processes"
        problems.append((keys, problem))
    elif size % train.sequences_at_once:
        what = "train.batch_size / train.shards" if train.shards > 1 else "train.batch_size"
        problem = f"{what} ({size}) must be a multiple of train.micro_batch_size ({train.micro_batch_size})"
        problems.append((keys | {"train.micro_batch_size"}, problem))
    if optim.schedule == "wsd" and optim.warmup + optim.decay > 1:
        problem = "optim.warmup and optim.decay must not add up to more than 1"
        problems.append(({"optim.schedule", "optim.warmup", "optim.decay"}, problem))
    return problems


def width_unit(n_head: int, position: str) -> int:
    """Return the number that must divide `model.n_embd`."""
    if position == "rotary":
        return 2 * n_head
    return math.lcm(2, n_head) if position == "sinusoidal" else n_head


def multiple(number: int, unit: int) -> int:
    """Return the largest multiple of `unit` up to `number`, at least `unit`."""
    return max(unit, number // unit * unit)


def changed_on_resume(old: RunConfig, new: RunConfig) -> list[str]:
    """Return a problem for each changed setting that must not change when a run is resumed."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key} is {show(before[key])} in the run but {show(after[key])} now"
        for key in before
        if before[key] != after[key] and not key.startswith(MAY_CHANGE)
    ]


def decisive(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by dotted key, that decide a run's result: its duration, and what a resume cannot change."""
    return {key: value for key, value in values.items() if key in LENGTHS or not key.startswith(MAY_CHANGE)}


# --- writing -------------------------------------------------------------------------------------------


def to_yaml(config: RunConfig) -> str:
    """Return YAML that `from_yaml` reads as an equal configuration."""
    text = plain_yaml.dump(config.model_dump(mode="json"))
    if len(text.encode()) > plain_yaml.LIMIT:
        raise ConfigError("data.source has too many entries; use a folder or a glob")
    return text


def from_yaml(text: str, origin: str) -> RunConfig:
    """Read a configuration. Raise a ConfigError that names `origin` if it is invalid."""
    try:
        return resolve((origin, dotted(plain_yaml.parse(text, origin), origin))).config
    except ConfigError as error:
        raise ConfigError(error.problem.replace(":\n  ", ": ").replace("\n  ", "; ")) from error


def show(value: Any) -> str:
    """Format `value` on one line, as JSON but without quotes around printable strings."""
    if isinstance(value, tuple):
        return ", ".join(map(show, value)) or "[]"
    return value if isinstance(value, str) and value.isprintable() and value else json.dumps(value)
