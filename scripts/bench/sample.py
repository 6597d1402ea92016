"""Sampling with NumPy, compared with transformers and llama.cpp, where they are installed.

All sides continue a prompt of one token on the CPU, with weights in float32, at the same temperature, without filters.
NumPy uses one thread, as in `minigpt sample`. The others use as many as torch: see OMP_NUM_THREADS.
"""

import os
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from bench.report import Report, Round, report
from bench.sides import Log, Workload, measure_interleaved, start_side
from minigpt.config.resolve import ConfigSource, parse_overrides, resolve
from minigpt.config.schema import RunConfig, SampleConfig
from minigpt.config.shapes import parameter_shapes
from minigpt.errors import ConfigError, UserError
from minigpt.interop import gguf
from minigpt.model.memory import peak_memory
from minigpt.sampling.generate import generate_ids
from minigpt.sampling.load import load_engine
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import Checkpoint, load_checkpoint
from minigpt.storage.metadata import Environment, Metadata, TrainState
from minigpt.text.tokenizer import CharTokenizer

Ints = NDArray[np.int64]

VOCABULARY = 65
LENGTH, WARM_UP = 256, 16
"""Tokens to sample in each round (at most the context), and in the warm-up before the first round."""
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
OTHERS = {
    "transformers": ("transformers", "build_transformers"),
    "llama.cpp": ("llama_cpp", "build_llama"),
}
"""The package and the function for each other side."""


def run(
    trained: str | None, assignments: Sequence[str], num_samples: int, length: int | None, rounds: int, log: Log
) -> Report:
    """Measure how fast `trained`, or a new model, generates `num_samples` samples of `length` tokens at once.

    Raises:
        ConfigError: A setting cannot be changed here, or `length` exceeds the context.
    """
    overrides = parse_overrides(assignments)
    for key in overrides[1]:
        if trained or not key.startswith("model."):
            allowed = "" if trained else "; use model.*"
            raise ConfigError(f"{key} has no effect on this benchmark{allowed}")
    checkpoint = load_checkpoint(trained) if trained else new_checkpoint(resolve(DEFAULTS, overrides).config)
    model = checkpoint.config.model
    length = length or min(LENGTH, model.context)
    if length > model.context and not model.is_recurrent:  # beyond the context, the sides would use different windows
        raise ConfigError(f"a length of {length} exceeds the context of {model.context} (model.context)")
    common = (checkpoint, length, num_samples)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for the processes that start now, as in `minigpt sample`
    with ExitStack() as stack:
        sides = [stack.enter_context(start_side("minigpt", f"{__name__}.build_minigpt", *common, log=log))]
        if model.is_recurrent:
            log(f"the other programs have no {model.family}, so there is no comparison")
        for name, (package, build) in {} if model.is_recurrent else OTHERS.items():
            try:
                if not find_spec(package):
                    raise UserError(f"{name} is not installed")
                sides.append(stack.enter_context(start_side(name, f"{__name__}.{build}", *common, log=log)))
            except UserError as error:
                log(f"{error}, so the comparison does not include {name}")
        shape = f"{model.n_layer}/{model.n_head}/{model.n_embd}, {model.family}"
        what = f"{shape}, {num_samples} x {length} characters"
        comparison = measure_interleaved(sides, rounds, "characters_per_second", what=what)
        settings = {"run": trained, "model": model.model_dump(), "length": length, "num_samples": num_samples}
        return report("sample", settings, [comparison], "cpu")


def new_checkpoint(config: RunConfig) -> Checkpoint:
    """Return a model with random weights."""
    rng = np.random.default_rng(mix_seed(config.train.seed, "weights"))
    shapes = parameter_shapes(config.model, VOCABULARY)
    weights = {name: rng.normal(0, 0.02, shape).astype("f4") for name, shape in shapes.items()}
    tokenizer = CharTokenizer(map(chr, range(32, 32 + VOCABULARY)))
    metadata = Metadata(
        corpus="",
        fingerprint="",
        vocab_size=VOCABULARY,
        parameters=sum(array.size for array in weights.values()),
        runtime=Environment(device="cpu", dtype="float32", compile=False, threads=1),
        state=TrainState(),
    )
    return Checkpoint(config, tokenizer, metadata, weights, Path())


def build_minigpt(checkpoint: Checkpoint, length: int, num_samples: int, log: Log) -> Workload:
    """Build the side that samples as `minigpt sample` does."""
    engine = load_engine(checkpoint)
    prompt = np.zeros(1, dtype=np.int64)

    def sample(length: int, seed: int) -> Ints:
        settings = SampleConfig(length=length, seed=seed)
        return np.stack([ids for ids, _ in generate_ids(engine, prompt, settings, num_samples=num_samples)], axis=1)

    return _measurement(sample, length), {"about": f"NumPy {np.__version__}, float32, with its KV cache"}


def build_transformers(checkpoint: Checkpoint, length: int, num_samples: int, log: Log) -> Workload:
    """Build the side that samples from a GPT-2 of the same shape in transformers, with its KV cache."""
    import torch

    warnings.simplefilter("ignore")
    transformers = import_module("transformers")
    transformers.logging.set_verbosity_error()
    shape = checkpoint.config.model
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=checkpoint.tokenizer.vocab_size,
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


def build_llama(checkpoint: Checkpoint, length: int, num_samples: int, log: Log) -> Workload:
    """Build the side that samples from the model's export to GGUF with llama-cpp-python, with its KV cache.

    Raises:
        NoCounterpartError: llama.cpp has no architecture for the model.
        UserError: There is more than one sample.
    """
    import torch

    if num_samples > 1:
        raise UserError("llama-cpp-python generates one sample at a time")
    llama_cpp = import_module("llama_cpp")
    threads = torch.get_num_threads()
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()):  # it warns that it rounds the context up to 256
        gguf.write(checkpoint, Path(folder))
        model = llama_cpp.Llama(
            f"{folder}/{gguf.FILE}", n_ctx=0, n_threads=threads, n_threads_batch=threads, use_mmap=False, verbose=False
        )

    def sample(length: int, seed: int) -> Ints:
        model.set_seed(seed)
        tokens = model.generate([0], top_k=0, top_p=1.0, min_p=0.0, temp=SampleConfig().temperature)
        return np.fromiter(islice(tokens, length), np.int64, length)[None]

    about = f"llama-cpp-python {llama_cpp.__version__}, the exported model, float32, with its KV cache in float16"
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
