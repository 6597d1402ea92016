"""Sampling with the key-value cache against sampling without it, and against transformers where that is installed."""

import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from minigpt.bench.sides import Built, Document, Round, Say, document, side, take_turns
from minigpt.config import Layer, RunConfig, SampleConfig, parse_overrides, resolve
from minigpt.errors import UserError
from minigpt.kernels import store_by_columns
from minigpt.memory import peak_memory
from minigpt.model import GPT, count_parameters
from minigpt.runtime import choose, sampling_threads
from minigpt.sample import generate_ids
from minigpt.seeds import mix_seed

VOCABULARY = 65
WARM_UP = 16
"""Characters drawn before anything is measured."""
DEFAULTS: Layer = (
    "bench sample",
    {
        "model.family": "classic",
        "model.n_layer": 6,
        "model.n_head": 6,
        "model.n_embd": 384,
        "model.context": 256,
        "runtime.device": "cpu",
        "runtime.dtype": "float32",
        "runtime.compile": False,
    },
)
"""As `minigpt sample` computes; random weights, which are as fast as others."""


def run(assignments: Sequence[str], streams: int, length: int, rounds: int, say: Say) -> Document:
    """Measure blocks of `length` characters in each of `streams` streams. Raises UserError."""
    overrides = parse_overrides(assignments)
    for key in overrides[1]:
        if not key.startswith("model.") and key not in ("runtime.device", "runtime.threads"):
            raise UserError(f"--set {key}: here only model.*, runtime.device and runtime.threads can be set")
    config = resolve(DEFAULTS, overrides).config
    if length > config.model.context:  # there each side would go on in its own way
        raise UserError(f"--length {length} exceeds the context; --set model.context={length} makes that longer")
    common = (config, length, streams)
    with ExitStack() as open_sides:
        sides = [
            open_sides.enter_context(side(name, f"{__name__}.ours", *common, cached, say=say))
            for name, cached in (("minigpt", True), ("minigpt without its cache", False))
        ]
        if find_spec("transformers"):
            threads = torch.get_num_threads() if config.runtime.threads == "auto" else config.runtime.threads
            where = (sides[0].facts["device"], threads)
            theirs = side("transformers", f"{__name__}.theirs", *common, *where, say=say)
            sides.append(open_sides.enter_context(theirs))
        else:
            say("transformers is not installed: compared without it")
        shape = f"{config.model.n_layer}/{config.model.n_head}/{config.model.n_embd}, {config.model.family}"
        what = f"{shape}, {length} characters in {streams} {'streams' if streams > 1 else 'stream'}"
        comparison = take_turns(sides, rounds, "characters_per_second", what=what)
        settings = {"model": config.model.model_dump(), "length": length, "streams": streams}
        return document("sample", settings, [comparison], sides[0].facts["device"])


def ours(config: RunConfig, length: int, streams: int, cached: bool, say: Say) -> Built:
    """Build a side that draws as `minigpt sample` does."""
    torch.manual_seed(mix_seed(config.train.seed, "weights"))
    model = GPT(config.model, VOCABULARY).eval()
    store_by_columns(model)
    threads = config.runtime.threads
    if threads == "auto":
        threads = sampling_threads(count_parameters(config.model, VOCABULARY), streams)
    runtime = choose(config.runtime.model_copy(update={"threads": threads}))
    model.to(runtime.device)
    prompt = torch.zeros(1, dtype=torch.long)

    def draw(length: int) -> Tensor:
        settings = SampleConfig(length=length)
        steps = generate_ids(model, prompt, settings, num_samples=streams, cache=cached)
        return torch.stack([drawn for drawn, _ in steps], dim=1)  # (B, length)

    about = f"{runtime.describe()}, {'with its cache' if cached else 'each step computed afresh'}"
    facts = {"about": about, "device": runtime.device, "threads": runtime.threads}
    return _measuring(draw, length), facts


def theirs(config: RunConfig, length: int, streams: int, device: str, threads: int, say: Say) -> Built:
    """Build the side of transformers: a GPT-2 of the same shape, with its cache."""
    warnings.simplefilter("ignore")
    transformers = import_module("transformers")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    shape = config.model
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=shape.context,
            n_layer=shape.n_layer,
            n_head=shape.n_head,
            n_embd=shape.n_embd,
            bos_token_id=0,
            eos_token_id=None,
        )
    ).to(device)
    prompt = torch.zeros(streams, 1, dtype=torch.long, device=device)

    def draw(length: int) -> Tensor:
        tokens: Tensor = model.eval().generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=SampleConfig().temperature,
            top_k=0,
            min_new_tokens=length,
            max_new_tokens=length,
            pad_token_id=0,
        )
        return tokens[:, 1:]

    about = f"transformers {transformers.__version__}, GPT-2 of this shape, float32, with its cache"
    return _measuring(draw, length), {"about": about}


def _measuring(draw: Callable[[int], Tensor], length: int) -> Callable[[], Round]:
    """Return the function that measures a block of drawing `length` characters, with all warmed up."""
    draw(min(length, WARM_UP))

    def measure() -> Round:
        started = time.perf_counter()
        drawn = draw(length).cpu()
        elapsed = time.perf_counter() - started
        memory = peak_memory()
        return {
            "seconds": elapsed,
            "ms_per_character": 1000 * elapsed / drawn.numel(),
            "characters_per_second": drawn.numel() / elapsed,
            "characters": drawn.numel(),
            "crc32": zlib.crc32(drawn.contiguous().numpy().tobytes()),
            **({"memory_bytes": memory} if memory else {}),
        }

    return measure
