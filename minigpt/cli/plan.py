"""`minigpt plan`."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from minigpt.cli.hints import set_options, shell_quote
from minigpt.cli.options import (
    TEXT,
    ConfigOption,
    JsonOption,
    MinutesOption,
    SetOption,
    check_minutes,
)
from minigpt.cli.output import duration, json_text, notice, table, wrapped, write
from minigpt.errors import UserError

if TYPE_CHECKING:
    from minigpt.cli.forecast import Plan
    from minigpt.config.schema import RunConfig
    from minigpt.training.timing import StepTime

PARTS = ("program", "weights", "gradients", "optimizer", "exchange", "activations", "peak")


def plan(
    text: Annotated[list[str] | None, Argument(help=TEXT, metavar="TEXT")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    minutes: MinutesOption = None,
    processes: Annotated[int, Option(min=1, max=1024, help="Number of processes.", metavar="N")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Show the memory, operations and time of a run before it starts.

    Plan what `minigpt train` with these arguments does. With --config and without TEXT, read no text. Measure a few
    steps.

    Examples:
      minigpt plan my.txt --minutes 10
      minigpt plan -c shakespeare --processes 2
    """
    from minigpt.cli.forecast import make_plan

    settings, known_size, time, program = _settings(text or [], config, set_ or [], processes, minutes)
    size = known_size or (65 if settings.data.tokenizer == "char" else 256)  # 65: as in Tiny Shakespeare
    planned = make_plan(settings, size, processes, time, program)
    steps, step_seconds = settings.train.steps, planned.seconds_per_step
    total = steps * step_seconds if steps and step_seconds else None
    if as_json:
        facts = {"vocab_size": size, "processes": processes, **asdict(planned), "steps": steps, "seconds": total}
        write(json_text(facts))
        return
    assumed = "" if known_size else " (assumed: no text was read; add a TEXT)"
    notice(f"{planned.parameters:,} parameters with a vocabulary of {size}{assumed}, on {planned.runtime.describe()}")
    rows = [(part, _size(size)) for part in PARTS if (size := vars(planned.memory)[part])]
    if planned.free_bytes is not None:
        rows.append(("free", _size(planned.free_bytes)))
        rows.append(("largest micro-batch", str(planned.memory.largest_micro_batch or "none")))
    table(("memory of a process", "size"), rows)
    print()
    for line in _lines(planned, processes, steps, total):
        wrapped(line, indent=0)
    if settings.train.epochs:
        texts = " ".join(map(shell_quote, settings.data.source))
        notice(f"the steps of train.epochs depend on the text, which was not read; to read it, add {texts}")


def _settings(
    text: list[str], config: str | None, assignments: list[str], processes: int, minutes: float | None
) -> tuple["RunConfig", int | None, "StepTime | None", int | None]:
    """Return the settings of a run, and its vocabulary size, times and program's memory, if a text was read.

    The text turns epochs into steps.
    """
    from minigpt.config.presets import read_preset
    from minigpt.config.resolve import parse_overrides, resolve
    from minigpt.model.memory import peak_memory
    from minigpt.training.dial import fit_time
    from minigpt.training.schedule import run_steps
    from minigpt.training.setup import describe, prepare_run

    check_minutes(minutes, assignments)
    if text or config is None:
        prepared = prepare_run(text, config, assignments, processes=processes)
        program = peak_memory()
        if minutes:
            prepared = fit_time(prepared, 60 * minutes, processes)
        elif prepared.is_fitted:
            notice(f"fitted settings: {describe(prepared.config, prepared.data)}")
        notice(*prepared.notices)
        length = {"steps": run_steps(prepared.config, len(prepared.data.train)), "epochs": None}
        settings = prepared.config.model_copy(update={"train": prepared.config.train.model_copy(update=length)})
        return settings, prepared.data.tokenizer.vocab_size, prepared.step_time, program
    if minutes:
        raise UserError("--minutes needs a text: minigpt plan TEXT --minutes N")
    shards = ("processes", {"train.shards": processes})  # as in `minigpt train --processes`
    return resolve(shards, *read_preset(config), parse_overrides(assignments)).config, None, None, None


def _lines(plan: "Plan", processes: int, steps: int | None, total: float | None) -> Iterator[str]:
    """Yield the work, the time, what that excludes, and what to type if the run does not fit."""
    step, work = plan.seconds_per_step, f"{plan.flops_per_step / 1e9:,.4g} GFLOP per step"
    if step is None:
        yield f"{work}; time and free memory are unknown, because {plan.runtime.device} is not on this machine"
    else:
        run = f", {duration(total)} for {steps:,} steps without evaluations" if total else ""
        how = "" if plan.is_measured else " (estimated from the speed of matrix multiplications)"
        yield f"{work}, {step:.3g} s per step{run}{how}"
    excluded = ["communication between processes"] * (processes > 1) + ["compilation"] * plan.runtime.compile
    if step and excluded:
        yield f"not measured: {', '.join(excluded)}"
    if plan.memory.fits is False:
        advice = set_options(plan.memory.settings) or "a smaller train.batch_size, model.context or model.n_embd"
        yield f"it does not fit; try {advice}"


def _size(count: int) -> str:
    power, unit = (9, "GB") if count >= 1e9 else (6, "MB") if count >= 1e6 else (3, "kB")
    return f"{count / 10**power:,.1f} {unit}"
