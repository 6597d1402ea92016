"""The training loop: batch, loss, backward, clip, step, log, evaluate, save.

Steps share no random state: the batch and dropout masks of a step depend only on the seed and the step. So a resumed
run ends with the same weights, and evaluating, sampling or saving never changes a weight.
The exception is a run with a length in minutes: its learning rate follows the clock.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config.resolve import flatten
from minigpt.config.schema import RunConfig
from minigpt.errors import DivergedError, TrainingError, escape, reason
from minigpt.model.device import choose_runtime, configure_torch, pick_device, reseed
from minigpt.model.gpt import GPT, eval_mode, use_kernels
from minigpt.model.load import Model, build_model, load_weights
from minigpt.model.memory import as_memory_error, peak_memory
from minigpt.model.size import count_parameters, flops_per_token
from minigpt.model.waiting import is_busy
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.metadata import Environment, TrainState
from minigpt.storage.runs import InPlace, newest_step, record_start, repair, step_folder
from minigpt.text.batches import batch_at
from minigpt.text.dataset import TokenDataset
from minigpt.training.compilation import Loss
from minigpt.training.evaluate import evaluate
from minigpt.training.metrics import Metrics
from minigpt.training.optim import Optimizer
from minigpt.training.outcome import (
    Outcome,
    hparams,
    is_out_of_patience,
    refuse_if_finished,
    resume_settings,
    settings_card,
)
from minigpt.training.parallel import ONE, Processes, add_shards, as_process_error, choose_sharding
from minigpt.training.preparation import prepare
from minigpt.training.schedule import Clock, RunLength, lr_factor
from minigpt.training.sharding import add_sharded, local, whole
from minigpt.training.signals import Interrupts
from minigpt.training.snapshot import restore, save

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
    in_place: InPlace = lambda: True,
    processes: Processes = ONE,
) -> Outcome:
    """Train the model of `config` on `data` in the folder `run`, from the checkpoint `resume` or from step 0.

    At step 0 the weights are random, or those of `start`. A new run saves a checkpoint at once, so it can be resumed
    from its first moment. SIGINT, SIGTERM and SIGHUP end training after the current step, and save.

    Args:
        command: Recorded in the run.
        in_place: Returns whether `run` is still the folder that this process has locked, as in `runs.lock`.
        processes: The connected processes. Each calls this function; the main one logs and saves.

    Raises:
        RunFinishedError: There is nothing left to do.
        TrainingError: The loss or gradient is not finite, or a write fails. Saved checkpoints are kept.
        InsufficientMemoryError: The model or the batch does not fit.
        LostProcessError: Another process has ended or hangs.
    """
    try:
        processes.check_same({"text": data.fingerprint, **flatten(config)})
        training = Training(config, run, data, resume, start=start, in_place=in_place, processes=processes)
        if processes.is_main and newest_step(run) == training.state.step:  # nothing to quarantine
            repair(run, training.state)  # remove what a killed save left, even if the run is finished
        refuse_if_finished(config, run, training.length, training.state)
        quarantined = repair(run, training.state) if processes.is_main else []  # newer checkpoints, which are damaged
        if resume is None:
            training.save()
        with Metrics(run if processes.is_main else None, resume.metadata if resume else None) as training.metrics:
            for path in quarantined:
                training.metrics.message(f"quarantined a damaged checkpoint: {path}")
            prepare(training)
            if processes.is_main:
                record_start(run, training.state.step, command, training.environment(), processes.size)
            training.metrics.to_tensorboard("add_text", "settings", settings_card(config), training.state.step)
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
        place = f"cannot write to {run}" if error.filename is None else escape(error.filename)
        raise TrainingError(f"{place}: {reason(error)}", run, newest_step(run)) from error


class Training:
    """A run in memory. `state` holds everything but tensors that outlives the process."""

    def __init__(
        self,
        config: RunConfig,
        run: Path,
        data: TokenDataset,
        checkpoint: Checkpoint | None = None,
        metrics: Metrics | None = None,
        in_place: InPlace = lambda: True,
        start: Checkpoint | None = None,
        processes: Processes = ONE,
    ) -> None:
        self.config, self.run, self.data, self.processes = config, run, data, processes
        self.metrics = metrics or Metrics()
        saved = checkpoint.metadata.runtime if checkpoint else None
        self.state = replace(checkpoint.metadata.state) if checkpoint else TrainState()
        self.in_place, self.saved_step = in_place, self.state.step if checkpoint else None
        self.length, self.clock = RunLength.of(config, len(data.train)), Clock(self.state.seconds)
        every, tokens = config.train.eval_every, config.train.batch_size * config.model.context
        self.eval_steps = self.length.eval_steps(tokens, len(data.validation)) if every == "auto" else every
        """Steps between evaluations. None: they follow the clock."""
        self.parameters = count_parameters(config.model, data.tokenizer.vocab_size)
        device = processes.together(lambda: pick_device(config.runtime.device, saved, processes.local_rank))
        self.is_sharded = processes.together(lambda: choose_sharding(processes.size, config, self.parameters, device))
        self.origin = checkpoint.metadata.origin if checkpoint else start.origin if start else None
        torch.manual_seed(mix_seed(config.train.seed, "weights"))
        with torch.device("meta" if self.is_sharded and not processes.is_main else "cpu"):
            built = build_model(config.model, data.tokenizer.vocab_size)
        if start and not checkpoint and processes.is_main:
            load_weights(built, start)
        self.flops_per_token = flops_per_token(built)
        flops = (self.length.steps or 0) * tokens * self.flops_per_token
        own = config.runtime.model_copy(update={"device": device})
        chosen = processes.share(choose_runtime(own, saved, flops=flops, seconds=self.length.seconds))
        self.runtime = replace(chosen, device=device, compile=chosen.compile and not self.is_sharded)
        configure_torch(self.runtime)
        self.model = self._place(built)
        if isinstance(self.model, GPT):
            self.model.checkpoints_activations = config.runtime.activation_checkpointing
        self.average: Model | None = None
        if config.train.ema:
            self.average = self._place(built) if self.is_sharded else copy.deepcopy(self.model)
            self.average.eval().requires_grad_(False)
        self.optimizer = Optimizer(self.model, config.optim, self.runtime.torch_dtype)
        self.loss: Loss = self.mean_loss
        """`mean_loss`, or `mean_loss` compiled."""
        self.lr_factor, self.gradient_norm, self.matmul_speed = 0.0, 0.0, math.nan
        self.logged = (0.0, 0)  # seconds and tokens at the last log line
        self.speed, self.was_busy = "", False
        self.drift: list[str] = []
        """Differences from the environment of the checkpoint, which may change results from here on."""
        if checkpoint:
            restore(checkpoint, self.model, self.average, self.optimizer, processes)
            self.drift = self.environment().changes(checkpoint.metadata.runtime)
            before, now = checkpoint.config.train.sequences_at_once, config.train.sequences_at_once
            self.drift += [f"micro-batches of {now} instead of {before}"] if before != now else []

    def environment(self) -> Environment:
        """Return everything outside the configuration that affects the last bits of a result."""
        kind = "fsdp" if self.is_sharded else "" if self.processes.is_exact else "all-reduce"
        sums = f"{kind} of {self.processes.size} processes" if kind else "exact"
        return self.runtime.environment().model_copy(update={"sums": sums})

    def _place(self, built: Model) -> Model:
        """Return a model on the device of this process, with the weights that `built` has on the main process."""
        if self.is_sharded:
            from minigpt.training.fsdp import build_sharded

            shape = self.config.model, self.data.tokenizer.vocab_size
            model: Model = build_sharded(*shape, self.runtime, self.processes)
        else:
            model = built.to(self.runtime.device)
        use_kernels(model, self.runtime.model_kernels)
        if self.processes.size > 1:
            self.processes.install(model.state_dict(), built.state_dict())
        return model

    def loop(self, probes: Sequence[Probe] = ()) -> Outcome:
        """Train until the length is reached, validation stops improving, or a signal arrives."""
        train, state = self.config.train, self.state
        with Interrupts(self.clock.skip, is_silent=not self.processes.is_main) as interrupts:
            self.clock.restart()
            if state.step == 0:
                self.evaluate(probes)
                self.clock.restart()  # the first evaluation does not count
            self.logged = (self.clock.training, state.tokens_seen)
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
        train, state = self.config.train, self.state
        progress = self.length.progress(state.step, self._main_clock(self.clock.total))
        self.lr_factor = lr_factor(progress, self.config.optim)
        loss = self._backward()
        max_norm = self.config.optim.grad_clip or math.inf
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        norm = whole(norm)
        loss_value, self.gradient_norm = torch.stack((loss, norm)).tolist()  # the only wait for the device in a step
        state.step += 1
        state.tokens_seen += train.batch_size * self.config.model.context
        if not math.isfinite(loss_value + self.gradient_norm):
            self._skip_or_stop(loss_value)
            return
        if self.gradient_norm > max_norm:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), max_norm, norm)
        self.optimizer.step(self.lr_factor)
        if self.average is not None:
            decay = min(train.ema, state.step / (state.step + 9))  # faster at first, when the weights move far
            with torch.no_grad():
                averages, weights = (list(map(local, model.parameters())) for model in (self.average, self.model))
                torch._foreach_lerp_(averages, weights, 1 - decay)
        state.loss_sum += loss_value
        state.loss_count += 1
        state.clipped_count += self.gradient_norm > max_norm

    def mean_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross entropy of the targets y (B, T) given the inputs x (B, T), in nats."""
        with self.runtime.autocast():
            logits = self.model(x)  # (B, T, V)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    def _backward(self) -> Tensor:
        """Compute the gradients of the mean loss over the batch. Return that loss. All processes have the same."""
        train, parameters = self.config.train, self.optimizer.names
        own, each = self.processes.shards(train.shards), train.batch_size // train.shards  # sequences in a shard
        where = self.config.model.context, train.batch_size, train.seed, self.state.step
        batch = batch_at(self.data.train, *where, part=slice(own.start * each, own.stop * each))
        xs, ys = (tokens.to(self.runtime.device).split(each) for tokens in batch)  # for each shard

        def backward(shard: int) -> Tensor:
            reseed(self.runtime, mix_seed(train.seed, "dropout", self.state.step, shard))
            return self._accumulate(xs[shard - own.start], ys[shard - own.start])

        def gradients(shard: int) -> list[Tensor]:
            self.optimizer.zero_grad()
            loss = backward(shard)
            return [*(p.grad for p in parameters if p.grad is not None), loss]

        if self.is_sharded:
            self.optimizer.zero_grad()
            loss = add_sharded(self.model, own, backward)
            self.processes.sum([loss])
            return loss
        *sums, loss = add_shards(own.start, len(own), gradients)
        self.processes.sum([*sums, loss])
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = total
        return loss

    def _accumulate(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradients of a shard, one micro-batch at a time. Return its part of the mean loss of the batch."""
        train = self.config.train
        total = torch.zeros((), device=x.device)
        for x_part, y_part in zip(x.split(train.sequences_at_once), y.split(train.sequences_at_once), strict=True):
            loss = self.loss(x_part, y_part)
            if len(x_part) < train.batch_size:
                loss = loss * (len(x_part) / train.batch_size)
            loss.backward()
            total += loss.detach()
        return total

    def _skip_or_stop(self, loss: float) -> None:
        """Count a step without an update, or raise DivergedError if no more may be skipped."""
        state, train = self.state, self.config.train
        problem = f"the loss is {loss:g}" if not math.isfinite(loss) else "the gradient is not finite"
        if train.on_nonfinite == "stop" or state.skipped >= train.max_skipped:
            raise self.diverged(problem + (f" after {state.skipped} skipped updates" if state.skipped else ""))
        state.skipped += 1
        self.metrics.message(f"step {state.step}: {problem}; skipped its update ({state.skipped} so far)")
        self.metrics.log(state.step, self.clock.total, {"optimizer/skipped": state.skipped})
        self.optimizer.zero_grad()  # a histogram of these gradients in evaluate() would fail

    def log(self) -> None:
        """Write the mean loss and the throughput since the last log line."""
        state, before = self.state, self.logged
        self.logged = (self.clock.training, state.tokens_seen)
        seconds, tokens = (now - then for now, then in zip(self.logged, before, strict=True))
        if not state.loss_count:  # every update since the last log line was skipped
            return
        tokens_per_second = tokens / max(1e-9, seconds)
        characters_per_second = tokens_per_second * self.data.characters_per_token
        state.train_loss = state.loss_sum / state.loss_count
        scalars = {
            "loss/train": state.train_loss,
            **{f"optimizer/{name}": peak * self.lr_factor for name, peak in self.optimizer.peak_rates.items()},
            "optimizer/gradient_norm": self.gradient_norm,
            "optimizer/clipped_share": state.clipped_count / state.loss_count,
            "speed/characters_per_second": characters_per_second,
            "speed/flops": tokens_per_second * self.flops_per_token,
            "speed/share_of_matmul": tokens_per_second
            * self.flops_per_token
            / (self.matmul_speed * self.processes.size),
            "time/seconds": self.clock.total,
            "memory/bytes": peak_memory(self.runtime.device) or math.nan,
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
        model = self.average or self.model
        text = (self.data.validation, self.data.tokenizer)
        result = evaluate(model, *text, autocast=self.runtime.autocast, processes=self.processes)
        if not math.isfinite(result.loss):
            raise self.diverged(f"the validation loss is {result.loss:g}")
        scalars = {"loss/validation": result.loss, "bits_per_character/validation": result.bits_per_character}
        self.metrics.log(state.step, seconds, scalars)
        is_best = state.observe(result.loss)  # never at step 0
        train_loss = f"loss {state.train_loss:.4f}, " if state.train_loss is not None else ""
        best = ", the best so far" if is_best else ""
        self.metrics.message(f"step {state.step}: {train_loss}validation {result.loss:.4f}{best}")
        with eval_mode(model):
            looking = probes if self.processes.is_main and not self.is_sharded else ()
            self.processes.together(lambda: [probe(state.step, model, self.metrics) for probe in looking])
        if self.config.train.histograms and not self.is_sharded:
            self.metrics.add_histograms(self.model, state.step)
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
        """Publish a checkpoint of this step, after its metrics are on disk."""
        self.state.seconds, self.saved_step = self.clock.total, self.state.step
        save(self)

    def _show_progress(self, activity: str = "") -> None:
        losses = {"loss": self.state.train_loss, "val": self.state.validation_loss}
        parts = [activity, *(f"{name} {loss:.3f}" for name, loss in losses.items() if loss is not None), self.speed]
        position, total, unit = self.length.position(self.state.step, self.clock.total)
        self.metrics.progress(position, total, unit, ", ".join(filter(None, parts)))

    def diverged(self, problem: str) -> DivergedError:
        """Return an error with the figures that help to find the cause of `problem`."""
        settings = ["train.on_nonfinite=skip"] if self.config.train.on_nonfinite == "stop" else []
        settings += ["runtime.dtype=float32"] if self.runtime.dtype != "float32" else []
        rates = [f"{name.replace('_', ' ')} {p * self.lr_factor:.2g}" for name, p in self.optimizer.peak_rates.items()]
        figures = f"{', '.join(rates)}, gradient norm {self.gradient_norm:g}, {self.runtime.dtype}"
        problem = f"step {self.state.step}: {problem} ({figures})"
        return DivergedError(problem, self.run, newest_step(self.run), tuple(settings))
