"""minigpt's training step against the loop that a reader would write first, over the same model and text."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from minigpt.bench.sides import Built, Document, Round, Say, document, side, take_turns
from minigpt.config.schema import RunConfig
from minigpt.errors import UserError
from minigpt.model.device import Runtime, measure_matmul
from minigpt.model.gpt import GPT, eval_mode
from minigpt.model.kernels import TORCH
from minigpt.model.memory import peak_memory
from minigpt.model.size import flops_per_token
from minigpt.seeds import mix_seed
from minigpt.text.batches import batch_at
from minigpt.text.dataset import TokenDataset, load_dataset
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.loop import Training
from minigpt.training.setup import prepare_run

LONGEST = 3600.0
Known = tuple[str, Tokenizer]
"""Fingerprint and tokenizer of a text, with which another process reads it again, also when it was standard input."""


def run(
    text: Sequence[str], preset: str | None, assignments: Sequence[str], rounds: int, seconds: float, say: Say
) -> Document:
    """Measure steps in blocks of about `seconds`. Raises UserError as `minigpt train` would."""
    if not 0 <= seconds <= LONGEST:
        raise UserError(f"--seconds {seconds:g}: expected 0 to {LONGEST:g}")
    start = prepare_run(text, preset, [*assignments, "train.on_nonfinite=stop"])
    for notice in start.notices:
        say(notice)
    config, known = start.config, (start.data.fingerprint, start.data.tokenizer)
    if config.optim.name != "adamw":
        say("minigpt steps by Muon, the plain loop by AdamW, which takes less time; -s optim.name=adamw compares alike")
    with tempfile.TemporaryDirectory(prefix="minigpt-bench-") as folder, ExitStack() as open_sides:
        common = (config, known, seconds)
        ours = side("minigpt", f"{__name__}.ours", *common, Path(folder), say=say)
        first = open_sides.enter_context(ours)
        device, threads = first.facts["device"], first.facts["threads"]
        plain = open_sides.enter_context(
            side("plain loop", f"{__name__}.plain", *common, device, threads, say=say),
        )
        shape = f"{config.model.n_layer}/{config.model.n_head}/{config.model.n_embd}"
        what = f"{shape}, context {config.model.context}, batch {config.train.batch_size}"
        comparison = take_turns([first, plain], rounds, "characters_per_second", what=what)
    return document("train", config.model_dump(mode="json"), [comparison], device)


def ours(config: RunConfig, known: Known, seconds: float, folder: Path, say: Say) -> Built:
    """Build the side that steps as `minigpt train` does."""
    data = load_dataset(config.data, known)
    training = Training(config, folder, data)
    training.compile()

    def step() -> None:
        if training.length.is_reached(training.state.step, training.clock.total):
            training.state.step = 0  # the learning rate is not made for what comes after the end
            training.clock.restart()
        training.step()

    return _built(step, training.model, config, data, training.runtime, seconds)


def plain(config: RunConfig, known: Known, seconds: float, device: str, threads: int, say: Say) -> Built:
    """Build the side that steps in float32 with what PyTorch ships, on the same device with as many threads."""
    torch.set_num_threads(threads)
    data, runtime = load_dataset(config.data, known), Runtime(device, "float32", False, threads)
    torch.manual_seed(mix_seed(config.train.seed, "weights"))
    model = GPT(config.model, data.tokenizer.vocab_size).to(device)
    model.use_kernels(TORCH)
    return _built(plain_step(model, config, data, device), model, config, data, runtime, seconds)


def plain_step(model: GPT, config: RunConfig, data: TokenDataset, device: str) -> Callable[[], None]:
    """Return one step of the plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    context, batch = config.model.context, config.train.batch_size

    def step() -> None:
        starts = torch.randint(len(data.train) - context, (batch,)).tolist()
        windows = [torch.from_numpy(data.train[at : at + context + 1].astype(np.int64)) for at in starts]
        rows = torch.stack(windows).to(device)  # (B, T + 1)
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


def _built(
    step: Callable[[], None], model: GPT, config: RunConfig, data: TokenDataset, runtime: Runtime, seconds: float
) -> Built:
    facts = {
        "about": runtime.describe(),
        "device": runtime.device,
        "threads": runtime.threads,
        "dtype": runtime.dtype,
        "loss_at_start": _loss_at_start(model, config, data, runtime),
    }
    steps, tokens, flops = (
        _steps_within(seconds, step),
        config.train.batch_size * config.model.context,
        flops_per_token(model),
    )

    def measure() -> Round:
        matmul = measure_matmul(runtime)
        started = time.perf_counter()
        for _ in range(steps):
            step()
        _wait_for(runtime)
        elapsed = time.perf_counter() - started
        speed = steps * tokens / elapsed
        memory = peak_memory(runtime.device)
        return {
            "steps": steps,
            "seconds": elapsed,
            "ms_per_step": 1000 * elapsed / steps,
            "characters_per_second": speed * data.characters_per_token,
            "flops_per_second": speed * flops,
            "matmul_flops_per_second": matmul,
            "share_of_matmul": speed * flops / matmul,
            **({"memory_bytes": memory} if memory else {}),
        }

    return measure, facts


def _loss_at_start(model: GPT, config: RunConfig, data: TokenDataset, runtime: Runtime) -> float:
    """Return the fresh model's loss on the batch of step 0, which shows that both sides compute the same."""
    x, y = batch_at(data.train, config.model.context, config.train.batch_size, config.train.seed, 0)
    with torch.no_grad(), eval_mode(model), runtime.autocast():
        logits = model(x.to(runtime.device))
    return F.cross_entropy(logits.float().flatten(0, 1), y.to(runtime.device).flatten()).item()


def _steps_within(seconds: float, step: Callable[[], None]) -> int:
    """Warm up, and return how many steps take about `seconds`, at least one."""
    step()  # the first is slower: memory is taken, kernels are chosen
    started, done = time.perf_counter(), 0
    while not done or time.perf_counter() - started < seconds / 4:
        step()
        done += 1
    return max(1, round(seconds * done / (time.perf_counter() - started)))


def _wait_for(runtime: Runtime) -> None:
    if runtime.device != "cpu":
        torch.accelerator.synchronize(runtime.torch_device)
