"""How settings are merged, checked, explained and saved.

Values resolve as defaults < family < preset < command line.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import (
    ValidationError,
)
from pydantic.fields import FieldInfo

from minigpt.config import yaml as plain_yaml
from minigpt.config.schema import FAMILIES, RunConfig
from minigpt.errors import UserError, escape

LENGTHS = ("train.steps", "train.epochs", "train.minutes")
DEFAULT_STEPS = 2000

Layer = tuple[str, Mapping[str, Any]]
"""Where values come from, for people, and the values by dotted key."""


@dataclass(frozen=True)
class Resolved:
    """A configuration, and for each dotted key the layer that decided it."""

    config: RunConfig
    sources: dict[str, str]


def fields() -> dict[str, FieldInfo]:
    """Return every setting by its dotted key, with its annotation, default and description."""
    return {
        f"{section}.{key}": field
        for section, info in RunConfig.model_fields.items()
        for key, field in info.annotation.model_fields.items()  # type: ignore[union-attr]
    }


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return the values of `config` by dotted key."""
    return {f"{section}.{key}": value for section, values in config for key, value in values}


# --- reading -----------------------------------------------------------------------------------------


def dotted(tree: Any, origin: str) -> dict[str, Any]:
    """Return the values of a tree of sections by dotted key. Raises UserError when it is no such tree."""
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"{escape(origin)}: expected sections such as 'model:', got {show(tree)[:60]}")
    values: dict[str, Any] = {}
    for section, entries in tree.items():
        if isinstance(entries, dict):
            found = {f"{section}.{key}": value for key, value in entries.items()}
        else:
            found = {str(section): entries} if entries is not None or section not in RunConfig.model_fields else {}
        if twice := values.keys() & found.keys():
            raise UserError(f"{escape(origin)}: {escape(min(twice))} is set twice")
        values |= found
    return values


def parse_overrides(assignments: Iterable[str]) -> Layer:
    """Turn `--set` arguments such as "model.n_layer=6" into a layer. Raises UserError when one has no "=".

    The value is YAML, unless the setting is a text: that is taken as it stands.
    """
    values = {}
    known = fields()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals:
            raise UserError(f"--set {escape(assignment)}: expected KEY=VALUE, for example --set model.n_layer=6")
        annotation = known[key].annotation if key in known else None
        is_list = text.startswith("[") and text.endswith("]")
        is_text = annotation is str or (annotation == tuple[str, ...] and not is_list)
        if type(None) in get_args(annotation) and not text.strip():  # as of a variable that is not set
            raise UserError(f"--set {escape(assignment)}: a value is missing; null unsets it")
        values[key] = text if is_text else plain_yaml.parse(text, f"--set {key}")
    return "--set", values


# --- merging and checking ----------------------------------------------------------------------------


def resolve(*layers: Layer, complete: bool = True) -> Resolved:
    """Merge layers, the later one winning, over the defaults and the model family's values.

    A layer that sets one of train.steps, epochs and minutes overrules all three of the layers before it.
    Raises UserError that names every unknown key, wrong value and contradiction at once; where the layers are not
    complete, what contradicts one another may yet be overruled, and is let pass.
    """
    family = next((values["model.family"] for _, values in reversed(layers) if "model.family" in values), "modern")
    switches = FAMILIES.get(str(family), {})
    values: dict[str, Any] = {f"model.{key}": value for key, value in switches.items()}
    sources = dict.fromkeys(values, f"family {family}")
    problems = []
    for label, layer in layers:
        lengths = [key for key in LENGTHS if layer.get(key) is not None]
        if len(lengths) > 1:
            problems.append(f"{' and '.join(lengths)} are set together: set one")
        if lengths:
            for key in LENGTHS:
                values.pop(key, None)
                sources.pop(key, None)
        values |= layer
        sources |= dict.fromkeys(layer, label)
    if all(values.get(key) is None for key in LENGTHS):
        values["train.steps"] = DEFAULT_STEPS
        sources.pop("train.steps", None)
    config, wrong = _validate(values)
    problems += wrong.values()
    # Where a value was left out as wrong, its default contradicts nothing that the user said.
    found = contradictions(config) if complete else []
    problems += [line for line in found if not any(key in line for key in wrong)]
    if problems:
        count = f"{len(problems)} problems: " if len(problems) > 1 else ""
        raise UserError(f"configuration: {count}{'; '.join(problems)}")
    return Resolved(config, {key: sources.get(key, "default") for key in fields()})


def _validate(values: Mapping[str, Any]) -> tuple[RunConfig, dict[str, str]]:
    """Build a RunConfig from dotted values; leave out what is wrong, and say by key why."""
    known = fields()
    problems = {key: _unknown(key) for key in values if key not in known}
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
            problems[key] = f"{key}: {_explain(found, known[key], tree[section].pop(name))}"
        return RunConfig.model_validate(tree), problems


def _explain(messages: list[str], field: FieldInfo, value: Any) -> str:
    message = messages[0].removeprefix("Value error, ")
    if "pattern" in message:
        return f"expected {field.description}"[:-1] + f", got {show(value)}"
    if len(messages) > 1 or "valid" in message:
        return f"expected {type_name(field.annotation)}, got {repr(value) if isinstance(value, str) else show(value)}"
    return f"{message[0].lower()}{message[1:]}, got {show(value)}"


def _unknown(key: str) -> str:
    names = [*fields(), *RunConfig.model_fields]
    ends = {name.split(".")[-1]: name for name in fields()}
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.8)
    near = near or [ends[end] for end in difflib.get_close_matches(key.split(".")[-1], ends, n=1, cutoff=0.7)]
    if key in RunConfig.model_fields:
        return f"{key}: is a section, expected keys below it"
    return f"{escape(key)}: unknown key" + (f", did you mean {near[0]}?" if near else "")


def contradictions(config: RunConfig) -> list[str]:
    """Return, a line each, the settings of `config` that cannot hold together."""
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


MAY_CHANGE = (
    "data.source",
    "data.val_source",
    "data.encoding",
    "runtime.",
    "sample.",
    "train.steps",
    "train.epochs",
    "train.minutes",
    "train.patience",
    "train.log_every",
    "train.eval_every",
    "train.save_every",
    "train.keep_last",
    "train.attention",
    "train.histograms",
    "train.hparams",
    "train.micro_batch_size",
    "train.on_nonfinite",
    "train.max_skipped",
)
"""How the settings begin that a resumed run may have other than it had. Its text may lie elsewhere: it is compared."""


def changed_on_resume(old: RunConfig, new: RunConfig) -> list[str]:
    """Return, a line each, the differences that a resumed run must not have."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key} is {show(before[key])} in the run, {show(after[key])} now"
        for key in before
        if before[key] != after[key] and not key.startswith(MAY_CHANGE)
    ]


# --- writing -----------------------------------------------------------------------------------------


def to_yaml(config: RunConfig) -> str:
    """Return `config` as YAML that `from_yaml` reads back to the same. Raises UserError where it would be too long."""
    text = plain_yaml.dump(config.model_dump(mode="json"))
    if len(text.encode()) > plain_yaml.LIMIT:
        raise UserError("data.source names too many texts one by one: name their folder, or quote a glob")
    return text


def from_yaml(text: str, origin: str) -> RunConfig:
    """Read a resolved configuration back, as stored in a run or a checkpoint. Raises UserError."""
    return resolve((origin, dotted(plain_yaml.parse(text, origin), origin))).config


def schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunConfig.model_json_schema()}


def explain(resolved: Resolved) -> list[tuple[str, str, str]]:
    """Return key, value and source of every setting, as `minigpt config show` prints them."""
    return [(key, show(value), resolved.sources[key]) for key, value in flatten(resolved.config).items()]


def describe_settings() -> list[tuple[str, str]]:
    """Return every setting with its kind, default and description, as --help prints them."""
    return [
        (key, f"{field.description} [{type_name(field.annotation)}; {show(field.default)}]")
        for key, field in fields().items()
    ]


def show(value: Any) -> str:
    """Return `value` as one would write it in YAML, on one line."""
    if isinstance(value, tuple):
        return ", ".join(show(one) for one in value) or "[]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value if value and value.isprintable() and " " not in value else repr(value)
    if isinstance(value, (list, dict)):
        return "keys below it" if isinstance(value, dict) else "a list" if value else "[]"
    return str(value)


def type_name(annotation: Any) -> str:
    """Return the kind of value that a field takes, in words."""
    names: dict[Any, str] = {
        int: "whole number",
        float: "number",
        bool: "true or false",
        str: "text",
        type(None): "null",
    }
    if annotation in names:
        return names[annotation]
    if annotation == tuple[str, ...]:
        return "text, or a list of texts"
    arguments: Sequence[Any] = get_args(annotation)
    if getattr(annotation, "__origin__", None) is Literal:
        return " or ".join(str(argument) for argument in arguments)
    return " or ".join(type_name(argument) for argument in arguments)
