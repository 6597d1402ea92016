"""Sampling with guesses ahead, with the key-value cache alone, without it, and by transformers where installed."""

import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from minigpt.bench.report import Report, Round, report
from minigpt.bench.sides import Log, Workload, measure_interleaved, start_side
from minigpt.config.resolve import ConfigSource, parse_overrides, resolve
from minigpt.config.schema import RunConfig, SampleConfig
from minigpt.errors import UserError
from minigpt.model.gpt import GPT
from minigpt.model.load import load_model
from minigpt.model.memory import peak_memory
from minigpt.sampling.generate import generate_ids, settle
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import load_checkpoint

VOCABULARY = 65
LENGTH, WARM_UP = 256, 16
"""Characters drawn in a block, where the context is as long, and before anything is measured."""
DEFAULTS: ConfigSource = (
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
"""As `minigpt sample` computes; random weights, which are as fast as others where nothing is guessed."""


def run(
    trained: str | None, assignments: Sequence[str], streams: int, length: int | None, rounds: int, log: Log
) -> Report:
    """Measure blocks of `length` characters in each of `streams` streams, by the run `trained` if one is named.

    Raises UserError.
    """
    overrides = parse_overrides(assignments)
    for key in overrides[1]:
        if key not in ("runtime.device", "runtime.threads") and (trained or not key.startswith("model.")):
            own = "" if trained else "model.*, "
            raise UserError(f"--set {key}: here only {own}runtime.device and runtime.threads can be set")
    config, vocab_size = resolve(DEFAULTS, overrides).config, VOCABULARY
    ways = [("minigpt", True), ("minigpt without its cache", False)]
    loaded = load_checkpoint(trained) if trained else None
    if loaded:
        runtime = config.runtime.model_copy(update={"kernels": loaded.config.runtime.kernels})
        config = config.model_copy(update={"model": loaded.config.model, "runtime": runtime})
        vocab_size = loaded.tokenizer.vocab_size
    context = config.model.context
    length = length or min(LENGTH, context)
    if length > context:  # there each side would go on in its own way
        longer = f" of {context}" if loaded else f"; --set model.context={length} makes that longer"
        raise UserError(f"--length {length} exceeds the context{longer}")
    common = (config, length, streams)
    with ExitStack() as stack:
        sides = [
            stack.enter_context(
                start_side(name, f"{__name__}.build_minigpt", *common, loaded and loaded.path, *way, log=log)
            )
            for name, *way in ways
        ]
        if find_spec("transformers"):
            threads = torch.get_num_threads() if config.runtime.threads == "auto" else config.runtime.threads
            where = (sides[0].facts["device"], threads)
            theirs = start_side("transformers", f"{__name__}.build_transformers", *common, vocab_size, *where, log=log)
            sides.append(stack.enter_context(theirs))
        else:
            log("transformers is not installed: compared without it")
        shape = f"{config.model.n_layer}/{config.model.n_head}/{config.model.n_embd}, {config.model.family}"
        what = f"{shape}, {length} characters in {streams} {'streams' if streams > 1 else 'stream'}"
        comparison = measure_interleaved(sides, rounds, "characters_per_second", what=what)
        settings = {"run": trained, "model": config.model.model_dump(), "length": length, "streams": streams}
        return report("sample", settings, [comparison], sides[0].facts["device"])


def build_minigpt(config: RunConfig, length: int, streams: int, path: Path | None, cached: bool, log: Log) -> Workload:
    """Build a side that draws as `minigpt sample` does, by the checkpoint at `path` or a new model."""
    loaded = load_checkpoint(path) if path else None
    torch.manual_seed(mix_seed(config.train.seed, "weights"))
    model = load_model(loaded) if loaded else GPT(config.model, VOCABULARY).eval()
    runtime = settle(model, config.runtime, streams)
    prompt = torch.zeros(1, dtype=torch.long)
    how = "with its cache" if cached else "each step computed afresh"

    def draw(length: int, seed: int) -> Tensor:
        settings = SampleConfig(length=length, seed=seed)
        steps = generate_ids(model, prompt, settings, num_samples=streams, cache=cached)
        return torch.stack([drawn for drawn, _ in steps], dim=1)  # (B, length)

    facts = {"about": f"{runtime.describe()}, {how}", "device": runtime.device, "threads": runtime.threads}
    return _measuring(draw, length), facts


def build_transformers(
    config: RunConfig, length: int, streams: int, vocab_size: int, device: str, threads: int, log: Log
) -> Workload:
    """Build the side of transformers: a GPT-2 of the same shape, with its cache."""
    warnings.simplefilter("ignore")
    transformers = import_module("transformers")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    shape = config.model
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocab_size,
            n_positions=shape.context,
            n_layer=shape.n_layer,
            n_head=shape.n_head,
            n_embd=shape.n_embd,
            bos_token_id=0,
            eos_token_id=None,
        )
    ).to(device)
    prompt = torch.zeros(streams, 1, dtype=torch.long, device=device)

    def draw(length: int, seed: int) -> Tensor:
        torch.manual_seed(seed)
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


def _measuring(draw: Callable[[int, int], Tensor], length: int) -> Callable[[], Round]:
    """Return the function that measures a block of drawing `length` characters, each of another seed, once warm."""
    draw(min(length, WARM_UP), 0)
    seeds = count(1)

    def measure() -> Round:
        started = time.perf_counter()
        drawn = draw(length, next(seeds)).cpu()
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
