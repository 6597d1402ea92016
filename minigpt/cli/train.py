"""`minigpt train`."""

import math
import shutil
import signal
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from minigpt.cli.hints import as_argument, resume_command, shell_quote
from minigpt.cli.options import (
    TEXT,
    ConfigOption,
    MinutesOption,
    SetOption,
    add_setting,
    check_minutes,
    complete_run,
)
from minigpt.cli.output import duration, notice, waiting
from minigpt.errors import DivergedError, RunFinishedError, TrainingError, UserError, count
from minigpt.paths import RUNS, is_run
from minigpt.training.signals import SIGHUP, handle
from minigpt.world import is_one_of_several

if TYPE_CHECKING:
    from minigpt.config.schema import SampleConfig
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.text.tokenizer import Tokenizer
    from minigpt.training.loop import Probe
    from minigpt.training.outcome import Outcome
    from minigpt.training.parallel import Processes
    from minigpt.training.setup import PreparedRun

STARTED = time.perf_counter()
"""About when the command was started. Importing PyTorch and reading the text count for --minutes."""
NameOption = Annotated[
    str | None,
    Option(help="Name of the run. Default: the name of the text or preset, and a number.", metavar="NAME"),
]
FromOption = Annotated[
    str | None,
    Option(
        "--from",
        help="Fine-tune: start from the weights and vocabulary of this run or checkpoint.",
        metavar="RUN",
        autocompletion=complete_run,
    ),
]
UnknownOption = Annotated[
    Literal["error", "skip"] | None,
    Option(help="With --from, characters outside the vocabulary: error or skip.", metavar="WHAT"),
]
ResumeOption = Annotated[
    str | None,
    Option(
        help="Resume a run exactly where it stopped. 'auto': resume the run --name, or start it.",
        metavar="RUN",
        autocompletion=complete_run,
    ),
]


@dataclass(frozen=True)
class NewRun:
    """The arguments that make a new run."""

    text: list[str]
    config: str | None
    settings: list[str]
    """The values of --set, and of options that are settings, as KEY=VALUE."""
    name: str | None
    start: str | None
    """The run whose weights it starts from."""
    minutes: float | None

    @property
    def has_text(self) -> bool:
        return bool(self.text) or self.config is not None


def train(
    text: Annotated[list[str] | None, Argument(help=TEXT, metavar="TEXT")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    minutes: MinutesOption = None,
    name: NameOption = None,
    from_: FromOption = None,
    unknown: UnknownOption = None,
    resume: ResumeOption = None,
) -> None:
    """Train a model on TEXT, with settings that fit its size and the time.

    Without --minutes, train for one or two minutes. Without TEXT, train on the source code of Python's library.
    Ctrl-C saves and stops.

    Examples:
      minigpt train
      minigpt train my.txt --minutes 10 --name mine
      minigpt train --config shakespeare-cpu --set train.steps=500
      minigpt train other.txt --from mine
      minigpt train --resume mine

    For all settings: minigpt config settings. For presets: minigpt config list.
    """
    add_setting(set_, "data.source", text[0] if text else None, "TEXT")  # raises if --set gives it too
    settings = add_setting(set_, "data.unknown", unknown, "--unknown")
    new = NewRun(text or [], config, settings, name, from_, minutes)
    check = partial(_check, new, resume, unknown)
    if not is_one_of_several():
        check()  # before PyTorch is imported
    with waiting("loading PyTorch"):
        import minigpt.training.loop
        import minigpt.training.setup  # noqa: F401 - used later
        from minigpt.training.parallel import join

    with join() as joined:
        handle(signal.SIGTERM, SIGHUP)  # from here on, there is something to undo
        joined.together(check)
        if resume == "auto":
            resume = joined.share(name if is_run(RUNS / str(name)) else None)
        code = _start(joined, new) if resume is None else _resume(joined, resume, new)
    sys.exit(code)


def _check(new: NewRun, resume: str | None, unknown: str | None) -> None:
    """Raise UserError if the arguments contradict each other."""
    check_minutes(new.minutes, new.settings)
    if resume == "auto":
        if new.name is None:
            raise UserError("--resume auto needs the --name of the run to resume or start")
        from minigpt.storage.runs import check_form

        check_form(new.name)  # a path would name one folder below runs, and another one here
    elif resume is not None and (new.has_text or new.name is not None or new.start is not None or unknown):
        raise UserError("--resume keeps the text, configuration and name of the run; combine it only with --set")
    elif resume is not None and new.minutes:
        raise UserError("--resume keeps the duration of the run; to change it, add --set train.steps=N")
    if unknown and new.start is None:
        raise UserError("--unknown needs --from: otherwise the vocabulary comes from the text")
    if new.start is not None and not new.has_text:
        raise UserError("--from needs a text to train on: minigpt train TEXT --from RUN")


def _resume(processes: "Processes", resume: str, new: NewRun) -> int:
    """Resume a run. `new` has a text or settings of its own only after `--resume auto`."""
    from minigpt.storage import runs
    from minigpt.training.setup import newest_intact, prepare_resume

    run = processes.together(lambda: runs.find_run(resume))
    if (new.has_text or new.start or new.minutes) and processes.is_main:
        notice(f"resuming {as_argument(run)} with its own text and settings")
    with processes.on_main(lambda: runs.lock(run)):
        try:
            newest = processes.share(processes.together(lambda: newest_intact(run) if processes.is_main else None))
            assert newest, "the main process has read it"
            step = newest[0].metadata.step
            prepared = processes.together(lambda: prepare_resume(run, new.settings, newest, processes.size))
            processes.connect(prepared.config)
            return _train(run, prepared, processes)
        except TrainingError as error:
            may_help = error.settings or not isinstance(error, DivergedError)
            if error.saved_step == step and may_help:  # the next command needs these settings again
                error.settings = (*new.settings, *error.settings)
            raise
        except RunFinishedError as error:
            if new.name is None:
                raise
            if processes.is_main:  # --resume auto has nothing to do
                notice(error.problem)
            return 0


def _start(processes: "Processes", new: NewRun) -> int:
    from minigpt.model.device import pick_device
    from minigpt.storage import runs
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.training.dial import fit_minutes
    from minigpt.training.setup import describe, prepare_run

    def read_start() -> "Checkpoint | None":
        if new.name is not None:
            runs.check_name(new.name)  # before reading the text, which may take minutes
        if new.start is None or not processes.is_main:
            return None
        return replace(load_checkpoint(new.start), weights={})  # the learner reads them again

    def prepare() -> "PreparedRun":
        prepared = prepare_run(new.text, new.config, new.settings, start, processes.size)
        pick_device(prepared.config.runtime.device, None, processes.local_rank)
        return prepared

    start = processes.share(processes.together(read_start))
    prepared = processes.together(prepare)
    if prepared.is_fitted and not new.minutes and processes.is_main:
        notice(f"fitted settings: {describe(prepared.config, prepared.data)}")
    if new.minutes:
        prepared = fit_minutes(prepared, 60 * new.minutes - (time.perf_counter() - STARTED), processes)
    processes.connect(prepared.config)
    with processes.on_main(lambda: runs.new_run(new.name, prepared.stem)) as run:
        return _train(processes.share(run or Path()), prepared, processes)


def _train(run: Path, prepared: "PreparedRun", processes: "Processes") -> int:
    """Train, and return the exit code: 0, or the code of the signal that stopped the run."""
    from minigpt.storage import runs
    from minigpt.training.loop import train

    config, data, checkpoint, start = prepared.config, prepared.data, prepared.checkpoint, prepared.start
    run_training = partial(train, config, run, data, resume=checkpoint, start=start, processes=processes)
    if not processes.is_main:
        outcome = run_training()
        return 128 + outcome.signal if outcome.signal else 0
    notice(*prepared.notices)
    notice(f"{data.characters:,} characters, vocabulary size {data.tokenizer.vocab_size}; run {run}")
    if start:
        notice(f"starting from the weights of {start.run_name}, step {start.metadata.step}")
    probes = [_sample_probe(config.sample, data.tokenizer)] if config.sample.preview else []
    about = {"command": sys.argv, **({"measured": prepared.measured} if prepared.measured else {})}
    saved = runs.checkpoint_steps(run)
    try:
        outcome = run_training(probes=probes, about=about)
    except (KeyboardInterrupt, SystemExit) as error:
        if set(runs.checkpoint_steps(run)) <= {*saved, 0}:
            state = "the run is unchanged" if checkpoint else "nothing was saved"
            notice(f"stopped before the first step; {state}")
            raise SystemExit(error.code if isinstance(error, SystemExit) else 128 + signal.SIGINT) from error
        raise
    return _report(run, outcome, prepared)


def _sample_probe(settings: "SampleConfig", tokenizer: "Tokenizer") -> "Probe":
    """Return a probe that continues the same prompt at each evaluation, to show progress."""
    from minigpt.model.load import Model, numpy_engine
    from minigpt.sampling.generate import generate
    from minigpt.training.metrics import Metrics

    short = settings.model_copy(update={"length": settings.preview})

    def probe(step: int, model: Model, metrics: Metrics) -> None:
        chars = generate(numpy_engine(model), tokenizer, settings.prompt, short, unknown="replace")
        text = "".join(char.text for char in chars)
        lines = (settings.prompt + text).splitlines()
        metrics.to_tensorboard("add_text", "sample", "\n".join(f"    {line}" for line in lines), step)  # as code
        metrics.message(f"    {' '.join(text.split())}"[: shutil.get_terminal_size().columns])

    return probe


def _report(run: Path, outcome: "Outcome", prepared: "PreparedRun") -> int:
    """Print how the run ended and what to type next. Return the exit code."""
    from minigpt.interpret.simple import compare_loss, explain_loss
    from minigpt.training.fit import LONGER, forecast

    state, name, data = outcome.state, as_argument(run), prepared.data
    if outcome.signal:
        by = "" if outcome.signal == signal.SIGINT else f" by {signal.Signals(outcome.signal).name}"
        notice(f"Stopped{by} at step {state.step}. Everything is saved in {run}.")
        _suggest(resume=resume_command(run), sample=f"minigpt sample {name}")
        return 128 + outcome.signal
    ending = "Stopped early, because validation no longer improved," if outcome.is_early else "Finished"
    best = "" if state.best_step == state.step else f", best {state.best_loss:.4f} at step {state.best_step}"
    losses = f"validation loss {state.validation_loss:.4f}{best}"
    notice(f"{ending} at step {state.step} after {duration(state.seconds)}: {losses}.")
    loss = state.best_loss or 0.0
    notice(*filter(None, (explain_loss(loss, data.tokenizer), compare_loss(loss, data))))
    commands = {"sample": f"minigpt sample {name}", "look": f"minigpt inspect {name} --open"}
    if prepared.config.model.is_recurrent:
        commands["past"] = f"minigpt eval {name} --by-position"
    commands["curves"] = f"minigpt board {'' if run.parent == RUNS else shell_quote(run.parent)}".rstrip()
    if prepared.is_only_text:
        reached = forecast(loss, data.size, prepared.config.tokens_per_step, state.step)
        if reached is not None and not (outcome.is_early or state.overfitting):
            minutes = math.ceil(LONGER * state.seconds / 60)
            notice(f"A run of {count(minutes, 'minute')} would reach a validation loss of about {reached:.2f}.")
            text = " ".join(map(shell_quote, prepared.config.data.source))
            # Not a command that resumes: it would not lower the loss (docs/project/lab).
            commands["longer"] = f"minigpt train {text} --minutes {minutes}"
    if state.overfitting:
        notice(f"Overfitting since step {state.best_step}: the training loss kept falling, the validation loss rose.")
        notice(f"Add text, or try a smaller model or more dropout. Until then, sample uses step {state.best_step}.")
    notice(f"The model is in {run}.")
    _suggest(**commands)
    return 0


def _suggest(**commands: str) -> None:
    """Print what to type next."""
    notice(*(f"  {f'{what}:':8} {command}" for what, command in commands.items()))
