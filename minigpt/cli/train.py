"""`minigpt train`."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from minigpt.cli.options import TEXT, ConfigOption, SetOption
from minigpt.cli.output import notice
from minigpt.errors import UserError, shell_quote
from minigpt.training.signals import signals_as_exit

if TYPE_CHECKING:
    from minigpt.config.schema import SampleConfig
    from minigpt.text.tokenizer import Tokenizer
    from minigpt.training.loop import Outcome, Probe
    from minigpt.training.setup import Start


def train(
    text: Annotated[list[str] | None, Argument(help=TEXT, metavar="TEXT")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    name: Annotated[
        str | None, Option(help="Name of the run; by default the preset's or the text's, numbered.", metavar="NAME")
    ] = None,
    resume: Annotated[str | None, Option(help="Go on with a run exactly where it stopped.", metavar="RUN")] = None,
) -> None:
    """Train a model. Without arguments: the quickstart. With a TEXT: a preset fitted to its size."""
    from minigpt.storage import runs
    from minigpt.training.setup import prepare_resume, prepare_run

    if resume is not None:
        if text or config is not None or name is not None:
            raise UserError("--resume goes on with the run's own text, configuration and name; only --set goes with it")
        run = runs.find_run(resume)
        with runs.lock(run):
            _train(run, prepare_resume(run, set_ or []))
    else:
        if name is not None:
            runs.refuse_name(name)  # now, for reading the text may take minutes
        start = prepare_run(text or [], config, set_ or [])
        with runs.new_run(name, start.stem) as run:
            _train(run, start)


def _train(run: Path, start: "Start") -> None:
    from minigpt.storage import runs
    from minigpt.training.loop import train
    from minigpt.training.setup import recorded_run

    config, data, checkpoint = start.config, start.data, start.checkpoint
    notice(*start.notices)
    notice(f"{data.characters:,} characters, {data.tokenizer.vocab_size} in the vocabulary; run {run}")
    _tell_unknown(config.sample, data.tokenizer)
    probes = [_sample_probe(config.sample, data.tokenizer)] if config.sample.preview else []
    if config.train.attention:
        from minigpt.interpret.probe import attention_probe

        probes.append(attention_probe(data))
    saved = runs.written_checkpoints(run)
    try:
        with signals_as_exit(), recorded_run(run, start, sys.argv):
            outcome = train(config, run, data, resume=checkpoint, probes=probes)
    except (KeyboardInterrupt, SystemExit):
        if runs.written_checkpoints(run) <= saved:
            what = "the run is as it was" if checkpoint else "nothing was trained and nothing is kept"
            notice(f"stopped before the first step: {what}")
        raise
    _report(run, outcome)


def _tell_unknown(settings: "SampleConfig", tokenizer: "Tokenizer") -> None:
    """Say so where a prompt of the settings cannot be drawn from to the letter."""
    from minigpt.errors import UnknownCharacterError

    try:
        if settings.has_own_prompt:
            tokenizer.encode(settings.prompt)
    except UnknownCharacterError as error:
        notice(f"sample.prompt: {error}; the samples of this training begin with the nearest")


def _sample_probe(settings: "SampleConfig", tokenizer: "Tokenizer") -> "Probe":
    """Return the probe that draws the same prompt's continuation at each evaluation, to watch it get better."""
    from minigpt.model.gpt import GPT
    from minigpt.sampling.generate import generate
    from minigpt.training.metrics import Metrics

    short = settings.model_copy(update={"length": settings.preview})

    def probe(step: int, model: GPT, metrics: Metrics) -> None:
        text = "".join(piece.text for piece in generate(model, tokenizer, settings.prompt, short, unknown="replace"))
        metrics.text(step, "sample", settings.prompt + text)

    return probe


def _report(run: Path, outcome: "Outcome") -> None:
    """Say how a run ended and what can be done with it; exit as a signal that ended it asks."""
    from minigpt.storage.runs import RUNS, as_argument

    state, name = outcome.state, as_argument(run)
    resume = f"minigpt train --resume {name}"
    if outcome.signal:
        stopped = f"stopped by {signal.Signals(outcome.signal).name} after step {state.step}"
        notice(f"{stopped}, everything is saved", f"  go on:  {resume}")
        raise typer.Exit(128 + outcome.signal)
    ending = "stopped early, because validation no longer improves," if outcome.stopped_early else "finished"
    share = f"{outcome.evaluation_share:.0%} of this session went into evaluating"
    notice(f"{ending} at step {state.step} after {state.seconds:.0f} s; {share}")
    notice(f"validation loss {state.validation_loss:.4f}, best {state.best_loss:.4f} at step {state.best_step}")
    if state.overfitting:
        notice(f"overfitting since step {state.best_step}: training went on to fall, validation rose")
    notice(
        f"checkpoint: {outcome.checkpoint}",
        f"  sample:   minigpt sample {name}",
        f"  longer:   {resume} {outcome.longer}",
        f"  curves:   minigpt board{'' if run.parent == RUNS else ' ' + shell_quote(str(run.parent))}",
    )
