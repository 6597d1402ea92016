"""The training loop: step, log, evaluate, save.

Steps share no random state: the seed and the number of a step decide its batch and its dropout masks. So a run that
resumes in the same environment ends with bitwise identical weights, and evaluating, sampling or saving changes none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from minigpt.config.resolve import decisive, flatten
from minigpt.config.schema import RunConfig
from minigpt.errors import DivergedError, TextMismatchError, escape
from minigpt.model.gpt import eval_mode
from minigpt.model.load import Model, numpy_engine
from minigpt.model.memory import peak_memory
from minigpt.sampling.generate import generate
from minigpt.storage.checkpoint import Checkpoint, Snapshot, save_checkpoint, save_frame
from minigpt.storage.metadata import Metadata, Origin, TrainState
from minigpt.storage.records import record_start
from minigpt.storage.runs import newest_step, repair
from minigpt.text.dataset import TokenDataset
from minigpt.training.compilation import choose_loss
from minigpt.training.evaluate import evaluate
from minigpt.training.learner import Learner, make_learner
from minigpt.training.metrics import Metrics
from minigpt.training.outcome import Outcome, finished, is_out_of_patience, typed_errors
from minigpt.training.parallel import ONE, Processes
from minigpt.training.schedule import Clock, eval_steps, frame_steps, lr_factor, run_steps
from minigpt.training.signals import Interrupts

Probe = Callable[[int, Model, Metrics], None]
"""Looks at the model at each evaluation, as `probe(step, model, metrics)`. It must not change the model."""


def train(
    config: RunConfig,
    run: Path,
    data: TokenDataset,
    *,
    resume: Checkpoint | None = None,
    start: Checkpoint | None = None,
    probes: Sequence[Probe] = (),
    about: Mapping[str, Any] = MappingProxyType({}),
    printed: Sequence[str] = (),
    processes: Processes = ONE,
) -> Outcome:
    """Train the model of `config` on `data` in the folder `run`, from the checkpoint `resume` or from step 0.

    At step 0 the weights are random, or `start`'s weights. A new run saves a checkpoint at once, so it can be
    resumed. After SIGINT, SIGTERM or SIGHUP, training saves a checkpoint of the current step and ends.

    Args:
        about: Facts to record about this start of the run, such as its command.
        printed: Lines that the user has seen already, for `log.txt`.
        processes: The connected processes. Each calls this function, and the main one logs.

    Raises:
        RunFinishedError: There is nothing left to do.
        TrainingError: The loss or gradient is not finite, or a write fails. Saved checkpoints are kept.
        InsufficientMemoryError: The model or the batch does not fit.
        LostProcessError: Another process has exited or stopped responding.
    """
    with typed_errors(config, run):
        config = processes.share(config)
        processes.together(partial(check_text, data, processes.share(data.fingerprint)))
        state = replace(resume.metadata.state) if resume else TrainState()
        if refusal := finished(config, run, run_steps(config, len(data.train)), state):
            if processes.is_main and newest_step(run) == state.step:
                repair(run, state)  # complete a save that was interrupted; there is nothing to quarantine
            raise refusal
        learner = make_learner(config, data, resume, start=start, processes=processes)
        quarantined = repair(run, state) if processes.is_main else []  # a refused resume moves nothing
        state = processes.share(state)  # repair may have reset the best loss
        origin = resume.metadata.origin if resume else start.as_origin if start else None
        metrics = Metrics(
            run if processes.is_main else None, state.step, settings=decisive(flatten(config)), printed=printed
        )
        training = Training(config, run, data, learner, state, origin=origin, metrics=metrics)
        training.prepare(resume, quarantined)
        if resume is None:
            training.save()  # before the files of metrics exist: a run without a checkpoint has nothing else
        with metrics:
            if processes.is_main:
                facts = {**about, "steps": training.steps, "processes": processes.size}
                record_start(run, state.step, learner.environment(), facts)
            return training.loop(probes)


def check_text(data: TokenDataset, fingerprint: str) -> None:
    """Check that the processes of a run read the same text. Raises TextMismatchError."""
    if data.fingerprint != fingerprint:
        raise TextMismatchError("this process has another text than process 0; give all processes the same files")


class Training:
    """A run in memory: its learner, its folder, and its time.

    `state` holds what changes during training and outlives the process, except tensors.
    """

    def __init__(
        self,
        config: RunConfig,
        run: Path,
        data: TokenDataset,
        learner: Learner | None = None,
        state: TrainState | None = None,
        *,
        origin: Origin | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.config, self.run, self.data = config, run, data
        self.learner = learner = learner or make_learner(config, data)
        self.processes = learner.processes
        self.metrics = metrics or Metrics()
        self.state, self.origin = state or TrainState(), origin
        self.saved_step = self.state.step if self.state.step else None
        self.steps, self.clock = run_steps(config, len(data.train)), Clock(self.state.seconds)
        self.eval_every = eval_steps(config, self.steps, len(data.validation))
        self.frame_steps = frame_steps(config, self.steps, self.learner.parameter_count, self.learner.flops_per_token)
        self.unread: list[Tensor] = []
        """The unread loss and gradient norm (2,) of each step, on the device."""
        self.most_unread = 1 if learner.runtime.device == "cpu" else 100
        """Steps after which their losses are read at the latest: reading waits for a GPU."""
        self.gradient_norm = 0.0
        self.logged_seconds, self.logged_tokens = 0.0, 0
        """Seconds of training and tokens at the last log line."""
        self.speed = ""

    def prepare(self, resume: Checkpoint | None = None, quarantined: Sequence[Path] = ()) -> None:
        """Report what runs where, check that a batch fits, and choose the loss (collective)."""
        learner, message, step = self.learner, self.metrics.message, self.state.step
        for path in quarantined:
            message(f"quarantined a checkpoint of a later step: {path}")
        several = f"{self.processes.size} processes, each on " if self.processes.size > 1 else ""
        message(f"{learner.parameter_count:,} parameters on {several}{learner.runtime.describe()}")
        if step:
            message(f"resuming at step {step}")
        if not self.processes.is_exact:
            message("runtime.exact=false: rounding depends on the number of processes")
        if warning := learner.check_fit():
            message(warning)
        learner.use_loss(choose_loss(learner, self.data.train, message))
        changes = learner.environment().changes(resume.metadata.runtime) if resume else []
        if resume and (before := resume.config.train.sequences_at_once) != self.config.train.sequences_at_once:
            changes.append(f"micro-batches of {self.config.train.sequences_at_once} instead of {before}")
        if changes and step:
            masks = " and in dropout masks" if self.config.model.dropout else ""
            message(f"from this step on, results may differ in the last digits{masks}: {', '.join(changes)}")

    def loop(self, probes: Sequence[Probe] = ()) -> Outcome:
        """Train until the last step, or until validation stops improving or a signal arrives (collective)."""
        config, state = self.config.train, self.state
        with Interrupts(is_silent=not self.processes.is_main) as interrupts:
            self.clock.restart()
            if state.step == 0:
                self.evaluate(probes)
                self.keep_frame()
                self.clock.restart()  # the first evaluation does not count
            self.logged_seconds, self.logged_tokens = self.clock.training, state.tokens_seen
            is_done, signal = False, None
            while not (is_done or (signal := self.processes.agree(interrupts.signal))):
                self.step()
                self._show_progress()
                self.keep_frame()
                is_done = state.step >= self.steps
                if is_done or state.step % config.log_every == 0:
                    self.log()
                is_best = False
                if is_done or state.step % self.eval_every == 0:
                    is_best = self.evaluate(probes)
                    is_done = is_done or is_out_of_patience(self.config, state)
                if is_done or is_best or state.step % config.save_every == 0:
                    self.save()
            interrupts.adopt(signal)
            if self.saved_step != state.step:
                self.save()
        is_early = is_done and state.step < self.steps
        return Outcome(state, None if is_done else signal, is_early)

    def step(self) -> None:
        """Make one step, and `read` its loss or leave that to a later step (collective).

        Raises DivergedError if `read` does.
        """
        state = self.state
        self.unread.append(self.learner.step(self.data.train, state.step, self.lr_factor_at(state.step)))
        state.step += 1
        state.tokens_seen += self.config.tokens_per_step
        if len(self.unread) >= self.most_unread:
            self.read()

    def read(self) -> None:
        """Read the losses and norms of the latest steps, and wait for them.

        Evaluating and saving call this first: a loss or norm that is not finite has spoiled the weights.

        Raises:
            DivergedError: A loss or a norm is not finite. `state` is then that of the first such step.
        """
        state = self.state
        unread, self.unread = self.unread, []
        results = torch.stack(unread).tolist() if unread else []
        for step, (loss, norm) in enumerate(results, state.step - len(unread) + 1):
            self.gradient_norm = norm
            if not math.isfinite(loss + norm):
                problem = f"the loss is {loss:g}" if not math.isfinite(loss) else "the gradient is not finite"
                state.tokens_seen -= (state.step - step) * self.config.tokens_per_step
                state.step = step
                raise self.diverged(problem)
            state.loss_sum += loss
            state.loss_count += 1

    def lr_factor_at(self, step: int) -> float:
        """Return the learning rate at the middle of the step after `step` steps, as a fraction of its peak."""
        return lr_factor((step + 0.5) / self.steps, self.config.optim)

    @property
    def rates(self) -> dict[str, float]:
        """The learning rates of the last step by name."""
        factor = self.lr_factor_at(max(0, self.state.step - 1))
        return {name: peak * factor for name, peak in self.learner.optimizer.peak_rates.items()}

    def log(self) -> None:
        """Write the mean loss and the throughput since the last log line."""
        self.read()
        state, learner = self.state, self.learner
        seconds, tokens = self.clock.training - self.logged_seconds, state.tokens_seen - self.logged_tokens
        self.logged_seconds, self.logged_tokens = self.clock.training, state.tokens_seen
        tokens_per_second = tokens / max(1e-9, seconds)
        characters_per_second = tokens_per_second * self.data.characters_per_token
        flops = tokens_per_second * learner.flops_per_token
        state.train_loss = state.loss_sum / state.loss_count
        scalars = {
            "loss": state.train_loss,
            **{f"optimizer/{name}": rate for name, rate in self.rates.items()},
            "optimizer/gradient_norm": self.gradient_norm,
            "speed/characters_per_second": characters_per_second,
            "speed/flops": flops,
            "time/seconds": self.clock.total,
            "speed/memory_bytes": peak_memory(learner.runtime.device) or math.nan,
        }
        self.metrics.log("train", state.step, self.clock.total, scalars)
        state.loss_sum, state.loss_count = 0.0, 0
        self.speed = f"{tqdm.format_sizeof(characters_per_second)}/s"

    def evaluate(self, probes: Sequence[Probe] = ()) -> bool:
        """Measure the validation loss, call the probes, and return whether the loss is the best so far (collective)."""
        self.read()
        state, started, seconds = self.state, self.clock.session, self.clock.total
        self._show_progress("evaluating")
        model, data, autocast = self.learner.model, self.data, self.learner.runtime.autocast
        result = evaluate(model, data.validation, data.tokenizer, autocast=autocast, processes=self.processes)
        if not math.isfinite(result.loss):
            raise self.diverged(f"the validation loss is {result.loss:g}")
        scalars = {"loss": result.loss, "loss/bits_per_character": result.bits_per_character}
        self.metrics.log("validation", state.step, seconds, scalars)
        is_warm = state.step > self.config.optim.warmup * self.steps
        is_best = state.observe(result.loss, is_trained=state.step > 0 or self.origin is not None, is_warm=is_warm)
        train_loss = f"loss {state.train_loss:.4f}, " if state.train_loss is not None else ""
        best = ", the best so far" if is_best and state.step else ""
        self.metrics.message(f"step {state.step}: {train_loss}validation {result.loss:.4f}{best}")
        if self.config.sample.preview and not self.metrics.is_silent:
            self.preview()
        with eval_mode(model):
            looking = probes if self.processes.is_main else ()
            self.processes.together(lambda: [probe(state.step, model, self.metrics) for probe in looking])
        self.clock.evaluating += self.clock.session - started
        return is_best

    def preview(self) -> None:
        """Report how the model continues the same prompt at each evaluation."""
        settings = self.config.sample
        short = settings.model_copy(update={"length": settings.preview})
        engine = numpy_engine(self.learner.model)
        chars = generate(engine, self.data.tokenizer, settings.prompt, short, unknown="replace")
        self.metrics.sample(self.state.step, settings.prompt + "".join(char.text for char in chars))

    def save(self) -> None:
        """Publish a checkpoint of this step, after its metrics are on disk (collective)."""
        self.saved_step = self.state.step
        self._write(save_checkpoint, self.learner.snapshot)

    def keep_frame(self) -> None:
        """Publish the weights, if this is one of the steps of the film (collective)."""
        if self.state.step in self.frame_steps:
            self._write(save_frame, partial(self.learner.snapshot, with_optimizer=False))

    def _write(self, write: Callable[..., object], snapshot: Callable[[], Snapshot]) -> None:
        """Let the main process `write` a snapshot. If `write` raises, all processes end (collective)."""
        self.read()
        self.state.seconds = self.clock.total
        self.metrics.flush()
        taken = snapshot() if self.processes.is_main else None
        if not self.processes.share(taken is not None and taken.is_finite):
            raise self.diverged("the weights or the optimizer state are not finite")
        metadata = Metadata(
            corpus=escape(" + ".join(self.config.data.source)),
            fingerprint=self.data.fingerprint,
            characters=self.data.characters_read,
            origin=self.origin,
            vocab_size=self.data.tokenizer.vocab_size,
            parameters=self.learner.parameter_count,
            runtime=self.learner.environment(),
            state=self.state,
        )
        contents = (self.config, self.data.tokenizer, metadata, taken, self.metrics.message)
        self.processes.together(lambda: write(self.run, *contents) if taken else None)

    def _show_progress(self, activity: str = "") -> None:
        # The validation loss of step 0 beside a training loss would look like overfitting.
        is_trained = self.state.best_loss is not None
        losses = {"loss": self.state.train_loss, "val": self.state.validation_loss if is_trained else None}
        self.metrics.progress(self.state.step, self.steps, losses, activity or self.speed)

    def diverged(self, problem: str) -> DivergedError:
        """Return an error with the figures that help to find the cause of `problem`."""
        dtype = self.learner.runtime.dtype
        settings = ("runtime.dtype=float32",) if dtype != "float32" else ()
        figures = [f"{name.replace('_', ' ')} {rate:.2g}" for name, rate in self.rates.items()]
        figures += [f"gradient norm {self.gradient_norm:g}", dtype]
        problem = f"step {self.state.step}: {problem} ({', '.join(figures)})"
        return DivergedError(problem, self.run, newest_step(self.run), settings)
