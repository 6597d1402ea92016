"""How a run ended, and what to type next."""

import math
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.cli.hints import as_argument, resume_command, shell_quote
from minigpt.cli.output import duration, notice
from minigpt.errors import count, escape, reason
from minigpt.paths import LOG, RUNS

if TYPE_CHECKING:
    from minigpt.storage.metadata import TrainState
    from minigpt.training.outcome import Outcome
    from minigpt.training.setup import PreparedRun

LEAST_FORECAST = 0.68
"""The lowest loss for which the forecast was tested: a simple text may not allow a lower loss."""
LONGER = 5
"""`forecast` predicts the loss of a run that takes this number of times as long."""


def report(run: Path, outcome: "Outcome", prepared: "PreparedRun") -> int:
    """Print how the run ended and what to type next. Return the exit code."""
    from minigpt.interpret.simple import compare_loss, explain_loss

    state, name, data = outcome.state, as_argument(run), prepared.data
    lines, commands, code = list[str](), {"sample": f"minigpt sample {name}"}, 0
    if outcome.signal:
        by = "" if outcome.signal == signal.SIGINT else f" by {signal.Signals(outcome.signal).name}"
        lines.append(f"Stopped{by} at step {state.step}. Everything is saved in {run}.")
        commands, code = {"resume": resume_command(run), **commands}, 128 + outcome.signal
    else:
        ending = "Stopped early, because validation no longer improved," if outcome.is_early else "Finished"
        best = "" if state.best_step == state.step else f", best {state.best_loss:.4f} at step {state.best_step}"
        losses = f"validation loss {state.validation_loss:.4f}{best}"
        lines.append(f"{ending} at step {state.step} after {duration(state.seconds)}: {losses}.")
        loss = state.best_loss or 0.0
        lines += filter(None, (explain_loss(loss, data.tokenizer), compare_loss(loss, data, prepared.config)))
        commands["look"] = f"minigpt inspect {name} --open"
        if prepared.config.model.is_recurrent:
            commands["past"] = f"minigpt eval {name} --by-position"
        commands["curves"] = f"minigpt board {'' if run.parent == RUNS else f'--in {shell_quote(run.parent)}'}".rstrip()
        if is_overfitting(state):
            lines += (
                f"Overfitting since step {state.best_step}: the training loss kept falling, the validation loss rose.",
                f"Add text, or try a smaller model or more dropout. Until then, sample uses step {state.best_step}.",
            )
        elif not outcome.is_early and (reached := _longer(prepared, loss, state.step)) is not None:
            minutes = math.ceil(LONGER * state.seconds / 60)
            lines.append(f"A run of {count(minutes, 'minute')} would reach a validation loss of about {reached:.2f}.")
            text = " ".join(map(shell_quote, prepared.config.data.source))
            # Not a command that resumes: it would not lower the loss (docs/project/lab).
            commands["longer"] = f"minigpt train {text} --minutes {minutes}"
        lines.append(f"The model is in {run}.")
    lines += (f"  {f'{what}:':8} {command}" for what, command in commands.items())
    notice(*lines)
    try:
        with open(run / LOG, "a", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{escape(line)}\n" for line in lines)
    except OSError as error:
        notice(f"cannot write {run / LOG}: {reason(error)}")
    return code


def _longer(prepared: "PreparedRun", loss: float, step: int) -> float | None:
    """Return the `forecast` for a run whose settings minigpt chose, else None."""
    chosen = {key for _, values in prepared.sources for key in values}
    if not (prepared.is_fitted and chosen <= {"data.source"}) or "-" in prepared.config.data.source:
        return None
    return forecast(loss, prepared.data.size, prepared.config.tokens_per_step, step)


def forecast(loss: float, size: int, tokens_per_step: int, steps: int) -> float | None:
    """Return the loss in nats that a run of `LONGER` times the time would reach. None if this is unknown.

    Five times the time lowered the loss of three texts by 0.10 to 0.19, and by less after more epochs.
    """
    from minigpt.training.fit import most_steps

    if loss < LEAST_FORECAST or steps >= most_steps(size, tokens_per_step):
        return None
    epochs = steps * tokens_per_step / size
    return loss - 0.148 + 0.053 * math.log10(max(0.1, epochs))  # no fewer epochs were measured


def is_overfitting(state: "TrainState") -> bool:
    """Return whether, two or more evaluations after the best, validation loss is higher and training loss lower."""
    losses = (state.train_loss, state.validation_loss, state.train_loss_at_best, state.best_loss)
    if state.evaluations_since_best < 2 or None in losses:
        return False
    train, validation, train_at_best, best = (float(loss or 0) for loss in losses)
    return validation > best and train < train_at_best
