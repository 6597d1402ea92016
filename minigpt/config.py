"""The configuration: frozen sections, and how values are merged, checked, explained and saved.

Values resolve as defaults < family < preset < command line. The docstring under each field is its help
text, its description in the JSON schema and its line in docs/configuration.md.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic.fields import FieldInfo

from minigpt import plain_yaml
from minigpt.errors import UserError, shown


class Section(BaseModel):
    """One group of settings: frozen, typed without guessing ("6" is no number), and closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @field_validator("*", mode="before")
    @classmethod
    def _whole_floats_are_integers(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        takes_integers = int in (annotation, *get_args(annotation))
        return int(value) if takes_integers and isinstance(value, float) and value.is_integer() else value


def _one_or_many(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str) else value


def _whole_characters(text: str) -> str:
    """Refuse halves of characters, as which a terminal passes on bytes that are none: no file takes them as text."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("holds bytes that are no characters")
    return text


Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_or_many),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class DataConfig(Section):
    """Which text to train on, and how it becomes tokens."""

    source: Texts = ("builtin:python",)
    """The text: files, folders, globs, `-` (standard input), `builtin:NAME` or `download:NAME`, joined in order."""
    tokenizer: Literal["char", "byte"] = "char"
    """`char`: one token for each distinct character of the text. `byte`: the 256 bytes of UTF-8, for any text."""
    val_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of the text, taken from its end, that is kept for validation. Unused with `val_source`."""
    val_source: Texts = ()
    """A text of its own for validation, in the same forms as `source`; then all of `source` trains. `[]`: none."""
    encoding: str = "utf-8"
    """Encoding of the text files, by Python's name for it."""

    @field_validator("source")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("names no text")
        return value


class ModelConfig(Section):
    """The shape of the network. The vocabulary size comes from the tokenizer."""

    family: Literal["classic", "modern"] = "modern"
    """Default of `bias` and all below it. `classic` is GPT-2; `modern` is what later work found to learn faster."""
    n_layer: int = Field(4, ge=1, le=1000)
    """Number of blocks."""
    n_head: int = Field(4, ge=1)
    """Number of attention heads in each block."""
    n_embd: int = Field(128, ge=1, le=100_000)
    """Width of the residual stream; a multiple of `n_head`."""
    context: int = Field(128, ge=1, le=1_000_000)
    """Longest stretch of text, in tokens, that a prediction can look back on."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Probability of zeroing an activation in training: embeddings, attention weights, both branch outputs."""
    bias: bool = False
    """Biases in the linear layers and layer norms."""
    position: Literal["learned", "sinusoidal", "rotary", "none"] = "rotary"
    """How the network knows where a token stands."""
    norm: Literal["layernorm", "rmsnorm"] = "rmsnorm"
    """Normalisation before each branch and before the logits."""
    activation: Literal["gelu", "gelu_exact", "relu2", "swiglu"] = "relu2"
    """Non-linearity of the MLP: GELU in GPT-2's tanh form, GELU itself (faster on a CPU), squared ReLU, or SwiGLU."""
    qk_norm: bool = True
    """RMS-normalise queries and keys in each head, with gains that all heads of a layer learn together."""
    zero_init: bool = True
    """Start the output projection of each branch at zero, so that every block begins as the identity."""

    @property
    def head_size(self) -> int:
        """The width of a head."""
        return self.n_embd // self.n_head


class OptimConfig(Section):
    """The optimizer and its schedule."""

    name: Literal["adamw", "muon"] = "muon"
    """`muon`: Muon, its updates scaled as in NorMuon, for the matrices of the blocks; AdamW for everything else."""
    lr: float = Field(3e-3, gt=0)
    """Peak learning rate of AdamW."""
    muon_lr: float = Field(0.02, gt=0)
    """Peak learning rate of Muon."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Momentum of Muon."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of AdamW's average of gradients."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """Decay of AdamW's average of squared gradients."""
    weight_decay: float = Field(0.1, ge=0)
    """Decoupled weight decay, on matrices only."""
    warmup: float = Field(0.02, ge=0, lt=1)
    """Share of the run over which the learning rate rises from zero."""
    schedule: Literal["cosine", "linear", "wsd", "constant"] = "linear"
    """How the learning rate falls after the warm-up; `wsd` is warm-up, stable, decay."""
    decay: float = Field(0.4, gt=0, le=1)
    """Last share of the run, over which `wsd` decays."""
    min_lr: float = Field(0.0, ge=0, le=1)
    """Final learning rate, as a share of the peak."""
    grad_clip: float = Field(1.0, ge=0)
    """Largest gradient norm; longer gradients are scaled down to it. 0 turns clipping off."""


class TrainConfig(Section):
    """The length and rhythm of a run. Set one of `steps`, `epochs` and `minutes`; the default is 2000 steps."""

    steps: int | None = Field(None, ge=1, le=10**12)
    """Length of the run in updates; 2000 where neither epochs nor minutes are set."""
    epochs: float | None = Field(None, gt=0, le=1_000_000)
    """Length of the run as a number of times the training text is read."""
    minutes: float | None = Field(None, gt=0, le=1_000_000)
    """Length of the run in minutes, evaluations and saves included. Such a run cannot be repeated bit for bit."""
    batch_size: int = Field(32, ge=1, le=1_000_000)
    """Sequences in one update."""
    micro_batch_size: int | None = Field(None, ge=1)
    """Sequences in one forward pass, by default all. Fewer need less memory; dropout draws other masks then."""
    seed: int = Field(1337, ge=0)
    """Seed of every random draw of the run: weights, batches, dropout."""
    log_every: int = Field(10, ge=1)
    """Steps between two points of the training curves."""
    eval_every: int = Field(250, ge=1)
    """Steps between two passes over the whole validation split."""
    save_every: int = Field(500, ge=1)
    """Steps between two checkpoints. One is also saved at each best validation loss, on Ctrl-C and at the end."""
    keep_last: int = Field(2, ge=1)
    """How many of the newest checkpoints stay on disk, besides the best one."""
    patience: int = Field(0, ge=0)
    """Stop after this many evaluations in a row without a new best validation loss. 0: never."""
    ema: float = Field(0.0, ge=0, lt=1)
    """Decay of a moving average of the weights, which is then what is evaluated and sampled. 0: off."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What happens when a loss or gradient is not finite: end the run, or leave that step's update out."""
    max_skipped: int = Field(20, ge=0)
    """How many updates a run may leave out before it ends all the same."""
    attention: bool = True
    """Write to TensorBoard at each evaluation what all heads look at, as a picture and as scores."""
    histograms: bool = False
    """Write histograms of weights and gradients to TensorBoard at each evaluation."""
    hparams: bool = False
    """Write the settings with the final loss to TensorBoard's hyper-parameter table."""

    @property
    def sequences_at_once(self) -> int:
        """How many sequences one forward pass takes."""
        return self.micro_batch_size or self.batch_size


class SampleConfig(Section):
    """How text is drawn: the sample at each evaluation, and the defaults of `minigpt sample`."""

    prompt: Annotated[str, AfterValidator(_whole_characters)] = "\n"
    """Text to continue."""
    length: int = Field(500, ge=1)
    """Characters (bytes with the byte tokenizer) to draw with `minigpt sample`."""
    preview: int = Field(200, ge=0)
    """Characters to draw at each evaluation. 0: none."""
    temperature: float = Field(0.8, ge=0)
    """Divides the logits: below 1 is more cautious, above 1 wilder, 0 always takes the likeliest."""
    top_k: int = Field(0, ge=0)
    """Keep only the k likeliest characters. 0: all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the likeliest characters that together reach this probability (nucleus sampling). 1: all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Drop characters below this share of the likeliest one's probability. 0: none."""
    repetition_penalty: float = Field(1.0, gt=0)
    """Above 1, makes characters that already stand in the context less likely. 1: off."""
    seed: int = Field(1337, ge=0)
    """Seed of the random draws; sample i of a seed is the same however many are drawn."""

    @property
    def has_own_prompt(self) -> bool:
        """Whether the prompt was chosen. The default is nobody's wish to the letter: some texts have no line end."""
        return self.prompt != SampleConfig().prompt


class RuntimeConfig(Section):
    """Where and how a run is computed. `auto` picks what is fast here and says what it picked."""

    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    """`auto`, `cpu`, `cuda`, `cuda:N` or `mps`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of products, `auto` the faster (`float32` on a GPU: TF32); weights and optimizer stay in float32."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the network with torch.compile: true, false, or where it pays for itself within the run."""
    kernels: Literal["auto", "torch", "cpu"] = "auto"
    """Attention, dropout, products, norms: PyTorch's (`torch`) or faster on a CPU (`cpu`; dropout in 1/256ths)."""
    threads: int | Literal["auto"] = "auto"
    """CPU threads."""

    @field_validator("threads")
    @classmethod
    def _sensible(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 1 <= value <= MOST_THREADS:
            raise ValueError(f"must be 1 to {MOST_THREADS}")
        return value


class RunConfig(Section):
    """Everything that decides a run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    sample: SampleConfig = SampleConfig()
    runtime: RuntimeConfig = RuntimeConfig()


FAMILIES: dict[str, dict[str, Any]] = {
    "modern": {},  # the defaults above
    "classic": {
        "bias": True,
        "position": "learned",
        "norm": "layernorm",
        "activation": "gelu",
        "qk_norm": False,
        "zero_init": False,
    },
}
MOST_THREADS = 1024
"""More than this torch's thread pools do not survive."""
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
        raise UserError(f"{shown(origin)}: expected sections such as 'model:', got {show(tree)[:60]}")
    values: dict[str, Any] = {}
    for section, entries in tree.items():
        if isinstance(entries, dict):
            found = {f"{section}.{key}": value for key, value in entries.items()}
        else:
            found = {str(section): entries} if entries is not None or section not in RunConfig.model_fields else {}
        if twice := values.keys() & found.keys():
            raise UserError(f"{shown(origin)}: {shown(min(twice))} is set twice")
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
            raise UserError(f"--set {shown(assignment)}: expected KEY=VALUE, for example --set model.n_layer=6")
        annotation = known[key].annotation if key in known else None
        is_list = text.startswith("[") and text.endswith("]")
        is_text = annotation is str or (annotation == tuple[str, ...] and not is_list)
        if type(None) in get_args(annotation) and not text.strip():  # as of a variable that is not set
            raise UserError(f"--set {shown(assignment)}: a value is missing; null unsets it")
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
    return f"{shown(key)}: unknown key" + (f", did you mean {near[0]}?" if near else "")


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
