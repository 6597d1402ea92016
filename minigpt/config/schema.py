"""The settings of a run: frozen, typed sections.

The docstring under each field is its help text, its description in the JSON schema and its line in
docs/configuration.md.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)


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
