"""The training loop: one step, and when to log, evaluate, save and stop.

Nothing here draws from a random state that lasts: the batch of a step and its dropout masks are functions
of the seed and the step. So a run that is stopped anywhere and resumed ends in the same weights, and
evaluating, sampling or saving more often changes nothing.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config import resolve as configuration
from minigpt.config.schema import RunConfig
from minigpt.errors import UserError, escape, reason
from minigpt.model.device import Runtime, choose, measure_matmul, memory_bytes, pick_device, reseed, seconds_waited
from minigpt.model.gpt import GPT, count_parameters, eval_mode, flops_per_token
from minigpt.model.memory import advising_fewer, check_batch, check_training, is_out_of_memory
from minigpt.seeds import mix_seed
from minigpt.storage import checkpoint
from minigpt.storage.metadata import FORMAT, CorpusInfo, Environment, Metadata, TrainState
from minigpt.storage.runs import CHECKPOINTS, as_argument, checkpoint_steps, step_folder
from minigpt.text.batches import batch_at
from minigpt.text.dataset import TokenDataset
from minigpt.training.compilation import compile_loss, compiled_time
from minigpt.training.evaluate import evaluate
from minigpt.training.metrics import Metrics
from minigpt.training.optim import Optimizer
from minigpt.training.schedule import lr_factor, run_steps
from minigpt.training.signals import Interrupts

Probe = Callable[[int, GPT, Metrics], None]
"""Looks at the model at each evaluation, as `probe(step, model, metrics)`; it must not change it."""

SPIKE = 1.5
"""How many times the mean before a step's loss must be to be noted."""
BUSY, BUSY_AFTER = 0.3, 10.0
"""From which share of the time waited for a core fewer threads are advised, and after how many seconds at first."""
COMPILED_AT_MOST = 1.1
"""How many times as long as an uncompiled step a compiled one may seem to take, for such measurements are noisy."""
RAW = "weights/"
"""Prefix under which a checkpoint keeps the raw weights where the model's are an average of them."""


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended."""

    state: TrainState
    runtime: Runtime
    checkpoint: Path
    signal: int | None
    """The signal that stopped it, if one did."""
    stopped_early: bool
    """Whether it ended before its length, because the validation loss stopped falling."""
    evaluation_share: float
    """Share of this call's time in the loop that went into evaluations."""
    longer: str
    """The `--set` options with which `--resume` goes on for longer."""


def train(
    config: RunConfig, run: Path, data: TokenDataset, *, resume: Path | None = None, probes: Sequence[Probe] = ()
) -> Outcome:
    """Train the model of `config` on `data` in the run folder, from the start or from the checkpoint `resume`.

    SIGINT, SIGTERM and SIGHUP end it after the step in progress, with that state saved. Raises UserError when the
    loss or gradient is not finite, memory does not suffice, or the disk refuses; what was saved before stays.
    """
    try:
        return Training(config, run, data, resume).loop(probes)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError("out of memory; try a smaller model") from error
    except OSError as error:
        is_elsewhere = isinstance(error.filename, str) and not Path(error.filename).is_relative_to(run)
        what = escape(error.filename) if is_elsewhere else f"cannot write to {run}"
        raise UserError(f"{what}: {reason(error)}; {checkpoint.what_is_kept(run)}") from error


class Clock:
    """Time spent in the loop, over all the resumptions of a run, and how much of it went into evaluations."""

    def __init__(self, before: float) -> None:
        self.before = before
        self.restart()

    def restart(self) -> None:
        """Begin this session now: what was done in it until here was no training."""
        self.began, self.evaluating, self.waited = time.perf_counter(), 0.0, seconds_waited()

    @property
    def session(self) -> float:
        """Seconds since this process began to train."""
        return time.perf_counter() - self.began

    @property
    def total(self) -> float:
        """Seconds in the loop since the run began."""
        return self.before + self.session

    @property
    def training(self) -> float:
        """Seconds of this session without its evaluations."""
        return self.session - self.evaluating

    @property
    def waiting_share(self) -> float:
        """Share of this session in which the thread that trains waited for a core that something else had."""
        return (seconds_waited() - self.waited) / max(1e-9, self.session)


class Training:
    """A run in memory. What must outlast a resumption and is no tensor lives in `state`."""

    metrics: Metrics
    """Where the loop writes its curves and lines; open while it runs."""

    def __init__(self, config: RunConfig, run: Path, data: TokenDataset, resume: Path | None = None) -> None:
        self.config, self.run, self.data = config, run, data
        loaded = checkpoint.load_checkpoint(resume) if resume else None
        saved = loaded.meta.runtime if loaded else None
        self.parameters = count_parameters(config.model, data.tokenizer.vocab_size)
        check_training(self.parameters, pick_device(config.runtime.device, saved), has_average=config.train.ema > 0)
        torch.manual_seed(mix_seed(config.train.seed, "weights"))
        self.model = GPT(config.model, data.tokenizer.vocab_size)
        self.flops_per_token = flops_per_token(self.model)
        self.steps = run_steps(config, len(data.train))
        self.seconds = 60 * (config.train.minutes or 0)
        """The length of a run that is given in minutes, which has no number of steps."""
        self.state = loaded.meta.state if loaded else TrainState()
        self.saved_step = self.state.step if loaded else None
        self.resumed_with: tuple[Environment, int] | None = None
        tokens = (self.steps or 0) * config.train.batch_size * config.model.context
        self.runtime = choose(config.runtime, saved, run_flops=tokens * self.flops_per_token, run_seconds=self.seconds)
        self.model.to(self.runtime.device)
        self.model.use(self.runtime.use_kernels())
        self.average = copy.deepcopy(self.model).eval().requires_grad_(False) if config.train.ema else None
        self.optimizer = Optimizer(self.model, config.optim, self.runtime.torch_dtype)
        if loaded:
            self._restore(loaded)
        self.loss: Callable[[Tensor, Tensor], Tensor] = self._loss
        self.lr_factor, self.gradient_norm, self.matmul_speed = 0.0, 0.0, math.nan
        self.marked = (0.0, 0)  # seconds and tokens at the last log line
        self.speed, self.told_busy = "", False
        self.clock = Clock(self.state.seconds)

    def _restore(self, loaded: checkpoint.Checkpoint) -> None:
        """Put back the weights and the optimizer's state of a checkpoint."""
        self.resumed_with = (loaded.meta.runtime, loaded.config.train.sequences_at_once)
        before = (run_steps(loaded.config, len(self.data.train)), loaded.config.train.minutes)
        self.state.rescheduled |= before != (self.steps, self.config.train.minutes)
        training = checkpoint.read_training_tensors(loaded)
        names = [name for name in training if name.startswith(RAW)]
        weights = {name.removeprefix(RAW): training.pop(name) for name in names}
        if not training and self.state.step > self.state.skipped:
            raise UserError(f"{loaded.path} cannot be gone on from: it lacks the optimizer's state")
        try:
            self.model.load_state_dict(weights or loaded.model.state_dict())
            self.optimizer.load_state_dict(training)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{loaded.path} cannot be gone on from: {reason(error)[:200]}") from error
        if self.average is not None:
            self.average.load_state_dict(loaded.model.state_dict())

    # --- the loop ------------------------------------------------------------------------------------

    def loop(self, probes: Sequence[Probe] = ()) -> Outcome:
        """Train until the run's length is reached, validation stops improving, or a signal comes."""
        state = self.state
        self._refuse_if_finished()
        aside = checkpoint.repair(self.run, state)
        total, unit = (self.seconds, "second") if self.steps is None else (float(self.steps), "step")
        logs = Metrics(self.run, state.step, self.position, total, unit)
        with ExitStack() as until_closed, logs as self.metrics:
            for name in aside:
                self.metrics.say(f"kept what is no part of the run any more: {self.run / CHECKPOINTS / name}")
            self._get_ready()  # of which nothing would be saved: a signal ends it at once
            interrupts = until_closed.enter_context(Interrupts())
            last = self._go_on(interrupts, probes)
            if self.config.train.hparams and last:
                losses = {"final_validation_loss": state.validation_loss, "best_validation_loss": state.best_loss}
                self.metrics.hparams(state.step, configuration.flatten(self.config), losses)
        folder = step_folder(self.run, state.step)
        share = self.clock.evaluating / max(1e-9, self.clock.session)
        stopped_by = None if last else interrupts.signal  # a signal in the last step stopped nothing
        stopped_early = self.out_of_patience and not self.length_reached
        return Outcome(state, self.runtime, folder, stopped_by, stopped_early, share, self.longer)

    def _go_on(self, interrupts: Interrupts, probes: Sequence[Probe]) -> bool:
        """Make steps until the last one or a signal, and save; return whether it was the last."""
        settings, state, last = self.config.train, self.state, False
        self.clock.restart()
        if self.saved_step is None:
            self.evaluate(probes)
            self.clock.restart()
        self.marked = (self.clock.training, state.tokens_seen)
        while not (last or interrupts.signal):
            with advising_fewer(self.config):
                self.step()
            last = self.length_reached
            if last or state.step % settings.log_every == 0:
                self.log()
            improved = (last or state.step % settings.eval_every == 0) and self.evaluate(probes)
            last = last or self.out_of_patience
            if last or improved or state.step % settings.save_every == 0:
                self.save()
        if self.saved_step != state.step:
            self.save()
        return last

    def step(self) -> None:
        """Make one update, or leave it out where it would not be finite and `train.on_nonfinite` is skip.

        Raises UserError, with the weights as they were, when the loss or gradient is not finite.
        """
        train, state, device = self.config.train, self.state, self.runtime.device
        x, y = batch_at(self.data.train, self.config.model.context, train.batch_size, train.seed, state.step)
        reseed(self.runtime, mix_seed(train.seed, "dropout", state.step, 0))  # 0: the rank, were there more processes
        self.optimizer.zero_grad()
        self.lr_factor = lr_factor(self.progress, self.config.optim)
        loss = self._forward_backward(x.to(device), y.to(device))
        limit = self.config.optim.grad_clip or math.inf
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        loss_value, self.gradient_norm = torch.stack((loss, norm)).tolist()  # the step's one wait for the device
        state.step += 1
        state.tokens_seen += x.numel()
        if not math.isfinite(loss_value + self.gradient_norm):
            self._skip_or_stop(loss_value)
            return
        if self.gradient_norm > limit:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)
        self.optimizer.step(self.lr_factor)
        if self.average is not None:
            self._update_average(self.average)
        state.loss_sum += loss_value
        state.loss_count += 1
        state.clipped_count += self.gradient_norm > limit
        if state.train_loss is not None and loss_value > SPIKE * state.train_loss and not state.spiked:
            self._note_spike(loss_value)

    def _skip_or_stop(self, loss: float) -> None:
        """Count a step without an update. Raises UserError where it must not be, or where it would not help."""
        state, train = self.state, self.config.train
        problem = f"the loss is {loss:g}" if not math.isfinite(loss) else "the gradient is not finite"
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            problem = "the weights are not finite"
        elif train.on_nonfinite == "skip":
            if state.skipped < train.max_skipped:
                state.skipped += 1
                self.metrics.say(f"step {state.step}: {problem}; its update is left out ({state.skipped} so far)")
                self.metrics.log(state.step, self.clock.total, {"optimizer/skipped": state.skipped})
                self.optimizer.zero_grad()  # of which no histogram can be drawn
                return
            problem += f", after {state.skipped} updates were left out"
        raise UserError(self._not_finite(state.step, problem))

    def _note_spike(self, loss: float) -> None:
        self.state.spiked = True
        step, norm, mean = self.state.step, self.gradient_norm, self.state.train_loss
        self.metrics.say(
            f"step {step}: the loss jumped to {loss:.4f} from a mean of {mean:.4f}, gradient norm {norm:.3g}"
        )
        self.metrics.log(step, self.clock.total, {"loss/spike": loss, "loss/spike_gradient_norm": norm})

    def _forward_backward(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradients of the mean loss over the batch, a micro-batch at a time; return that loss."""
        micro = self.config.train.sequences_at_once
        total = torch.zeros((), device=x.device)
        for x_part, y_part in zip(x.split(micro), y.split(micro), strict=True):
            loss = self.loss(x_part, y_part)
            if len(x_part) < len(x):
                loss = loss * (len(x_part) / len(x))
            loss.backward()
            total += loss.detach()
        return total

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross entropy of the targets y (B, T) given the inputs x (B, T), in nats."""
        with self.runtime.autocast():
            logits = self.model(x)  # (B, T, V)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    def _update_average(self, average: GPT) -> None:
        """Move the averaged weights towards the current ones; faster at first, when the start is far away."""
        updates = self.state.step  # this one included
        decay = min(self.config.train.ema, updates / (updates + 9))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(self.model.parameters()), 1 - decay)

    # --- how far -------------------------------------------------------------------------------------

    @property
    def position(self) -> float:
        """Return how far the run is, in the unit that its length is given in: steps or seconds."""
        return self.clock.total if self.steps is None else self.state.step

    @property
    def progress(self) -> float:
        """Return how much of the run is done, 0 to 1; of one in steps, in the middle of the coming step."""
        if self.steps is None:
            return min(1.0, self.clock.total / self.seconds)
        return (self.state.step + 0.5) / self.steps

    @property
    def length_reached(self) -> bool:
        return self.clock.total >= self.seconds if self.steps is None else self.state.step >= self.steps

    @property
    def out_of_patience(self) -> bool:
        return 0 < self.config.train.patience <= self.state.evaluations_since_best

    @property
    def longer(self) -> str:
        """Return the `--set` options with which a run that has ended goes on."""
        changes = []
        if self.length_reached:
            if twice := 2 * (self.config.train.minutes or 0):
                is_enough = 60 * twice > self.clock.total  # or it was trained for longer than it is now told
                changes.append(f"train.minutes={twice if is_enough else math.ceil(2 * self.clock.total / 60):g}")
            else:
                changes.append(f"train.steps={2 * self.state.step}")
        # From the end of a schedule the rate rises again, and with it at first the loss.
        rises = self.length_reached and self.config.optim.schedule != "constant"
        if self.out_of_patience or (rises and self.config.train.patience):
            changes.append("train.patience=0")
        return " ".join(f"--set {change}" for change in changes)

    # --- what the loop does now and then -------------------------------------------------------------

    def log(self) -> None:
        """Write the mean loss and speed since the last log line; rates and gradient norm are those of the last step."""
        state, (marked_seconds, marked_tokens) = self.state, self.marked
        seconds, tokens = self.clock.training - marked_seconds, state.tokens_seen - marked_tokens
        self.marked = (self.clock.training, state.tokens_seen)
        if not state.loss_count:  # all updates since were left out
            return
        speed = tokens / max(1e-9, seconds)
        characters = speed * self.data.characters_per_token
        state.train_loss = state.loss_sum / state.loss_count
        scalars = {
            "loss/train": state.train_loss,
            **{f"optimizer/{name}": peak * self.lr_factor for name, peak in self.optimizer.peak_rates.items()},
            "optimizer/gradient_norm": self.gradient_norm,
            "optimizer/clipped_share": state.clipped_count / state.loss_count,
            "speed/characters_per_second": characters,
            "speed/flops": speed * self.flops_per_token,
            "speed/share_of_matmul": speed * self.flops_per_token / self.matmul_speed,
            "time/seconds": self.clock.total,
        }
        if memory := memory_bytes(self.runtime):
            scalars["memory/bytes"] = memory
        self.metrics.log(state.step, self.clock.total, scalars)
        state.loss_sum, state.loss_count, state.clipped_count, state.spiked = 0.0, 0, 0, False
        self.speed = f"{characters:,.0f} chars/s"
        self._show_progress()
        if not self.told_busy and self.clock.session > BUSY_AFTER and self.clock.waiting_share > BUSY:
            self._tell_busy()

    def _show_progress(self, doing: str = "") -> None:
        losses = {"loss": self.state.train_loss, "val": self.state.validation_loss}
        parts = [doing, *(f"{name} {loss:.4f}" for name, loss in losses.items() if loss is not None), self.speed]
        self.metrics.progress(self.position, ", ".join(filter(None, parts)))

    def evaluate(self, probes: Sequence[Probe]) -> bool:
        """Measure the validation loss, let the probes look, and return whether it is the lowest so far."""
        state, started, age = self.state, time.perf_counter(), self.clock.total
        self._show_progress("evaluating")
        model = self.average or self.model
        result = evaluate(model, self.data.validation, self.data.tokenizer, autocast=self.runtime.autocast)
        if not math.isfinite(result.loss):
            raise UserError(self._not_finite(state.step, f"the validation loss is {result.loss:g}"))
        scalars = {"loss/validation": result.loss, "bits_per_character/validation": result.bits_per_character}
        self.metrics.log(state.step, age, scalars)
        # The untrained model of step 0 starts the curve, but is no candidate for the best.
        improved = state.step > 0 and (state.best_loss is None or result.loss < state.best_loss)
        state.validation_loss = result.loss
        if improved:
            state.best_loss, state.best_step, state.train_loss_at_best = result.loss, state.step, state.train_loss
        state.evaluations_since_best = 0 if improved or state.step == 0 else state.evaluations_since_best + 1
        train_loss = f"loss {state.train_loss:.4f}, " if state.train_loss is not None else ""
        self.metrics.say(
            f"step {state.step}: {train_loss}validation {result.loss:.4f}{', the best' if improved else ''}"
        )
        with eval_mode(model):
            for probe in probes:
                probe(state.step, model, self.metrics)
        if self.config.train.histograms:
            self._log_histograms()
        self._show_progress()
        self.clock.evaluating += time.perf_counter() - started
        return improved

    def save(self) -> None:
        """Publish a checkpoint of this step, after the curves up to it are on their way to disk."""
        state, data = self.state, self.data
        state.seconds = self.clock.total
        self.metrics.sync()
        weights, training = self.model.state_dict(), self.optimizer.state_dict()
        if self.average is not None:  # the average is the model; the weights that go on training stand beside it
            training |= {f"{RAW}{name}": tensor for name, tensor in weights.items()}
            weights = self.average.state_dict()
        if not all(tensor.isfinite().all() for tensor in (*weights.values(), *training.values())):
            raise UserError(self._not_finite(state.step, "the weights or the optimizer's averages are not finite"))
        meta = Metadata(
            format=FORMAT,
            step=state.step,
            characters_seen=round(state.tokens_seen * data.characters_per_token),
            validation_loss=state.validation_loss,
            corpus=CorpusInfo(name=escape(" + ".join(self.config.data.source)), fingerprint=data.fingerprint),
            vocab_size=data.tokenizer.vocab_size,
            parameters=self.parameters,
            runtime=self.runtime.facts(),
            state=state,
        )
        checkpoint.save(self.run, self.config, data.tokenizer, meta, weights, training, self.metrics.say)
        self.saved_step = state.step

    def _tell_busy(self) -> None:
        """Advise fewer threads, once: those that run wait at each operation for those that do not."""
        self.told_busy, runtime = True, self.runtime
        if runtime.device == "cpu" and runtime.threads > 1:
            self.metrics.say(
                f"{self.clock.waiting_share:.0%} of the time goes into waiting for a core that is busy with something "
                f"else; --set runtime.threads={runtime.threads // 2} loses less to that, also with --resume"
            )

    # --- before the first step -----------------------------------------------------------------------

    def _get_ready(self) -> None:
        """Say what will run where, check that it fits, and make the step as fast as was chosen."""
        state = self.state
        self.metrics.say(f"{self.parameters:,} parameters on {self.runtime.describe()}")
        if self.saved_step is not None:
            loss = f", training loss {state.train_loss:.4f}" if state.train_loss is not None else ""
            self.metrics.say(f"resuming at step {state.step}{loss}")
        self._check_memory()
        self.compile_and_measure(self.metrics.say)
        self._tell_drift()

    def _check_memory(self) -> None:
        """Refuse a batch that cannot fit, before the first step."""
        missing = 1 if self.optimizer.state_dict() else 3  # gradients and, unless they were loaded, two averages
        weights = list(self.model.parameters())
        fixed = missing * sum(weight.nbytes for weight in weights)
        check_batch(self.config, self.runtime.device, fixed, self._loss_of_one, weights)

    def _loss_of_one(self, length: int) -> Tensor:
        x, y = self._example(1, length)
        return self._loss(x, y)

    def compile_and_measure(self, say: Callable[[str], None]) -> None:
        """Measure the speed of the device, and compile the network if that was chosen."""
        self.matmul_speed = measure_matmul(self.runtime)
        if not self.runtime.compile:
            return
        say("compiling the network; --set runtime.compile=false goes without")
        started = time.perf_counter()
        example = self._example(self.config.train.sequences_at_once, self.config.model.context)
        with advising_fewer(self.config):
            self.loss, compiled = compile_loss(self._loss, example, say)
            if compiled:
                say(f"compiled in {time.perf_counter() - started:.0f} s")
            if compiled and self.config.runtime.compile == "auto" and self.resumed_with is None:
                times = compiled_time(self._loss, self.loss, example)
                compiled = times < COMPILED_AT_MOST
                if not compiled:
                    say(f"a compiled step takes {times:.2f} times as long here; going on without")
        self.optimizer.zero_grad()
        if not compiled:
            self.loss = self._loss
            torch.use_deterministic_algorithms(False)  # as `choose` leaves it for a run that is not compiled
        self.runtime = replace(self.runtime, compile=compiled)

    def _tell_drift(self) -> None:
        """Say what is not as it was when the checkpoint was written, and so changes the last bits from here on."""
        if self.resumed_with is None:
            return
        (before, at_once_before), at_once = self.resumed_with, self.config.train.sequences_at_once
        changes = self.runtime.facts().changes(before)
        if at_once != at_once_before:
            changes.append(f"micro-batches of {at_once} in place of {at_once_before}")
        if changes:
            self.metrics.say(f"from here on not bit for bit what an undisturbed run would give: {', '.join(changes)}")

    def _example(self, sequences: int, length: int) -> tuple[Tensor, Tensor]:
        x, y = batch_at(self.data.train, length, sequences, seed=0, step=0)
        return x.to(self.runtime.device), y.to(self.runtime.device)

    # --- words and extras ----------------------------------------------------------------------------

    def _not_finite(self, step: int, problem: str) -> str:
        rates = ", ".join(
            f"{name.replace('_', ' ')} {peak * self.lr_factor:.2g}" for name, peak in self.optimizer.peak_rates.items()
        )
        train, ways = self.config.train, []
        if train.on_nonfinite == "stop":
            ways.append("--set train.on_nonfinite=skip")
        elif self.state.skipped >= train.max_skipped:
            ways.append(f"--set train.max_skipped={2 * max(1, train.max_skipped)}")
        if self.runtime.dtype != "float32":
            ways.append("--set runtime.dtype=float32")
        differently = f" {' or '.join(ways)}, or" if ways and checkpoint_steps(self.run) else ";"
        kept = checkpoint.what_is_kept(self.run)
        advice = "start anew with a lower optim.lr or optim.muon_lr or a longer optim.warmup"
        figures = f"{rates}, gradient norm {self.gradient_norm:g}, {self.runtime.dtype}"
        return f"step {step}: {problem} ({figures}); {kept}{differently} {advice}"

    def _refuse_if_finished(self) -> None:
        state = self.state
        if not (self.length_reached or self.out_of_patience):
            return
        if checkpoint_steps(self.run)[-1:] == [state.step]:
            checkpoint.repair(self.run, state)  # its last save may have been killed
        if self.steps is not None and state.step > self.steps:
            raise UserError(f"run {self.run.name} is at step {state.step} already, past the {self.steps} asked for")
        ending = "is finished" if self.length_reached else "stopped, because validation no longer improved,"
        advice = f"minigpt train --resume {as_argument(self.run)} {self.longer}"
        raise UserError(f"run {self.run.name} {ending} at step {state.step}; to go on: {advice}")

    def _log_histograms(self) -> None:
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            tensors[f"weights/{name}"] = parameter.detach()
            if parameter.grad is not None:
                tensors[f"gradients/{name}"] = parameter.grad
        self.metrics.histograms(self.state.step, tensors)
