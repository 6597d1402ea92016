"""The training loop: step, log, evaluate, save.

Steps share no random state: the batch and dropout masks of a step depend only on the seed and the step. So a resumed
run ends with the same weights, and evaluating, sampling or saving never changes a weight.
The exception is a run with a length in minutes: its learning rate follows the clock.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from minigpt.config.resolve import flatten
from minigpt.config.schema import RunConfig
from minigpt.errors import DivergedError, TrainingError, escape, reason
from minigpt.model.device import measure_matmul
from minigpt.model.gpt import eval_mode
from minigpt.model.load import Model
from minigpt.model.memory import as_memory_error, peak_memory
from minigpt.model.waiting import is_busy
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.metadata import Metadata, TrainState
from minigpt.storage.runs import newest_step, record_start, repair, step_folder
from minigpt.text.dataset import TokenDataset
from minigpt.training import snapshot
from minigpt.training.evaluate import evaluate
from minigpt.training.learner import Learner
from minigpt.training.metrics import Metrics
from minigpt.training.outcome import (
    Outcome,
    hparams,
    is_out_of_patience,
    refuse_if_finished,
    resume_settings,
    settings_card,
)
from minigpt.training.parallel import ONE, Processes, as_process_error
from minigpt.training.preparation import prepare
from minigpt.training.schedule import Clock, RunLength, lr_factor
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
    command: Sequence[str] = (),
    processes: Processes = ONE,
) -> Outcome:
    """Train the model of `config` on `data` in the folder `run`, from the checkpoint `resume` or from step 0.

    At step 0 the weights are random, or those of `start`. A new run saves a checkpoint at once, so it can be resumed
    from its first moment. SIGINT, SIGTERM and SIGHUP end training after the current step, and save.

    Args:
        command: Recorded in the run.
        processes: The connected processes. Each calls this function; the main one logs and saves.

    Raises:
        RunFinishedError: There is nothing left to do.
        TrainingError: The loss or gradient is not finite, or a write fails. Saved checkpoints are kept.
        InsufficientMemoryError: The model or the batch does not fit.
        LostProcessError: Another process has ended or hangs.
    """
    try:
        processes.check_same({"text": data.fingerprint, **flatten(config)})
        learner = make_learner(config, data, resume, start=start, processes=processes)
        state = resume.metadata.state if resume else TrainState()
        if processes.is_main and newest_step(run) == state.step:  # nothing to quarantine
            repair(run, state)  # remove what a killed save left, even if the run is finished
        refuse_if_finished(config, run, RunLength.of(config, len(data.train)), state)
        quarantined = repair(run, state) if processes.is_main else []  # newer checkpoints, which are damaged
        metrics = Metrics(run if processes.is_main else None, resume.metadata if resume else None)
        training = Training(config, run, data, resume, start=start, metrics=metrics, learner=learner)
        if resume is None:
            training.save()  # before the files of metrics exist: a run without a checkpoint has nothing else
        with metrics:
            for path in quarantined:
                metrics.message(f"quarantined a damaged checkpoint: {path}")
            learner.use(prepare(learner, data.train, state.step, metrics.message))
            if resume and (changes := training.changes(resume)):
                metrics.message(f"results may differ in the last digits from here on: {', '.join(changes)}")
            if processes.is_main:
                record_start(run, state.step, command, learner.environment(), processes.size)
            metrics.to_tensorboard("add_text", "settings", settings_card(config), state.step)
            return training.loop(probes)
    except (MemoryError, RuntimeError) as error:
        problem = as_memory_error(error, config) or as_process_error(error, run, newest_step(run))
        if problem is None:
            raise
        raise problem from error
    except IndexError as error:
        if max(data.train.max(), data.validation.max()) < data.tokenizer.vocab_size:
            raise
        raise TrainingError("the encoded text in the cache changed during training", run, newest_step(run)) from error
    except OSError as error:
        place = f"cannot write to {run}" if error.filename is None else escape(os.fsdecode(error.filename))
        raise TrainingError(f"{place}: {reason(error)}", run, newest_step(run)) from error


def make_learner(
    config: RunConfig,
    data: TokenDataset,
    checkpoint: Checkpoint | None = None,
    *,
    start: Checkpoint | None = None,
    processes: Processes = ONE,
) -> Learner:
    """Return the learner of a new run, which may have the weights of `start`, or of one that resumes (collective)."""
    length, vocab_size = RunLength.of(config, len(data.train)), data.tokenizer.vocab_size
    if checkpoint is None:
        return Learner(config, vocab_size, length, start=start, processes=processes)
    learner = Learner(config, vocab_size, length, saved=checkpoint.metadata.runtime, processes=processes)
    snapshot.restore(learner, checkpoint)
    return learner


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
        self.metrics = metrics or Metrics()
        self.state = replace(checkpoint.metadata.state) if checkpoint else TrainState()
        self.saved_step = self.state.step if checkpoint else None
        self.origin = checkpoint.metadata.origin if checkpoint else start.origin if start else None
        self.length, self.clock = RunLength.of(config, len(data.train)), Clock(self.state.seconds)
        every, tokens = config.train.eval_every, config.train.batch_size * config.model.context
        self.eval_steps = self.length.eval_steps(tokens, len(data.validation)) if every == "auto" else every
        """Steps between evaluations. None: they follow the clock."""
        self.lr_factor, self.gradient_norm, self.matmul_speed = 0.0, 0.0, math.nan
        self.logged_seconds, self.logged_tokens = 0.0, 0
        """Seconds of training and tokens at the last log line."""
        self.speed, self.was_busy = "", False

    def changes(self, checkpoint: Checkpoint) -> list[str]:
        """Return what differs from the checkpoint that this run resumes, and may change results from here on."""
        changes = self.learner.environment().changes(checkpoint.metadata.runtime)
        before, now = checkpoint.config.train.sequences_at_once, self.config.train.sequences_at_once
        return changes + ([f"micro-batches of {now} instead of {before}"] if before != now else [])

    def loop(self, probes: Sequence[Probe] = ()) -> Outcome:
        """Train until the length is reached, validation stops improving, or a signal arrives."""
        train, state = self.config.train, self.state
        with Interrupts(self.clock.skip, is_silent=not self.processes.is_main) as interrupts:
            self.matmul_speed = measure_matmul(self.learner.runtime)
            self.clock.restart()
            if state.step == 0:
                self.evaluate(probes)
                self.clock.restart()  # the first evaluation does not count
            self.logged_seconds, self.logged_tokens = self.clock.training, state.tokens_seen
            is_done, signal = False, None
            while not (is_done or (signal := self.processes.agree(interrupts.signal))):
                self.step()
                is_done = self.length.is_reached(state.step, self._main_clock(self.clock.total))
                if is_done or state.step % train.log_every == 0:
                    self.log()
                is_best = False
                if is_done or self._is_evaluation_due():
                    is_best = self.evaluate(probes)
                    is_done = is_done or is_out_of_patience(self.config, state)
                if is_done or is_best or state.step % train.save_every == 0:
                    self.save()
            interrupts.adopt(signal)
            if self.saved_step != state.step:
                self.save()
        if train.hparams and is_done:
            self.metrics.add_hparams(hparams(self.config), state)
        is_early = is_done and not self.length.is_reached(state.step, state.seconds)
        settings = resume_settings(self.config, self.length, state)
        return Outcome(state, step_folder(self.run, state.step), None if is_done else signal, is_early, settings)

    def step(self) -> None:
        """Make one update. Skip it if it is not finite and `train.on_nonfinite` is "skip".

        Raises:
            DivergedError: The loss or gradient is not finite. The weights are as before.
        """
        state = self.state
        progress = self.length.progress(state.step, self._main_clock(self.clock.total))
        self.lr_factor = lr_factor(progress, self.config.optim)
        loss, self.gradient_norm = self.learner.backward(self.data.train, state.step)
        state.step += 1
        state.tokens_seen += self.config.train.batch_size * self.config.model.context
        if not math.isfinite(loss + self.gradient_norm):
            self._skip_or_stop(loss)
            return
        state.clipped_count += self.learner.update(self.lr_factor, self.gradient_norm, state.step)
        state.loss_sum += loss
        state.loss_count += 1

    def _skip_or_stop(self, loss: float) -> None:
        """Count a step without an update, or raise DivergedError if no more may be skipped."""
        state, train = self.state, self.config.train
        problem = f"the loss is {loss:g}" if not math.isfinite(loss) else "the gradient is not finite"
        if train.on_nonfinite == "stop" or state.skipped >= train.max_skipped:
            raise self.diverged(problem + (f" after {state.skipped} skipped updates" if state.skipped else ""))
        state.skipped += 1
        self.metrics.message(f"step {state.step}: {problem}; skipped its update ({state.skipped} so far)")
        self.metrics.log(state.step, self.clock.total, {"optimizer/skipped": state.skipped})
        self.learner.optimizer.zero_grad()  # a histogram of these gradients in evaluate() would fail

    def log(self) -> None:
        """Write the mean loss and the throughput since the last log line."""
        state, learner = self.state, self.learner
        seconds, tokens = self.clock.training - self.logged_seconds, state.tokens_seen - self.logged_tokens
        self.logged_seconds, self.logged_tokens = self.clock.training, state.tokens_seen
        if not state.loss_count:  # every update since the last log line was skipped
            return
        tokens_per_second = tokens / max(1e-9, seconds)
        characters_per_second = tokens_per_second * self.data.characters_per_token
        flops = tokens_per_second * learner.flops_per_token
        state.train_loss = state.loss_sum / state.loss_count
        scalars = {
            "loss/train": state.train_loss,
            **{f"optimizer/{name}": peak * self.lr_factor for name, peak in learner.optimizer.peak_rates.items()},
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
        if is_busy() and not self.was_busy:  # say it once
            self.was_busy = True
            self.metrics.message("other programs keep the processor busy: training is slower, with the same result")
        self._show_progress()

    def evaluate(self, probes: Sequence[Probe] = ()) -> bool:
        """Measure the validation loss, call the probes, and return whether the loss is the lowest so far."""
        state, started, seconds = self.state, self.clock.session, self.clock.total
        self._show_progress("evaluating")
        model, autocast = self.learner.best_model, self.learner.runtime.autocast
        text = (self.data.validation, self.data.tokenizer)
        result = evaluate(model, *text, autocast=autocast, processes=self.processes)
        if not math.isfinite(result.loss):
            raise self.diverged(f"the validation loss is {result.loss:g}")
        scalars = {"loss/validation": result.loss, "bits_per_character/validation": result.bits_per_character}
        self.metrics.log(state.step, seconds, scalars)
        is_best = state.observe(result.loss)  # never at step 0
        train_loss = f"loss {state.train_loss:.4f}, " if state.train_loss is not None else ""
        best = ", the best so far" if is_best else ""
        self.metrics.message(f"step {state.step}: {train_loss}validation {result.loss:.4f}{best}")
        with eval_mode(model):
            looking = probes if self.processes.is_main and not self.learner.is_fsdp else ()
            self.processes.together(lambda: [probe(state.step, model, self.metrics) for probe in looking])
        if self.config.train.histograms and not self.learner.is_fsdp:
            self.metrics.add_histograms(self.learner.model, state.step)
        self._show_progress()
        self.clock.count_evaluation(self.clock.session - started)
        return is_best

    def _is_evaluation_due(self) -> bool:
        """Return whether to evaluate after the current step."""
        if self.eval_steps is not None:
            return self.state.step % self.eval_steps == 0
        pause = self._main_clock(self.clock.training - self.clock.evaluated_at)
        return pause >= self.length.eval_seconds(self._main_clock(self.clock.last_evaluation))

    def _main_clock(self, seconds: float) -> float:
        """Return the seconds of the main process, if the run follows the clock: all must decide the same."""
        return seconds if self.length.steps is not None else self.processes.share(seconds)

    def save(self) -> None:
        """Publish a checkpoint of this step, after its metrics are on disk (collective)."""
        self.state.seconds, self.saved_step = self.clock.total, self.state.step
        self.metrics.flush()
        metadata = Metadata(
            corpus=escape(" + ".join(self.config.data.source)),
            fingerprint=self.data.fingerprint,
            origin=self.origin,
            vocab_size=self.data.tokenizer.vocab_size,
            parameters=self.learner.parameters,
            runtime=self.learner.environment(),
            state=self.state,
            metrics_bytes=self.metrics.size,
            metrics_sha256=self.metrics.digest.hexdigest(),
        )
        log = self.metrics.message
        if not snapshot.save(self.learner, self.run, self.data.tokenizer, metadata, log):
            raise self.diverged("the weights or the optimizer state are not finite")

    def _show_progress(self, activity: str = "") -> None:
        losses = {"loss": self.state.train_loss, "val": self.state.validation_loss}
        parts = [activity, *(f"{name} {loss:.3f}" for name, loss in losses.items() if loss is not None), self.speed]
        position, total, unit = self.length.position(self.state.step, self.clock.total)
        self.metrics.progress(position, total, unit, ", ".join(filter(None, parts)))

    def diverged(self, problem: str) -> DivergedError:
        """Return an error with the figures that help to find the cause of `problem`."""
        settings = ["train.on_nonfinite=skip"] if self.config.train.on_nonfinite == "stop" else []
        settings += ["runtime.dtype=float32"] if self.learner.runtime.dtype != "float32" else []
        rates = [
            f"{name.replace('_', ' ')} {p * self.lr_factor:.2g}"
            for name, p in self.learner.optimizer.peak_rates.items()
        ]
        figures = f"{', '.join(rates)}, gradient norm {self.gradient_norm:g}, {self.learner.runtime.dtype}"
        problem = f"step {self.state.step}: {problem} ({figures})"
        return DivergedError(problem, self.run, newest_step(self.run), tuple(settings))
