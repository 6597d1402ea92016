"""Sampling with and without the KV cache, compared with transformers if it is installed."""

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
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT
from minigpt.model.load import load_model
from minigpt.model.memory import peak_memory
from minigpt.sampling.generate import generate_ids, settle
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import load_checkpoint

VOCABULARY = 65
LENGTH, WARM_UP = 256, 16
"""Characters to sample in a round, if the context allows, and before the first round."""
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
"""The settings of a new model. Its weights are random, which does not change its speed."""


def run(
    trained: str | None, assignments: Sequence[str], num_samples: int, length: int | None, rounds: int, log: Log
) -> Report:
    """Measure `num_samples` samples of `length` characters at once, from the run `trained` or a new model.

    Raises:
        ConfigError: If a setting cannot be changed here, or `length` exceeds the context.
    """
    overrides = parse_overrides(assignments)
    for key in overrides[1]:
        if key not in ("runtime.device", "runtime.threads") and (trained or not key.startswith("model.")):
            allowed = "runtime.device and runtime.threads"
            raise ConfigError(
                f"{key} has no effect on this benchmark; use {allowed}{'' if trained else ', or model.*'}"
            )
    config, vocab_size = resolve(DEFAULTS, overrides).config, VOCABULARY
    variants = [("minigpt", True), ("minigpt without its cache", False)]
    loaded = load_checkpoint(trained) if trained else None
    if loaded:
        runtime = config.runtime.model_copy(update={"kernels": loaded.config.runtime.kernels})
        config = config.model_copy(update={"model": loaded.config.model, "runtime": runtime})
        vocab_size = loaded.tokenizer.vocab_size
    context = config.model.context
    length = length or min(LENGTH, context)
    if length > context:  # beyond the context, the sides would use different windows
        raise ConfigError(f"a length of {length} exceeds the context of {context} (model.context)")
    common = (config, length, num_samples)
    with ExitStack() as stack:
        sides = [
            stack.enter_context(
                start_side(name, f"{__name__}.build_minigpt", *common, loaded and loaded.path, cached, log=log)
            )
            for name, cached in variants
        ]
        if find_spec("transformers"):
            threads = torch.get_num_threads() if config.runtime.threads == "auto" else config.runtime.threads
            where = (sides[0].facts["device"], threads)
            theirs = start_side("transformers", f"{__name__}.build_transformers", *common, vocab_size, *where, log=log)
            sides.append(stack.enter_context(theirs))
        else:
            log("transformers is not installed, so the comparison does not include it")
        shape = f"{config.model.n_layer}/{config.model.n_head}/{config.model.n_embd}, {config.model.family}"
        what = f"{shape}, {num_samples} x {length} characters"
        comparison = measure_interleaved(sides, rounds, "characters_per_second", what=what)
        settings = {"run": trained, "model": config.model.model_dump(), "length": length, "num_samples": num_samples}
        return report("sample", settings, [comparison], sides[0].facts["device"])


def build_minigpt(
    config: RunConfig, length: int, num_samples: int, path: Path | None, cached: bool, log: Log
) -> Workload:
    """Build a side that samples like `minigpt sample`, from the checkpoint at `path` or from a new model."""
    loaded = load_checkpoint(path) if path else None
    torch.manual_seed(mix_seed(config.train.seed, "weights"))
    model = load_model(loaded) if loaded else GPT(config.model, VOCABULARY).eval()
    runtime = settle(model, config.runtime, num_samples)
    prompt = torch.zeros(1, dtype=torch.long)
    how = "with its KV cache" if cached else "without a cache"

    def sample(length: int, seed: int) -> Tensor:
        settings = SampleConfig(length=length, seed=seed)
        steps = generate_ids(model, prompt, settings, num_samples=num_samples, cache=cached)
        return torch.stack([ids for ids, _ in steps], dim=1)  # (B, length)

    facts = {"about": f"{runtime.describe()}, {how}", "device": runtime.device, "threads": runtime.threads}
    return _measurement(sample, length), facts


def build_transformers(
    config: RunConfig, length: int, num_samples: int, vocab_size: int, device: str, threads: int, log: Log
) -> Workload:
    """Build the side with a GPT-2 of the same shape in transformers, with its KV cache."""
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
    prompt = torch.zeros(num_samples, 1, dtype=torch.long, device=device)

    def sample(length: int, seed: int) -> Tensor:
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

    about = f"transformers {transformers.__version__}, GPT-2 of this shape, float32, with its KV cache"
    return _measurement(sample, length), {"about": about}


def _measurement(sample: Callable[[int, int], Tensor], length: int) -> Callable[[], Round]:
    """Warm up, and return a function that measures one round. Each round has its own seed."""
    sample(min(length, WARM_UP), 0)
    seeds = count(1)

    def measure() -> Round:
        started = time.perf_counter()
        sampled = sample(length, next(seeds)).cpu()
        elapsed = time.perf_counter() - started
        memory = peak_memory()
        return {
            "seconds": elapsed,
            "ms_per_character": 1000 * elapsed / sampled.numel(),
            "characters_per_second": sampled.numel() / elapsed,
            "characters": sampled.numel(),
            "crc32": zlib.crc32(sampled.contiguous().numpy().tobytes()),
            **({"memory_bytes": memory} if memory else {}),
        }

    return measure
