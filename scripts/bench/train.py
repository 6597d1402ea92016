"""minigpt's training step, compared with a plain PyTorch loop on the same model and text."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from bench.report import Report, Round, report
from bench.sides import Log, Workload, measure_interleaved, start_side
from minigpt.config.schema import RunConfig
from minigpt.errors import UserError
from minigpt.model.device import Runtime, measure_matmul
from minigpt.model.gpt import eval_mode, use_kernels
from minigpt.model.kernels import TORCH
from minigpt.model.load import Model, build_model
from minigpt.model.memory import peak_memory
from minigpt.model.size import training_flops
from minigpt.seeds import mix_seed
from minigpt.text.batches import batch_at
from minigpt.text.dataset import TokenDataset, reload_dataset
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.compilation import choose_loss
from minigpt.training.learner import make_learner
from minigpt.training.loop import Training
from minigpt.training.setup import prepare_run

MAX_SECONDS = 3600.0
Known = tuple[str, Tokenizer]
"""Fingerprint and tokenizer of a text. With them, another process loads it from the cache, even standard input."""


def run(
    text: Sequence[str], preset: str | None, assignments: Sequence[str], rounds: int, seconds: float, log: Log
) -> Report:
    """Measure training steps in rounds of about `seconds`.

    Raises:
        UserError: `seconds` is out of range, or `minigpt train` would raise it.
    """
    if not 0 <= seconds <= MAX_SECONDS:
        raise UserError(f"cannot measure rounds of {seconds:g} seconds: expected 0 to {MAX_SECONDS:g}")
    start = prepare_run(text, preset, assignments)
    for notice in start.notices:
        log(notice)
    config, known = start.config, (start.data.fingerprint, start.data.tokenizer)
    if config.optim.name != "adamw":
        log(
            "minigpt uses NorMuon, and the plain loop uses AdamW, which is faster; with optim.name=adamw both use AdamW"
        )
    with tempfile.TemporaryDirectory(prefix="minigpt-bench-") as folder, ExitStack() as stack:
        common = (config, known, seconds)
        minigpt = stack.enter_context(
            start_side("minigpt", f"{__name__}.build_minigpt", *common, Path(folder), log=log)
        )
        device, threads = minigpt.facts["device"], minigpt.facts["threads"]
        plain = stack.enter_context(
            start_side("plain loop", f"{__name__}.build_plain", *common, device, threads, log=log)
        )
        shape = f"{config.model.n_layer}/{config.model.n_head}/{config.model.n_embd}"
        what = f"{shape}, context {config.model.context}, batch {config.train.batch_size}"
        comparison = measure_interleaved([minigpt, plain], rounds, "characters_per_second", what=what)
    return report("train", config.model_dump(mode="json"), [comparison], device)


def build_minigpt(config: RunConfig, known: Known, seconds: float, folder: Path, log: Log) -> Workload:
    """Build the side that trains as `minigpt train` does."""
    data = reload_dataset(config.data, *known)
    learner = make_learner(config, data)
    training = Training(config, folder, data, learner)
    learner.use_loss(choose_loss(learner, data.train, log))

    def step() -> None:
        if training.state.step >= training.steps:
            training.state.step = 0  # the learning rate is undefined past the end of the run
            training.clock.restart()
        training.step()

    return _workload(step, learner.model, config, data, learner.runtime, seconds)


def build_plain(config: RunConfig, known: Known, seconds: float, device: str, threads: int, log: Log) -> Workload:
    """Build the side that trains in float32 with torch's own kernels, with the same device and thread count."""
    torch.set_num_threads(threads)
    data, runtime = reload_dataset(config.data, *known), Runtime(device, "float32", False, threads)
    torch.manual_seed(mix_seed(config.train.seed, "weights"))
    model = build_model(config.model, data.tokenizer.vocab_size).to(device)
    use_kernels(model, TORCH)
    return _workload(plain_step(model, config, data, device), model, config, data, runtime, seconds)


def plain_step(model: Model, config: RunConfig, data: TokenDataset, device: str) -> Callable[[], None]:
    """Return a function that runs one step of the plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    context, batch_size = config.model.context, config.train.batch_size

    def step() -> None:
        starts = torch.randint(len(data.train) - context, (batch_size,)).tolist()
        windows = [torch.from_numpy(data.train[i : i + context + 1].astype(np.int64)) for i in starts]
        batch = torch.stack(windows).to(device)  # (B, T + 1)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


def _workload(
    step: Callable[[], None], model: Model, config: RunConfig, data: TokenDataset, runtime: Runtime, seconds: float
) -> Workload:
    facts = {
        "about": runtime.describe(),
        "device": runtime.device,
        "threads": runtime.threads,
        "dtype": runtime.dtype,
        "loss_at_start": _initial_loss(model, config, data, runtime),
    }
    steps = _steps_within(seconds, step)
    tokens, flops = (
        config.train.batch_size * config.model.context,
        training_flops(config.model, data.tokenizer.vocab_size),
    )

    def measure() -> Round:
        matmul = measure_matmul(runtime)
        started = time.perf_counter()
        for _ in range(steps):
            step()
        if runtime.device != "cpu":
            torch.accelerator.synchronize(runtime.torch_device)
        elapsed = time.perf_counter() - started
        tokens_per_second = steps * tokens / elapsed
        memory = peak_memory(runtime.device)
        return {
            "steps": steps,
            "seconds": elapsed,
            "ms_per_step": 1000 * elapsed / steps,
            "characters_per_second": tokens_per_second * data.characters_per_token,
            "flops_per_second": tokens_per_second * flops,
            "matmul_flops_per_second": matmul,
            "share_of_matmul": tokens_per_second * flops / matmul,
            **({"memory_bytes": memory} if memory else {}),
        }

    return measure, facts


def _initial_loss(model: Model, config: RunConfig, data: TokenDataset, runtime: Runtime) -> float:
    """Return the loss of the new model on the batch of step 0. It shows that both sides compute the same thing."""
    x, y = batch_at(data.train, config.model.context, config.train.batch_size, config.train.seed, 0)
    with torch.no_grad(), eval_mode(model), runtime.autocast():
        logits = model(x.to(runtime.device))
    return F.cross_entropy(logits.float().flatten(0, 1), y.to(runtime.device).flatten()).item()


def _steps_within(seconds: float, step: Callable[[], None]) -> int:
    """Warm up, and return the number of steps that take about `seconds`, at least one."""
    step()  # the first step allocates memory and selects kernels
    started, done = time.perf_counter(), 0
    while not done or time.perf_counter() - started < seconds / 4:
        step()
        done += 1
    return max(1, round(seconds * done / (time.perf_counter() - started)))
