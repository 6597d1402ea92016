"""Sampling with NumPy, compared with transformers if it is installed."""

import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minigpt.bench.report import Report, Round, report
from minigpt.bench.sides import Log, Workload, measure_interleaved, start_side
from minigpt.config.resolve import ConfigSource, parse_overrides, resolve
from minigpt.config.schema import RunConfig, SampleConfig
from minigpt.config.shapes import parameter_shapes
from minigpt.errors import ConfigError
from minigpt.model.memory import peak_memory
from minigpt.sampling.generate import generate_ids
from minigpt.sampling.load import build_engine, load_engine
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import load_checkpoint

Ints = NDArray[np.int64]

VOCABULARY = 65
LENGTH, WARM_UP = 256, 16
"""Characters to sample in each round (at most the context), and in the warm-up before the first round."""
DEFAULTS: ConfigSource = (
    "bench sample",
    {
        "model.family": "classic",
        "model.n_layer": 6,
        "model.n_head": 6,
        "model.n_embd": 384,
        "model.context": 256,
    },
)
"""The settings of a new model. Its random weights do not affect the speed."""


def run(
    trained: str | None, assignments: Sequence[str], num_samples: int, length: int | None, rounds: int, log: Log
) -> Report:
    """Measure how fast `trained`, or a new model, generates `num_samples` samples of `length` characters at once.

    Raises:
        ConfigError: A setting cannot be changed here, or `length` exceeds the context.
    """
    overrides = parse_overrides(assignments)
    for key in overrides[1]:
        if trained or not key.startswith("model."):
            allowed = "" if trained else "; use model.*"
            raise ConfigError(f"{key} has no effect on this benchmark{allowed}")
    config, vocab_size = resolve(DEFAULTS, overrides).config, VOCABULARY
    loaded = load_checkpoint(trained) if trained else None
    if loaded:
        config, vocab_size = config.model_copy(update={"model": loaded.config.model}), loaded.tokenizer.vocab_size
    context = config.model.context
    length = length or min(LENGTH, context)
    if length > context and not config.model.is_recurrent:  # beyond the context, the sides would use different windows
        raise ConfigError(f"a length of {length} exceeds the context of {context} (model.context)")
    common = (config, length, num_samples)
    with ExitStack() as stack:
        ours = start_side("minigpt", f"{__name__}.build_minigpt", *common, loaded and loaded.path, log=log)
        sides = [stack.enter_context(ours)]
        if config.model.is_recurrent:
            log(f"transformers has no {config.model.family}, so the comparison does not include it")
        elif find_spec("transformers"):
            theirs = start_side("transformers", f"{__name__}.build_transformers", *common, vocab_size, log=log)
            sides.append(stack.enter_context(theirs))
        else:
            log("transformers is not installed, so the comparison does not include it")
        shape = f"{config.model.n_layer}/{config.model.n_head}/{config.model.n_embd}, {config.model.family}"
        what = f"{shape}, {num_samples} x {length} characters"
        comparison = measure_interleaved(sides, rounds, "characters_per_second", what=what)
        settings = {"run": trained, "model": config.model.model_dump(), "length": length, "num_samples": num_samples}
        return report("sample", settings, [comparison], "cpu")


def build_minigpt(config: RunConfig, length: int, num_samples: int, path: Path | None, log: Log) -> Workload:
    """Build the side that samples as `minigpt sample` does, from the checkpoint at `path` or with random weights."""
    if path:
        engine = load_engine(load_checkpoint(path))
    else:
        rng = np.random.default_rng(mix_seed(config.train.seed, "weights"))
        shapes = parameter_shapes(config.model, VOCABULARY)
        weights = {name: rng.normal(0, 0.02, shape).astype("f4") for name, shape in shapes.items()}
        engine = build_engine(config.model, weights)
    prompt = np.zeros(1, dtype=np.int64)

    def sample(length: int, seed: int) -> Ints:
        settings = SampleConfig(length=length, seed=seed)
        return np.stack([ids for ids, _ in generate_ids(engine, prompt, settings, num_samples=num_samples)], axis=1)

    return _measurement(sample, length), {"about": f"NumPy {np.__version__}, float32, with its KV cache"}


def build_transformers(config: RunConfig, length: int, num_samples: int, vocab_size: int, log: Log) -> Workload:
    """Build the side that samples from a GPT-2 of the same shape in transformers, with its KV cache."""
    import torch

    warnings.simplefilter("ignore")
    transformers = import_module("transformers")
    transformers.logging.set_verbosity_error()
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
    )
    prompt = torch.zeros(num_samples, 1, dtype=torch.long)

    def sample(length: int, seed: int) -> Ints:
        torch.manual_seed(seed)
        tokens = model.eval().generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=SampleConfig().temperature,
            top_k=0,
            min_new_tokens=length,
            max_new_tokens=length,
            pad_token_id=0,
        )
        sampled: Ints = tokens[:, 1:].numpy()
        return sampled

    about = f"transformers {transformers.__version__}, GPT-2 of this shape, float32, with its KV cache"
    return _measurement(sample, length), {"about": about}


def _measurement(sample: Callable[[int, int], Ints], length: int) -> Callable[[], Round]:
    """Warm up, and return a function that measures one round. Each round has its own seed."""
    sample(min(length, WARM_UP), 0)
    seeds = count(1)

    def measure() -> Round:
        started = time.perf_counter()
        sampled = sample(length, next(seeds))
        elapsed = time.perf_counter() - started
        memory = peak_memory()
        return {
            "seconds": elapsed,
            "ms_per_character": 1000 * elapsed / sampled.size,
            "characters_per_second": sampled.size / elapsed,
            "characters": sampled.size,
            "crc32": zlib.crc32(sampled.tobytes()),
            **({"memory_bytes": memory} if memory else {}),
        }

    return measure
