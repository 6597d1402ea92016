"""`minigpt train`."""

import signal
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from minigpt.cli.hints import as_argument, shell_quote
from minigpt.cli.options import (
    TEXT,
    ConfigOption,
    JsonOption,
    MinutesOption,
    SetOption,
    add_settings,
    check_minutes,
    complete_run,
)
from minigpt.cli.output import json_text, notice, waiting, write
from minigpt.cli.report import report
from minigpt.config.presets import has_settings
from minigpt.errors import DivergedError, RunFinishedError, TrainingError, UserError, escape
from minigpt.paths import RUNS, is_run
from minigpt.training.signals import SIGHUP, handle
from minigpt.world import is_one_of_several

if TYPE_CHECKING:
    from minigpt.storage.checkpoint import Checkpoint
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
DryRunOption = Annotated[
    bool, Option("--dry-run", help="Print the memory and time that the run would take, and do not train.")
]
ResumeOption = Annotated[
    str | None,
    Option(
        help="Resume a run from its newest checkpoint, or at RUN@STEP. 'auto': resume or start the run --name.",
        metavar="RUN",
        autocompletion=complete_run,
    ),
]


common = partial(Option, rich_help_panel="Common settings")
StepsOption = Annotated[str | None, common(help="Number of steps (train.steps).", metavar="N")]
EpochsOption = Annotated[str | None, common(help="Number of epochs instead (train.epochs).", metavar="N")]
BatchSizeOption = Annotated[str | None, common(help="Sequences in each step (train.batch_size).", metavar="N")]
LrOption = Annotated[str | None, common(help="Peak learning rate (optim.lr).", metavar="X")]
SeedOption = Annotated[str | None, common(help="Seed of weights, batches and dropout (train.seed).", metavar="N")]
DeviceOption = Annotated[str | None, common(help="auto, cpu, cuda, cuda:N or mps (runtime.device).", metavar="NAME")]


@dataclass(frozen=True)
class NewRun:
    """The arguments for a new run."""

    text: list[str]
    config: str | None
    settings: list[str]
    """The values of --set, and of options that are settings, as KEY=VALUE."""
    name: str | None
    start: str | None
    """The run whose weights the new run starts from."""
    minutes: float | None
    dry_run: bool = False
    as_json: bool = False

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
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    lr: LrOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
) -> None:
    """Train a model on TEXT, with settings that fit its size and the time.

    Without --config and --minutes, this takes a few minutes on two server cores. Without TEXT and --config, train on
    little stories, as with --config stories. Ctrl-C saves and stops.

    Examples:
      minigpt train
      minigpt train my.txt --minutes 10 --name mine
      minigpt train --config speedrun --steps 500
      minigpt train other.txt --from mine@best
      minigpt train --resume mine

    Every setting is an option too, such as --n-layer 6. For all settings: minigpt config settings.
    For presets: minigpt config.
    """
    common = {"train.steps": steps, "train.epochs": epochs, "train.batch_size": batch_size}
    common |= {"optim.lr": lr, "train.seed": seed, "runtime.device": device, "data.unknown": unknown}
    settings = add_settings(set_ or [], common)
    add_settings(set_ or [], {"data.source": text[0] if text else None})  # raises if --set gives it too
    new = NewRun(text or [], config, settings, name, from_, minutes, dry_run, as_json)
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

        check_form(new.name)  # a path would not be below runs/ everywhere
    elif resume is not None and (new.has_text or new.name is not None or new.start is not None or unknown):
        raise UserError("--resume keeps the text, configuration and name of the run; combine it only with settings")
    elif resume is not None and new.minutes:
        raise UserError("--resume keeps the duration of the run; to change it, add --steps N")
    if resume is not None and new.dry_run:
        raise UserError("--dry-run forecasts a new run; leave out --resume")
    if unknown and new.start is None:
        raise UserError("--unknown needs --from: otherwise the vocabulary comes from the text")
    if new.start is not None and not new.has_text:
        raise UserError("--from needs a text to train on: minigpt train TEXT --from RUN")
    for name in new.text:
        if name.endswith((".yaml", ".yml")) and has_settings(name):
            use = f"minigpt train --config {shell_quote(name)}"
            raise UserError(f"{escape(name)} has settings, not a text; to use them: {use}")


def _resume(processes: "Processes", resume: str, new: NewRun) -> int:
    """Resume a run. `new` has a text, a start or minutes only after `--resume auto`."""
    from minigpt.storage import runs
    from minigpt.storage.checkpoint import read_intact
    from minigpt.training.setup import newest_intact, prepare_resume

    name, which = runs.split_step(resume)
    run = processes.together(lambda: runs.find_run(name))

    def read() -> "tuple[Checkpoint, list[str]]":
        return (read_intact(runs.find_checkpoint(str(run), which)), []) if which else newest_intact(run)

    if (new.has_text or new.start or new.minutes) and processes.is_main:
        notice(f"resuming {as_argument(run)} with its own text and settings")
    with processes.on_main(lambda: runs.lock(run)):
        try:
            found = processes.share(processes.together(lambda: read() if processes.is_main else None))
            assert found, "the main process has read it"
            step = found[0].metadata.step
            with waiting("reading the text"):
                prepared = processes.together(lambda: prepare_resume(run, new.settings, found, processes.size))
            processes.connect(prepared.config)
            return _train(run, prepared, processes, new.as_json)
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
    from minigpt.cli.dry_run import dry_run
    from minigpt.model.device import pick_device
    from minigpt.model.memory import peak_memory
    from minigpt.storage import runs
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.training.dial import fit_minutes
    from minigpt.training.setup import DEFAULT, describe, prepare_run

    def read_start() -> "Checkpoint | None":
        if new.name is not None:
            runs.check_name(new.name)  # before reading the text, which may take minutes
        if new.start is None or not processes.is_main:
            return None
        return replace(load_checkpoint(new.start), weights={})  # the learner reads them again

    def prepare() -> "PreparedRun":
        prepared = prepare_run(new.text, new.config, new.settings, start, processes.size)
        if not new.dry_run:  # a dry run may be about another machine
            pick_device(prepared.config.runtime.device, None, processes.local_rank)
        return prepared

    start, program = processes.share(processes.together(read_start)), peak_memory()
    with waiting("reading the text"):
        prepared = processes.together(prepare)
    if not new.minutes and (prepared.is_fitted or new.config is None):
        kind = "fitted settings" if prepared.is_fitted else f"preset {DEFAULT}"
        settings = f"{kind}: {describe(prepared.config, prepared.data)}"
        prepared = replace(prepared, notices=(settings, *prepared.notices))
    if new.minutes:
        prepared = fit_minutes(prepared, 60 * new.minutes - (time.perf_counter() - STARTED), processes)
    if new.dry_run:
        if processes.is_main:
            notice(*prepared.notices)
            dry_run(prepared, processes.size, program, new.as_json)
        return 0
    processes.connect(prepared.config)
    with processes.on_main(lambda: runs.new_run(new.name, prepared.stem)) as run:
        return _train(processes.share(run or Path()), prepared, processes, new.as_json)


def _train(run: Path, prepared: "PreparedRun", processes: "Processes", as_json: bool) -> int:
    """Train, and return the exit code: 0, or the code of the signal that stopped the run."""
    from minigpt.storage import runs
    from minigpt.training.loop import train

    config, data, checkpoint, start = prepared.config, prepared.data, prepared.checkpoint, prepared.start
    run_training = partial(train, config, run, data, resume=checkpoint, start=start, processes=processes)
    if not processes.is_main:
        outcome = run_training()
        return 128 + outcome.signal if outcome.signal else 0
    printed = [*prepared.notices]
    printed.append(f"{data.characters:,} characters, vocabulary size {data.tokenizer.vocab_size}; run {run}")
    if start:
        printed.append(f"starting from the weights of {start.run_name}, step {start.metadata.step}")
    notice(*printed)
    about = {"command": sys.argv, **({"measured": prepared.measured} if prepared.measured else {})}
    saved = runs.checkpoint_steps(run)
    try:
        outcome = run_training(about=about, printed=printed)
    except (KeyboardInterrupt, SystemExit) as error:
        if set(runs.checkpoint_steps(run)) <= {*saved, 0}:
            state = "the run is unchanged" if checkpoint else "nothing was saved"
            notice(f"stopped before the first step; {state}")
            raise SystemExit(error.code if isinstance(error, SystemExit) else 128 + signal.SIGINT) from error
        raise
    if as_json:
        about_run = {"run": run.name, "folder": escape(run), "signal": outcome.signal}
        write(json_text(about_run | outcome.state.summary))
    return report(run, outcome, prepared)
