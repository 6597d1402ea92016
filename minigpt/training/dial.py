"""Measure this machine, and choose settings whose run takes a given time.

Measured times decide the settings once, before the run, so the run can be resumed and repeated.
"""

import math
from dataclasses import replace

from minigpt.config.schema import MOST_STEPS, RunConfig
from minigpt.errors import UserError, count
from minigpt.model.device import Runtime, measure_matmul, pick_device
from minigpt.model.size import training_flops
from minigpt.training.fit import most_steps
from minigpt.training.parallel import Processes
from minigpt.training.schedule import eval_steps
from minigpt.training.setup import PreparedRun, choose_settings, describe
from minigpt.training.timing import StepTime, plan_runtime, time_step

LOOK = 1.5
"""Seconds of an evaluation besides measuring the loss: a sample, usually a checkpoint."""
SLACK = 1.08
"""How much longer a step takes in a run than alone. With it, 16 of 19 runs were within 15% of the given time."""
COMPILING, COMPILED = 25.0, 0.87
"""Seconds that compiling takes, and the time of a compiled step as a share of a plain step."""


def fit_minutes(prepared: PreparedRun, seconds: float, processes: Processes) -> PreparedRun:
    """Return the result of `fit_time` on the main process (collective)."""
    fitted = processes.together(lambda: fit_time(prepared, seconds, processes.size) if processes.is_main else prepared)
    config, notices = processes.share((fitted.config, fitted.notices))
    return replace(fitted, config=config, notices=notices)


def fit_time(prepared: PreparedRun, seconds: float, processes: int = 1) -> PreparedRun:
    """Return a new run that takes about `seconds` here, with notices that say why.

    Without a preset, choose all settings that are not given. With one, choose only the number of steps.

    Raises:
        UserError: The time is too short.
        DeviceError: The device is not available.
    """
    pick_device(prepared.config.runtime.device, local_rank=0 if processes > 1 else None)
    runtime, _ = plan_runtime(prepared.config.runtime, processes, 0)
    speed, most, why = measure_matmul(runtime), MOST_STEPS, list[str]()
    work = max(0.0, seconds) * processes * speed / 3  # training reaches a third of the speed of matrix multiplications
    if prepared.is_fitted:
        why.append(f"matrix multiplications run at {speed / 1e9:,.3g} GFLOP/s")
        prepared = choose_settings(prepared, work)
        most = most_steps(prepared.data.size, prepared.config.tokens_per_step)
    time, steps = measure_steps(prepared, seconds, runtime, processes, most)
    prepared = choose_settings(prepared, work, ("time", {"train.steps": steps}))
    if steps == most:
        why.append("for so short a text, more epochs would not lower the loss")
    config = prepared.config
    regularized = f"dropout {config.model.dropout:g}, weight decay {config.optim.weight_decay:g}"
    because = ", and ".join((f"a step takes {time.step:.3g} s here", *why))
    measured = {"seconds_per_step": time.step, "matmul_gflops": speed / 1e9}
    lines = (f"chosen: {describe(config, prepared.data)}; {regularized}", f"because {because}")
    return replace(prepared, notices=(*prepared.notices, *lines), step_time=time, measured=measured)


def measure_steps(
    prepared: PreparedRun, seconds: float, runtime: Runtime, processes: int, most: int
) -> tuple[StepTime, int]:
    """Measure a run's times. Return them and how many steps fit, up to `most`. Raises UserError if none fits."""
    config, vocab_size, validation = prepared.config, prepared.data.tokenizer.vocab_size, len(prepared.data.validation)
    time, overhead = time_step(config, vocab_size, runtime, processes, 3.0), 0.0
    steps = steps_within(seconds, time, config, validation, most)
    per_step = training_flops(config.model, vocab_size) * config.tokens_per_step
    if plan_runtime(config.runtime, processes, steps * per_step)[0].compile:
        overhead, compiled = COMPILING, replace(time, step=COMPILED * time.step)
        steps = steps_within(seconds - overhead, compiled, config, validation, most)
    if not steps:
        least = overhead + total_seconds(1, time, config, validation)
        what = "a step, two evaluations and compiling" if overhead else "a step and two evaluations"
        missing = count(math.ceil((least - seconds) / 60), "more minute")
        raise UserError(f"{what} take {least:.0f} s here: give at least {missing}")
    return time, steps


def total_seconds(steps: int, time: StepTime, config: RunConfig, validation_tokens: int) -> float:
    """Return the duration of a run in seconds: its steps, evaluations, samples and checkpoints."""
    evaluations = 1 + -(-steps // eval_steps(config, steps, validation_tokens))
    return SLACK * steps * time.step + evaluations * (LOOK + time.evaluated_token * validation_tokens)


def steps_within(
    seconds: float, time: StepTime, config: RunConfig, validation_tokens: int, most: int = MOST_STEPS
) -> int:
    """Return how many steps, up to `most`, fit into `seconds`. 0 if one step takes more."""
    steps, step, look = most, SLACK * time.step, LOOK + time.evaluated_token * validation_tokens
    while steps > 0 and total_seconds(steps, time, config, validation_tokens) > seconds:
        # A shorter run evaluates at least as often, so this number of steps may still be too high, but never too low.
        every = eval_steps(config, steps, validation_tokens)
        periods, rest = divmod(seconds - look, every * step + look)
        steps = min(steps - 1, int(periods) * every + max(0, int((rest - look) / step)))
    return max(0, steps)
