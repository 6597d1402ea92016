"""Measure this machine, and choose settings whose run takes a given time.

The clock chooses the length once and never steers the run, so the run can be resumed and repeated.
"""

import math
from bisect import bisect_right
from dataclasses import replace

from minigpt.config.schema import MOST_STEPS, RunConfig
from minigpt.errors import UserError, count
from minigpt.model.device import measure_matmul, pick_device
from minigpt.model.size import training_flops
from minigpt.training.fit import choose_shape, most_steps, settings
from minigpt.training.parallel import Processes
from minigpt.training.plan import StepTime, plan_runtime, time_step
from minigpt.training.schedule import eval_steps
from minigpt.training.setup import PreparedRun, describe, with_layers

LOOK = 1.5
"""Seconds of an evaluation besides its loss: a sample, a picture of the attention, usually a checkpoint."""
SLACK = 1.08
"""How much longer a step takes in a run than when measured alone. With it, 16 of 19 runs were within 15%."""
COMPILING, COMPILED = 40.0, 0.85
"""Seconds that compiling takes, and the time of a compiled step as a share of a plain one."""


def fit_minutes(prepared: PreparedRun, seconds: float, processes: Processes) -> PreparedRun:
    """Return `fit_time` of the main process (collective)."""
    found = processes.together(lambda: fit_time(prepared, seconds, processes.size) if processes.is_main else prepared)
    config, notices = processes.share((found.config, found.notices))
    return replace(prepared, config=config, notices=notices, seconds=seconds)


def fit_time(prepared: PreparedRun, seconds: float, processes: int = 1) -> PreparedRun:
    """Return a new run that takes about `seconds` here, with notices that say why. Measure this machine for some.

    Without a preset, choose all settings. With one, choose only the number of steps.

    Raises:
        UserError: The time is too short.
        DeviceError: The device is not available.
    """
    pick_device(prepared.config.runtime.device, local_rank=0 if processes > 1 else None)
    data, layers = prepared.data, list(prepared.layers)
    characters, validation = data.fitted_characters, len(data.validation)
    runtime, _ = plan_runtime(prepared.config.runtime, processes, 0)
    work = max(0.0, seconds) * processes * measure_matmul(runtime) / 3  # as training reaches it
    shape = choose_shape(characters, work, prepared.config.train.shards)
    if prepared.is_fitted:
        layers[0] = layers[0][0], settings(characters, shape, 1)
        prepared = with_layers(prepared, layers)
    config = prepared.config
    time = time_step(config, data.tokenizer.vocab_size, runtime, processes, 3.0)
    left, steps = seconds, steps_within(seconds, time, config, validation)
    tokens = config.train.batch_size * config.model.context
    per_step = training_flops(config.model, data.tokenizer.vocab_size) * tokens
    if plan_runtime(config.runtime, processes, steps * per_step)[0].compile:
        left, compiled = seconds - COMPILING, replace(time, step=COMPILED * time.step)
        steps = steps_within(left, compiled, config, validation)
    if not steps:
        least = total_seconds(1, time, config, validation)
        missing = count(math.ceil((least - left) / 60), "more minute")
        what = "a step, two evaluations and compiling" if left < seconds else "a step and two evaluations"
        raise UserError(f"{what} take {least + seconds - left:.0f} s here: give at least {missing}")
    why = [f"a step takes {time.step:.3g} s here"]
    if prepared.is_fitted:
        if steps > (most := most_steps(characters, tokens)):
            steps = most
            why.append("for so short a text, more epochs would not lower the loss")
        layers[0] = layers[0][0], settings(characters, shape, steps)
    prepared = with_layers(prepared, [*layers, ("time", {"train.steps": steps})])
    regularization = f"dropout {prepared.config.model.dropout:g}, weight decay {prepared.config.optim.weight_decay:g}"
    lines = (f"chosen: {describe(prepared.config, data)}; {regularization}", f"because {', and '.join(why)}")
    return replace(prepared, notices=(*prepared.notices, *lines), seconds=seconds, step_time=time)


def total_seconds(steps: int, time: StepTime, config: RunConfig, validation_tokens: int) -> float:
    """Return the duration of a run: its steps, its evaluations and what belongs to them."""
    every = config.train.eval_every
    if every == "auto":
        every = eval_steps(steps, config.train.batch_size * config.model.context, validation_tokens)
    evaluations = 1 + -(-steps // every)
    return SLACK * steps * time.step + evaluations * (LOOK + time.evaluated_token * validation_tokens)


def steps_within(seconds: float, time: StepTime, config: RunConfig, validation_tokens: int) -> int:
    """Return the most steps that take at most so many seconds, 0 if one takes more."""
    return bisect_right(range(1, MOST_STEPS), seconds, key=lambda n: total_seconds(n, time, config, validation_tokens))
