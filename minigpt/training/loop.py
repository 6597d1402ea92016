"""The training loop: step, log, evaluate, save.

Steps share no random state: the batch and dropout masks of a step depend only on the seed and the step. So a resumed
run ends with the same weights, and evaluating, sampling or saving never changes a weight.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from minigpt.config.resolve import flatten
from minigpt.config.schema import RunConfig
from minigpt.errors import DivergedError, escape
from minigpt.model.device import measure_matmul
from minigpt.model.gpt import eval_mode
from minigpt.model.load import Model
from minigpt.model.memory import peak_memory
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.metadata import Metadata, TrainState
from minigpt.storage.records import record_start
from minigpt.storage.runs import newest_step, repair
from minigpt.text.dataset import TokenDataset
from minigpt.training import snapshot
from minigpt.training.evaluate import evaluate
from minigpt.training.learner import Learner
from minigpt.training.metrics import Metrics
from minigpt.training.outcome import Outcome, is_out_of_patience, refuse_if_finished, settings_card, typed_errors
from minigpt.training.parallel import ONE, Processes
from minigpt.training.preparation import prepare_learner
from minigpt.training.schedule import Clock, eval_steps, frame_steps, lr_factor, run_steps
from minigpt.training.signals import Interrupts
from minigpt.training.snapshot import make_learner

MOST_UNREAD = {"cpu": 1}
"""Steps after which a process reads their losses at the latest, 100 on other devices: reading waits for a GPU."""
Probe = Callable[[int, Model, Metrics], None]
"""Looks at the model at each evaluation, as `probe(step, model, metrics)`. It must not change the model."""


def train(
    config: RunConfig,
    run: Path,
    data: TokenDataset,
    *,
    resume: Checkpoint | None = None,
    start: Checkpoint | None = None,
    on_loaded: Callable[[], None] = lambda: None,
    probes: Sequence[Probe] = (),
    command: Sequence[str] = (),
    processes: Processes = ONE,
) -> Outcome:
    """Train the model of `config` on `data` in the folder `run`, from the checkpoint `resume` or from step 0.

    At step 0 the weights are random, or `start`'s weights. A new run saves a checkpoint at once, so it can be resumed
    from its first moment. SIGINT, SIGTERM and SIGHUP end training after the current step, and save.

    Args:
        on_loaded: Called when training no longer needs the weights of `resume` and `start`. They take memory.
        command: Recorded in the run.
        processes: The connected processes. Each calls this function, and the main one logs.

    Raises:
        RunFinishedError: There is nothing left to do.
        TrainingError: The loss or gradient is not finite, or a write fails. Saved checkpoints are kept.
        InsufficientMemoryError: The model or the batch does not fit.
        LostProcessError: Another process has ended or hangs.
    """
    with typed_errors(config, run):
        processes.check_same({"text": data.fingerprint, **flatten(config)})
        learner = make_learner(config, data, resume, start=start, processes=processes)
        on_loaded()
        metrics = Metrics(run if processes.is_main else None, resume.metadata if resume else None)
        training = Training(config, run, data, resume, start=start, metrics=metrics, learner=learner)
        training.refuse_if_finished()
        if resume is None:
            training.save()  # before the files of metrics exist: a run without a checkpoint has nothing else
        with metrics:
            training.prepare(resume, command)
            return training.loop(probes)


class Training:
    """A run in memory: its learner, its place on disk, and its time.

    `state` holds everything but tensors that outlives the process.
    """

    def __init__(
        self,
        config: RunConfig,
        run: Path,
        data: TokenDataset,
        checkpoint: Checkpoint | None = None,
        *,
        start: Checkpoint | None = None,
        metrics: Metrics | None = None,
        learner: Learner | None = None,
    ) -> None:
        self.config, self.run, self.data = config, run, data
        self.learner = learner or make_learner(config, data, checkpoint, start=start)
        self.processes = self.learner.processes
        self.metrics = metrics or Metrics(None, checkpoint.metadata if checkpoint else None)
        self.state = replace(checkpoint.metadata.state) if checkpoint else TrainState()
        self.saved_step = self.state.step if checkpoint else None
        self.origin = checkpoint.metadata.origin if checkpoint else start.as_origin if start else None
        self.steps, self.clock = run_steps(config, len(data.train)), Clock(self.state.seconds)
        self.eval_steps = eval_steps(config, self.steps, len(data.validation))
        self.frame_steps = frame_steps(config, self.steps, self.learner.parameters, self.learner.flops_per_token)
        self.unread: list[Tensor] = []
        """The loss and gradient norm (2,) of the latest steps, on the device."""
        self.gradient_norm, self.matmul_speed = 0.0, math.nan
        self.logged_seconds, self.logged_tokens = 0.0, 0
        """Seconds of training and tokens at the last log line."""
        self.speed = ""

    def refuse_if_finished(self) -> None:
        """Complete a save that was interrupted. Raise RunFinishedError if nothing is left to do."""
        if self.processes.is_main and newest_step(self.run) == self.state.step:  # there is nothing to quarantine
            repair(self.run, self.state)
        refuse_if_finished(self.config, self.run, self.steps, self.state)

    def prepare(self, resume: Checkpoint | None, command: Sequence[str]) -> None:
        """Repair the folder, check that a batch fits, choose the loss, and record what computes it (collective)."""
        learner, message = self.learner, self.metrics.message
        for path in repair(self.run, self.state) if self.processes.is_main else ():
            message(f"quarantined a checkpoint of a later step: {path}")
        self.state = self.processes.share(self.state)  # repair may have reset the best loss
        learner.use(prepare_learner(learner, self.data.train, self.state.step, message))
        environment, self.matmul_speed = learner.environment(), measure_matmul(learner.runtime)
        changes = environment.changes(resume.metadata.runtime) if resume else []
        if resume and (before := resume.config.train.sequences_at_once) != self.config.train.sequences_at_once:
            changes.append(f"micro-batches of {self.config.train.sequences_at_once} instead of {before}")
        if changes and self.state.step:
            masks = " and in dropout masks" if self.config.model.dropout else ""
            message(f"from this step on, results may differ in the last digits{masks}: {', '.join(changes)}")
        if self.processes.is_main:
            size, speed = self.processes.size, self.matmul_speed
            record_start(self.run, self.state.step, command, environment, size, speed, self.steps)
        self.metrics.to_tensorboard("add_text", "settings", settings_card(self.config), self.state.step)

    def loop(self, probes: Sequence[Probe] = ()) -> Outcome:
        """Train until the last step, validation stops improving, or a signal arrives (collective)."""
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
                self.keep_frame()
                is_done = state.step >= self.steps
                if is_done or state.step % config.log_every == 0:
                    self.log()
                is_best = False
                if is_done or state.step % self.eval_steps == 0:
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
        self.unread.append(self.learner.step(self.data.train, state.step, self.lr_factor(state.step)))
        state.step += 1
        state.tokens_seen += self.config.tokens_per_step
        if len(self.unread) >= MOST_UNREAD.get(self.learner.runtime.device, 100):
            self.read()

    def read(self) -> None:
        """Read the losses and norms of the latest steps, and wait for them.

        Whatever uses the weights calls this first, because a step that is not finite has spoiled them.

        Raises:
            DivergedError: A loss or a norm is not finite. `state` is then that of the first such step. The weights are
                lost: the update has already been applied.
        """
        state, max_norm = self.state, self.config.optim.grad_clip or math.inf
        unread, self.unread = self.unread, []
        results = torch.stack(unread).tolist() if unread else []
        for step, (loss, norm) in enumerate(results, state.step - len(unread) + 1):
            self.gradient_norm = norm
            if not math.isfinite(loss + norm):
                problem = f"the loss is {loss:g}" if not math.isfinite(loss) else "the gradient is not finite"
                state.tokens_seen -= (state.step - step) * self.config.tokens_per_step
                state.step = step
                raise self.diverged(problem)
            state.clipped_count += norm > max_norm
            state.loss_sum += loss
            state.loss_count += 1

    def lr_factor(self, step: int) -> float:
        """Return the learning rate of the step after `step` steps as a fraction of its peak: that of its middle."""
        return lr_factor((step + 0.5) / self.steps, self.config.optim)

    @property
    def rates(self) -> dict[str, float]:
        """The learning rates of the last step by name."""
        factor = self.lr_factor(max(0, self.state.step - 1))
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
            "loss/train": state.train_loss,
            **{f"optimizer/{name}": rate for name, rate in self.rates.items()},
            "optimizer/gradient_norm": self.gradient_norm,
            "optimizer/clipped_share": state.clipped_count / state.loss_count,
            "speed/characters_per_second": characters_per_second,
            "speed/flops": flops,
            "speed/share_of_matmul": flops / (self.matmul_speed * self.processes.size),
            "time/seconds": self.clock.total,
            "memory/bytes": peak_memory(learner.runtime.device) or math.nan,
        }
        self.metrics.log(state.step, self.clock.total, scalars)
        state.loss_sum, state.loss_count, state.clipped_count = 0.0, 0, 0
        self.speed = f"{characters_per_second:,.0f} chars/s"
        self._show_progress()

    def evaluate(self, probes: Sequence[Probe] = ()) -> bool:
        """Measure the validation loss, call the probes, and return whether the loss is the best so far (collective)."""
        self.read()
        state, started, seconds = self.state, self.clock.session, self.clock.total
        self._show_progress("evaluating")
        model, data, autocast = self.learner.evaluated_model, self.data, self.learner.runtime.autocast
        result = evaluate(model, data.validation, data.tokenizer, autocast=autocast, processes=self.processes)
        if not math.isfinite(result.loss):
            raise self.diverged(f"the validation loss is {result.loss:g}")
        scalars = {"loss/validation": result.loss, "bits_per_character/validation": result.bits_per_character}
        self.metrics.log(state.step, seconds, scalars)
        is_warm = state.step > self.config.optim.warmup * self.steps
        is_best = state.observe(result.loss, is_trained=state.step > 0 or self.origin is not None, is_warm=is_warm)
        train_loss = f"loss {state.train_loss:.4f}, " if state.train_loss is not None else ""
        best = ", the best so far" if is_best and state.step else ""
        self.metrics.message(f"step {state.step}: {train_loss}validation {result.loss:.4f}{best}")
        with eval_mode(model):
            looking = probes if self.processes.is_main and not self.learner.is_fsdp else ()
            self.processes.together(lambda: [probe(state.step, model, self.metrics) for probe in looking])
        self._show_progress()
        self.clock.evaluating += self.clock.session - started
        return is_best

    def save(self) -> None:
        """Publish a checkpoint of this step, after its metrics are on disk (collective)."""
        self.saved_step = self.state.step
        self._publish()

    def keep_frame(self) -> None:
        """Publish the weights, if this is one of the steps of the film (collective)."""
        if self.state.step in self.frame_steps:
            self._publish(is_frame=True)

    def _publish(self, is_frame: bool = False) -> None:
        self.read()
        self.state.seconds = self.clock.total
        self.metrics.flush()
        metadata = Metadata(
            corpus=escape(" + ".join(self.config.data.source)),
            fingerprint=self.data.fingerprint,
            characters=self.data.characters_read,
            origin=self.origin,
            vocab_size=self.data.tokenizer.vocab_size,
            parameters=self.learner.parameters,
            runtime=self.learner.environment(),
            state=self.state,
            metrics_bytes=self.metrics.size,
            metrics_sha256=self.metrics.sha256,
        )
        learner, log = self.learner, self.metrics.message
        if not snapshot.save(learner, self.run, self.data.tokenizer, metadata, log, is_frame=is_frame):
            raise self.diverged("the weights or the optimizer state are not finite")

    def _show_progress(self, activity: str = "") -> None:
        is_trained = (
            self.state.best_loss is not None
        )  # the loss of step 0 beside that of training looks like overfitting
        losses = {"loss": self.state.train_loss, "val": self.state.validation_loss if is_trained else None}
        shown = [f"{name} {loss:.3f}" for name, loss in losses.items() if loss is not None]
        self.metrics.progress(self.state.step, self.steps, ", ".join(filter(None, (activity, *shown, self.speed))))

    def diverged(self, problem: str) -> DivergedError:
        """Return an error with the figures that help to find the cause of `problem`."""
        dtype = self.learner.runtime.dtype
        settings = ("runtime.dtype=float32",) if dtype != "float32" else ()
        figures = [f"{name.replace('_', ' ')} {rate:.2g}" for name, rate in self.rates.items()]
        figures += [f"gradient norm {self.gradient_norm:g}", dtype]
        problem = f"step {self.state.step}: {problem} ({', '.join(figures)})"
        return DivergedError(problem, self.run, newest_step(self.run), settings)
