"""The settings of a run, in frozen, typed sections.

Each field's docstring appears in `minigpt config settings`, the JSON schema and the reference of settings.
"""

import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator

MOST_THREADS = 1024
"""The maximum number of threads that torch supports without crashing."""
MOST_STEPS = 10**12
"""The maximum duration of a run, in steps. Times the largest batch, it fits into 64 bits."""


class Section(BaseModel):
    """A section of settings. It rejects unknown keys and values of another type: "6" is not a number."""

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
    def _check_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept 6.0 as an integer. Reject 2^63 and more: NumPy, torch and TensorBoard do not support such integers."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        takes_integers = any(int in (kind, *get_args(kind)) for kind in (annotation, *get_args(annotation)))
        if takes_integers and isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int | float) and 1 << 63 <= value < math.inf:
            raise ValueError("less than 2^63")
        return value


def one_or_many(value: Any) -> Any:
    """Return a string or a list as a tuple, and other values unchanged."""
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str) else value


Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(one_or_many),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class DataConfig(Section):
    """The text and its tokenizer."""

    source: Texts = Field(("builtin:stories",), min_length=1)
    """Training text: a file, folder or glob, `-` (standard input), `builtin:NAME`, `download:NAME` or a list."""
    tokenizer: Literal["char", "byte"] = "char"
    """`char`: a token is a character of the text. `byte`: a token is a byte of UTF-8, so any text can be encoded."""
    val_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of the text, taken from its end, for validation. Ignored if `val_source` is set."""
    val_source: Texts = ()
    """Validation text, specified like `source`. All of `source` is then training text. `[]`: none."""
    encoding: str = "utf-8"
    """Encoding of the text files, as a Python codec name."""
    unknown: Literal["error", "skip"] = "error"
    """Handling of characters outside the vocabulary, if the run starts from another run's weights and vocabulary."""


class ModelConfig(Section):
    """The architecture. The vocabulary size comes from the tokenizer."""

    family: Literal["classic", "modern", "rnn", "lstm", "gru"] = "modern"
    """`classic` is GPT-2. `modern` is a transformer that learns faster. `rnn`, `lstm` and `gru` are recurrent."""
    n_layer: int = Field(4, ge=1, le=1000)
    """Number of blocks, or of recurrent layers."""
    n_head: int = Field(4, ge=1)
    """Number of attention heads in each block. Recurrent families have none."""
    n_embd: int = Field(128, ge=1, le=100_000)
    """Embedding dimension, or width of a recurrent state. A multiple of `n_head`; with `rotary`, of twice `n_head`."""
    context: int = Field(128, ge=1, le=1_000_000)
    """Context length: the maximum number of tokens that a prediction sees in training and evaluation."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout probability in training, for embeddings, attention weights and the output of each sublayer."""
    bias: bool = False
    """Use biases in linear layers and layer norms."""
    position: Literal["learned", "sinusoidal", "rotary", "none"] = "rotary"
    """Positional encoding."""
    norm: Literal["layernorm", "rmsnorm"] = "rmsnorm"
    """Normalization before each sublayer and before the logits."""
    activation: Literal["gelu", "gelu_exact", "relu2", "swiglu"] = "relu2"
    """Activation of the MLP. `gelu`: tanh approximation. `gelu_exact`: faster on a CPU. `relu2`: squared ReLU."""
    qk_norm: bool = True
    """Apply RMSNorm to the queries and keys of each head. The heads of a layer share its gains."""
    zero_init: bool = True
    """Initialize the output projection of each sublayer to zero. Each block is then initially the identity."""

    @property
    def head_size(self) -> int:
        """Dimension of a head."""
        return self.n_embd // self.n_head

    @property
    def is_recurrent(self) -> bool:
        """True for `rnn`, `lstm` and `gru`."""
        return self.family in RECURRENT


ADAMW_RATE, NORMUON_RATE = 3e-3, 0.02
"""Default peak learning rate of each optimizer."""


class OptimConfig(Section):
    """The optimizer and the learning rate schedule."""

    name: Literal["adamw", "normuon"] = "normuon"
    """`normuon`: NorMuon for the matrices in the blocks, AdamW for the rest. `adamw`: AdamW for all parameters."""
    lr: float = Field(NORMUON_RATE, gt=0)
    """Peak learning rate. The default is that of `normuon`; `adamw` has 0.003."""
    embedding_lr: float = Field(ADAMW_RATE, gt=0)
    """With `normuon`: the peak learning rate of embeddings, gains and biases."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Momentum of NorMuon."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay rate of AdamW's moving average of gradients."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """Decay rate of AdamW's moving average of squared gradients."""
    weight_decay: float = Field(0.1, ge=0)
    """Decoupled weight decay, applied to matrices."""
    warmup: float = Field(0.02, ge=0, lt=1)
    """Fraction of the run over which the learning rate rises from zero to its peak."""
    schedule: Literal["cosine", "linear", "wsd", "constant"] = "linear"
    """Learning rate schedule after warmup. `wsd`: warmup, stable, decay."""
    decay: float = Field(0.4, gt=0, le=1)
    """Final fraction of the run, in which `wsd` decays the learning rate."""
    min_lr: float = Field(0.0, ge=0, le=1)
    """Final learning rate as a fraction of the peak."""
    grad_clip: float = Field(1.0, ge=0)
    """Maximum norm of the gradient. 0: no clipping."""


class TrainConfig(Section):
    """Duration, batches, evaluations and checkpoints. Set `steps` or `epochs`. Default: 2000 steps."""

    steps: int | None = Field(None, ge=1, le=MOST_STEPS)
    """Duration of the run in optimizer steps. 2000 if `epochs` is not set."""
    epochs: float | None = Field(None, gt=0, le=1_000_000)
    """Duration of the run in epochs (passes over the training text)."""
    batch_size: int = Field(32, ge=1, le=1_000_000)
    """Sequences per optimizer step."""
    micro_batch_size: int | None = Field(None, ge=1)
    """Sequences per forward pass (default: a whole shard). Fewer need less memory but change the dropout masks."""
    shards: int = Field(1, ge=1, le=1_000_000)
    """Parts of each batch, with their own dropout masks. With 8, a run can use 1, 2, 4 or 8 processes."""
    seed: int = Field(1337, ge=0)
    """Seed of the run: initial weights, batches and dropout."""
    log_every: int = Field(10, ge=1)
    """Steps between points on the training curves."""
    eval_every: Annotated[int, Field(ge=1, le=MOST_STEPS)] | Literal["auto"] = "auto"
    """Steps between evaluations on all validation text. `auto`: about 5 to 20 evaluations, ideally 5% of the time."""
    save_every: int = Field(500, ge=1)
    """Steps between checkpoints. A new best validation loss, Ctrl-C and the end of the run also save one."""
    keep_last: int = Field(2, ge=1)
    """Number of newest checkpoints to keep, besides the best checkpoint."""
    frames: int = Field(12, ge=0, le=1000)
    """Number of steps whose weights to keep for `minigpt inspect`. Large models and short runs keep fewer. 0: none."""
    patience: int = Field(0, ge=0)
    """Stop early after this many evaluations without a new best validation loss. 0: never."""

    @property
    def sequences_at_once(self) -> int:
        """Sequences per forward pass: a micro-batch, or the whole shard if that is smaller."""
        shard = self.batch_size // self.shards
        return min(self.micro_batch_size or shard, shard)


class SampleConfig(Section):
    """Sampling: the preview at each evaluation, and the defaults of `minigpt sample`."""

    prompt: str = Field("\n", max_length=100_000)  # a limit also makes pydantic reject lone surrogates
    """Text to continue."""
    length: int = Field(500, ge=1, le=1_000_000_000)
    """Tokens to generate with `minigpt sample`."""
    preview: int = Field(200, ge=0, le=1_000_000)
    """Tokens to generate at each evaluation. 0: none."""
    temperature: float = Field(0.8, ge=0)
    """Divisor of the logits. Lower is more conservative, higher is more random. 0: always the most likely token."""
    top_k: int = Field(0, ge=0)
    """Sample from the k most likely tokens. 0: all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the fewest most likely tokens whose probabilities reach this sum (nucleus sampling). 1: all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Drop tokens whose probability is below this fraction of the highest probability. 0: none."""
    seed: int = Field(1337, ge=0)
    """Seed for sampling. `minigpt sample` ignores this setting: it uses `--seed`, or else a random seed."""

    @property
    def has_own_prompt(self) -> bool:
        """True if the user set another prompt. Some texts do not contain the default, a newline."""
        return self.prompt != SampleConfig().prompt


class RuntimeConfig(Section):
    """Device and precision. `auto` chooses what is fast on this machine."""

    device: str = Field(
        "auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", examples=["auto", "cpu", "cuda", "cuda:1", "mps"]
    )
    """`auto`, `cpu`, `cuda`, `cuda:N` or `mps`. On GPUs, several processes use cuda:0, cuda:1, ..."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix multiplications (`float32` means TF32 on a GPU). Weights and optimizer state are float32."""
    compile: bool | Literal["auto"] = "auto"
    """Use torch.compile. `auto`: on a CPU, in long runs; on a GPU, CUDA graphs instead. `false`: neither."""
    kernels: Literal["auto", "torch", "cpu", "reference"] = "auto"
    """`cpu`: fast, with dropout in steps of 1/256. `torch`: PyTorch's. `reference`: attention as gpt.py writes it."""
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | Literal["auto"] = "auto"
    """Number of CPU threads of each process."""
    exact: bool = True
    """Add up gradients as one process does. `false`: one all-reduce, faster with many processes."""
    timeout: float = Field(600.0, gt=0, le=1_000_000)
    """Seconds to wait for another process before training ends."""


class RunConfig(Section):
    """All settings of a run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    sample: SampleConfig = SampleConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @property
    def tokens_per_step(self) -> int:
        """Number of tokens that a step trains on."""
        return self.train.batch_size * self.model.context


OFF = {"qk_norm": False, "zero_init": False}
NO_ATTENTION = {"n_head": 1, "position": "none", "norm": "rmsnorm", "activation": "relu2", **OFF}
"""The settings that recurrent families do not use, and the values that a configuration shows for them."""
RECURRENT = {"rnn": 0.04, "lstm": 0.08, "gru": 0.08}
"""The recurrent families, with their default of `optim.lr` with NorMuon, measured in docs/project/lab/recurrence.md."""
FAMILIES: dict[str, dict[str, Any]] = {
    "modern": {},  # the defaults above
    "classic": {"bias": True, "position": "learned", "norm": "layernorm", "activation": "gelu", **OFF},
    **{family: {"bias": True, **NO_ATTENTION} for family in RECURRENT},
}
"""The defaults of each family, which replace those of `ModelConfig`."""
