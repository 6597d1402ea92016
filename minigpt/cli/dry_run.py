"""`minigpt train --dry-run`: what a run would take."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from minigpt.cli.hints import set_options
from minigpt.cli.output import duration, json_text, notice, size, table, wrapped, write

if TYPE_CHECKING:
    from minigpt.cli.forecast import Plan
    from minigpt.training.setup import PreparedRun

PARTS = ("program", "weights", "gradients", "optimizer", "exchange", "activations", "peak")


def dry_run(prepared: "PreparedRun", processes: int, program: int | None, as_json: bool) -> None:
    """Print the memory, operations and time that a run in `processes` processes would take.

    `program` is the memory that this process had before it read the text, in bytes.
    """
    from minigpt.cli.forecast import make_plan
    from minigpt.training.schedule import run_steps

    config, vocab_size = prepared.config, prepared.data.tokenizer.vocab_size
    steps = run_steps(config, len(prepared.data.train))
    train = config.train.model_copy(update={"steps": steps, "epochs": None})
    plan = make_plan(config.model_copy(update={"train": train}), vocab_size, processes, prepared.step_time, program)
    total = steps * plan.seconds_per_step if plan.seconds_per_step else None
    if as_json:
        facts = {"vocab_size": vocab_size, "processes": processes, "steps": steps, "seconds": total}
        write(json_text({**asdict(plan), **facts}))
        return
    notice(f"{plan.parameters:,} parameters, on {plan.runtime.describe()}")
    rows = [(part, size(bytes)) for part in PARTS if (bytes := vars(plan.memory)[part])]
    if plan.free_bytes is not None:
        rows.append(("free", size(plan.free_bytes)))
        rows.append(("largest micro-batch", str(plan.memory.largest_micro_batch or "none")))
    table(("memory of a process", "size"), rows)
    print()
    for line in _lines(plan, processes, steps, total):
        wrapped(line, indent=0)


def _lines(plan: "Plan", processes: int, steps: int, total: float | None) -> Iterator[str]:
    """Yield the work, the time, what the time excludes, and what to type if the run does not fit."""
    work = f"{plan.flops_per_step / 1e9:,.4g} GFLOP per step"
    if plan.seconds_per_step is None or total is None:
        yield f"{work}; time and free memory are unknown, because {plan.runtime.device} is not on this machine"
        return
    how = "" if plan.is_measured else " (estimated from the speed of matrix multiplications)"
    run = f"{duration(total)} for {steps:,} steps without evaluations"
    yield f"{work}, {plan.seconds_per_step:.3g} s per step, {run}{how}"
    if excluded := ["communication between processes"] * (processes > 1) + ["compilation"] * plan.runtime.compile:
        yield f"not measured: {', '.join(excluded)}"
    if plan.memory.fits is False:
        advice = set_options(plan.memory.settings) or "a smaller train.batch_size, model.context or model.n_embd"
        yield f"it does not fit; try {advice}"
