"""Resolve a configuration: merge its sources, check all values, explain and save the result.

Later sources win: defaults, then model family, preset, command line.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from minigpt.config import yaml as plain_yaml
from minigpt.config.schema import FAMILIES, RunConfig
from minigpt.errors import ConfigError, escape

LENGTHS = ("train.steps", "train.epochs", "train.minutes")
DEFAULT_STEPS = 2000
MAY_CHANGE = (
    "data.source", "data.val_source", "data.encoding", "runtime.", "sample.",
    "train.steps", "train.epochs", "train.minutes", "train.patience", "train.log_every", "train.eval_every",
    "train.save_every", "train.keep_last", "train.attention", "train.histograms", "train.hparams",
    "train.micro_batch_size", "train.on_nonfinite", "train.max_skipped",
)  # fmt: skip
"""Prefixes of the settings that may change when a run is resumed. The text may move, but must be the same."""

ConfigSource = tuple[str, Mapping[str, Any]]
"""A source of settings: its name, such as "preset tiny", and its values by dotted key."""


@dataclass(frozen=True)
class Resolved:
    """A configuration, and the name of the source of each setting."""

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
    """Return the values in sections by dotted key. Raise ConfigError, which names `origin`, for anything else."""
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{escape(origin)}: expected sections such as 'model:', got {show(tree)[:60]}")
    values: dict[str, Any] = {}
    for section, entries in tree.items():
        if isinstance(entries, dict):
            found = {f"{section}.{key}": value for key, value in entries.items()}
        else:
            found = {} if entries is None and section in RunConfig.model_fields else {str(section): entries}
        if duplicates := values.keys() & found.keys():
            raise ConfigError(f"{escape(origin)}: {escape(min(duplicates))} is set twice")
        values |= found
    return values


def parse_overrides(assignments: Iterable[str]) -> ConfigSource:
    """Return the settings of assignments such as "model.n_layer=6".

    A value is YAML. The value of a text setting is taken literally.
    """
    values, known = {}, fields()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals:
            raise ConfigError(f"expected KEY=VALUE such as model.n_layer=6, got {escape(assignment)!r}")
        annotation = known[key].annotation if key in known else None
        is_list = annotation == tuple[str, ...] and text.startswith("[") and text.endswith("]")
        if type(None) in get_args(annotation) and not text.strip():  # perhaps an unset shell variable
            raise ConfigError(f"{escape(assignment)} has no value; {key}=null unsets it")
        is_text = annotation in (str, tuple[str, ...]) and not is_list
        values[key] = text if is_text else plain_yaml.parse(text, key)
    return "command line", values


# --- merging and checking ------------------------------------------------------------------------------


def resolve(*sources: ConfigSource, complete: bool = True) -> Resolved:
    """Merge sources over the defaults and the values of the model family.

    A source that sets the length of the run (train.steps, epochs or minutes) replaces the length of earlier sources.

    Args:
        sources: Settings, the most important last.
        complete: False if more sources follow, which may resolve a contradiction.

    Raises:
        ConfigError: Lists all unknown keys, wrong values and contradictions.
    """
    family = next((values["model.family"] for _, values in reversed(sources) if "model.family" in values), "modern")
    values: dict[str, Any] = {f"model.{key}": value for key, value in FAMILIES.get(str(family), {}).items()}
    origins = dict.fromkeys(values, f"family {family}")
    problems = []
    for label, source in sources:
        lengths = [key for key in LENGTHS if source.get(key) is not None]
        if len(lengths) > 1:
            problems.append(f"{' and '.join(lengths)} are set together; set one")
        if lengths:
            for key in LENGTHS:
                values.pop(key, None)
                origins.pop(key, None)
        values |= source
        origins |= dict.fromkeys(source, label)
    if all(values.get(key) is None for key in LENGTHS):
        values["train.steps"] = DEFAULT_STEPS
        origins.pop("train.steps", None)
    config, wrong = _validate(values)
    problems += wrong.values()
    # A wrong value has its default in `config`, which may contradict a right one: do not report that.
    found = contradictions(config) if complete else []
    problems += [line for line in found if not any(key in line for key in wrong)]
    if problems:
        count = f"{len(problems)} problems: " if len(problems) > 1 else ""
        raise ConfigError(f"configuration: {count}{'; '.join(problems)}")
    return Resolved(config, {key: origins.get(key, "default") for key in fields()})


def _validate(values: Mapping[str, Any]) -> tuple[RunConfig, dict[str, str]]:
    """Return a configuration without the wrong values, and a problem for each of their keys."""
    known = fields()
    problems = {key: _unknown_key(key) for key in values if key not in known}
    tree: dict[str, dict[str, Any]] = {section: {} for section in RunConfig.model_fields}
    for key, value in values.items():
        if key in known:
            section, name = key.split(".")
            tree[section][name] = value
    try:
        return RunConfig.model_validate(tree), problems
    except ValidationError as error:
        messages: dict[str, list[str]] = {}
        for one in error.errors():
            messages.setdefault(".".join(str(part) for part in one["loc"][:2]), []).append(one["msg"])
    for key, found in messages.items():
        section, name = key.split(".")
        problems[key] = f"{key}: {_wrong_value(found, known[key], tree[section].pop(name))}"
    return RunConfig.model_validate(tree), problems


def _wrong_value(messages: list[str], field: FieldInfo, value: Any) -> str:
    """Return what is wrong with a value, from the messages of pydantic."""
    message = messages[0].removeprefix("Value error, ")
    if "pattern" in message:
        return f"expected {field.description}"[:-1] + f", got {show(value)}"
    if len(messages) > 1 or "valid" in message:
        return f"expected {type_name(field.annotation)}, got {repr(value) if isinstance(value, str) else show(value)}"
    return f"{message[0].lower()}{message[1:]}, got {show(value)}"


def _unknown_key(key: str) -> str:
    if key in RunConfig.model_fields:
        return f"{key}: is a section; set a key in it"
    by_name = {name.split(".")[-1]: name for name in fields()}
    near = difflib.get_close_matches(key, [*fields(), *RunConfig.model_fields], n=1, cutoff=0.8)
    near = near or [by_name[name] for name in difflib.get_close_matches(key.split(".")[-1], by_name, n=1, cutoff=0.7)]
    return f"{escape(key)}: unknown key" + (f", did you mean {near[0]}?" if near else "")


def contradictions(config: RunConfig) -> list[str]:
    """Return a problem for each group of settings that contradict each other."""
    model, train, found = config.model, config.train, []
    if model.n_embd % model.n_head:
        found.append(f"model.n_embd ({model.n_embd}) must be divisible by model.n_head ({model.n_head})")
    elif model.position == "rotary" and model.head_size % 2:
        found.append(f"model.position rotary needs an even head size, model.n_embd / model.n_head is {model.head_size}")
    if model.position == "sinusoidal" and model.n_embd % 2:
        found.append(f"model.position sinusoidal needs an even model.n_embd, got {model.n_embd}")
    if train.micro_batch_size and train.batch_size % train.micro_batch_size:
        micro = train.micro_batch_size
        found.append(f"train.batch_size ({train.batch_size}) must be a multiple of train.micro_batch_size ({micro})")
    if config.optim.schedule == "wsd" and config.optim.warmup + config.optim.decay > 1:
        found.append("optim.warmup and optim.decay together exceed the run")
    return found


def changed_on_resume(old: RunConfig, new: RunConfig) -> list[str]:
    """Return a problem for each changed setting that must not change when a run is resumed."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key} is {show(before[key])} in the run, {show(after[key])} now"
        for key in before
        if before[key] != after[key] and not key.startswith(MAY_CHANGE)
    ]


# --- writing -------------------------------------------------------------------------------------------


def to_yaml(config: RunConfig) -> str:
    """Return YAML from which `from_yaml` reads an equal configuration."""
    text = plain_yaml.dump(config.model_dump(mode="json"))
    if len(text.encode()) > plain_yaml.LIMIT:
        raise ConfigError("data.source has too many entries; use a folder or a glob")
    return text


def from_yaml(text: str, origin: str) -> RunConfig:
    """Read a complete configuration. Raise ConfigError, which names `origin`, if it is not valid."""
    return resolve((origin, dotted(plain_yaml.parse(text, origin), origin))).config


def schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunConfig.model_json_schema()}


def explain(resolved: Resolved) -> list[tuple[str, str, str]]:
    """Return key, value and source of every setting."""
    return [(key, show(value), resolved.sources[key]) for key, value in flatten(resolved.config).items()]


def describe_settings() -> list[tuple[str, str]]:
    """Return the key of every setting, and its description, type and default."""
    return [
        (key, f"{field.description} [{type_name(field.annotation)}; {show(field.default)}]")
        for key, field in fields().items()
    ]


def show(value: Any) -> str:
    """Return `value` in one line, like in YAML."""
    if isinstance(value, tuple):
        return ", ".join(map(show, value)) or "[]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value if value and value.isprintable() and " " not in value else repr(value)
    if isinstance(value, (list, dict)):
        return "keys below it" if isinstance(value, dict) else "a list" if value else "[]"
    return str(value)


def type_name(annotation: Any) -> str:
    """Return the type of a setting in words."""
    if annotation == tuple[str, ...]:
        return "text, or a list of texts"
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, get_args(annotation)))
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null"}
    return names.get(annotation) or " or ".join(map(type_name, get_args(annotation)))
