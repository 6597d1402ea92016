"""The command line: parse, import inside the function, call one function, print.

Results go to stdout, everything else to stderr. A UserError is one line and exit code 1.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from minigpt.errors import UserError, quoted, reason, shown, visible

if TYPE_CHECKING:
    from minigpt.config import RunConfig, SampleConfig
    from minigpt.runtime import Runtime
    from minigpt.sample import Piece
    from minigpt.start import Start
    from minigpt.tokenizer import Ids, Tokenizer
    from minigpt.train import Outcome, Probe

PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None, "add_completion": False}
app = typer.Typer(
    **PLAIN,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(**PLAIN, help="List, describe and fetch texts.")
config_app = typer.Typer(**PLAIN, help="List presets, explain settings, print the schema.")
bench_app = typer.Typer(**PLAIN, help="Measure how fast it is here, against what one would use instead.")
app.add_typer(data_app, name="data")
app.add_typer(config_app, name="config")
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Run the command line; the entry point of `minigpt` and `python -m minigpt`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Windows consoles default to a code page that cannot print most of Unicode.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        try:
            app(windows_expand_args=False)  # a prompt may hold * and ~; what names texts is expanded by corpus.py
        finally:
            print(end="", flush=True)
    except UserError as error:
        _show_traceback()
        print(f"minigpt: {shown(error)}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        from minigpt.runtime import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _show_traceback()
        print("minigpt: out of memory; nothing that was saved is lost", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # the system refuses: a full disk, no permission, a reader such as `head` that has gone
        _show_traceback()
        if not isinstance(error, BrokenPipeError):
            where = f"{shown(error.filename)}: " if error.filename else ""
            print(f"minigpt: {where}{reason(error)}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be written is not tried again at exit
        sys.exit(1)


def _show_traceback() -> None:
    if "--debug" in sys.argv[1:2]:
        traceback.print_exc()


class _SettingsInHelp(TyperCommand):
    """A command whose --help ends with every setting that --set accepts."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from minigpt.config import describe_settings

        with formatter.section("Settings for --set, with their defaults"):
            formatter.write_dl(describe_settings())


TEXT = "Files, folders, globs, '-', builtin:NAME or download:NAME."
ConfigOption = Annotated[
    str | None, Option("--config", "-c", help="A preset's name or a YAML file.", metavar="FILE|PRESET")
]
SetOption = Annotated[
    list[str] | None, Option("--set", "-s", help="Override one setting; repeatable.", metavar="KEY=VALUE")
]
RunArgument = Annotated[str, Argument(help="A run's name or folder, a checkpoint folder, or 'last'.", metavar="RUN")]
CheckpointOption = Annotated[str | None, Option(help="best (the default), last or a step.", metavar="best|last|STEP")]
UnknownOption = Annotated[
    str, Option(help="What a character that the model does not know does.", metavar="error|skip|replace")
]
EncodingOption = Annotated[str, Option(help="Encoding of the files.", metavar="NAME")]
DeviceOption = Annotated[str, Option(help="Where to compute.", metavar="auto|cpu|cuda|cuda:N|mps")]
JsonOption = Annotated[bool, Option("--json", help="Print one JSON document.")]
RoundsOption = Annotated[int, Option(min=1, help="How often each side is measured, in turn.", metavar="N")]


def _print_version(wanted: bool) -> None:
    from minigpt import __version__

    if wanted:
        print(f"minigpt {__version__}")
        raise typer.Exit


@app.callback()
def _minigpt(
    version: Annotated[
        bool, Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Train your own character-level GPT on any text, and look inside it."""


# --- train -------------------------------------------------------------------------------------------


@app.command(cls=_SettingsInHelp)
def train(
    text: Annotated[list[str] | None, Argument(help=TEXT, metavar="TEXT")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    name: Annotated[
        str | None, Option(help="Name of the run; by default the preset's, numbered.", metavar="NAME")
    ] = None,
    resume: Annotated[str | None, Option(help="Go on with a run exactly where it stopped.", metavar="RUN")] = None,
) -> None:
    """Train a model. Without arguments: the quickstart. With a TEXT: a preset fitted to its size."""
    from minigpt import runs
    from minigpt.start import open_new, open_resumed

    if resume is not None:
        if text or config or name:
            raise UserError("--resume goes on with the run's own text, configuration and name; only --set goes with it")
        run = runs.find_run(resume)
        with runs.lock(run):
            _train(run, open_resumed(run, set_ or []))
    else:
        start = open_new(text or [], config, set_ or [])
        with runs.new_run(name, start.stem) as run:
            _train(run, start)


def _train(run: Path, start: "Start") -> None:
    from minigpt import runs
    from minigpt.config import to_yaml
    from minigpt.files import write_atomically
    from minigpt.runtime import best_device
    from minigpt.train import train

    config, data, checkpoint = start.config, start.data, start.checkpoint
    _notice(*start.notices)
    _notice(f"{data.characters:,} characters, {data.tokenizer.vocab_size} in the vocabulary; run {run}")
    probes = [_sample_probe(config.sample, data.tokenizer)] if config.sample.preview else []
    settings, saved = run / "config.yaml", runs.checkpoint_steps(run)
    before = settings.read_text(encoding="utf-8") if checkpoint else ""
    try:
        write_atomically(settings, to_yaml(config))
        device = best_device() if config.runtime.device == "auto" else config.runtime.device
        runs.record_start(run, start.step, sys.argv, device)
        outcome = train(config, run, data, resume=checkpoint, probes=probes)
    except BaseException as error:
        if checkpoint and runs.checkpoint_steps(run) == saved:
            write_atomically(settings, before)  # it did not go on: the run is as it was
        elif not runs.was_started(run) and isinstance(error, KeyboardInterrupt):
            _notice("stopped before the first step: nothing was trained and nothing is kept")
        raise
    _report(run, config, outcome, data.fingerprint)


def _sample_probe(settings: "SampleConfig", tokenizer: "Tokenizer") -> "Probe":
    """Return the probe that draws the same prompt's continuation at each evaluation, to watch it get better."""
    from minigpt.metrics import Metrics
    from minigpt.model import GPT
    from minigpt.sample import generate

    short = settings.model_copy(update={"length": settings.preview})

    def probe(step: int, model: GPT, metrics: Metrics) -> None:
        text = "".join(piece.text for piece in generate(model, tokenizer, settings.prompt, short, unknown="replace"))
        metrics.text(step, "sample", settings.prompt + text)

    return probe


def _report(run: Path, config: "RunConfig", outcome: "Outcome", fingerprint: str) -> None:
    """Say how a run ended and what can be done with it; exit as a signal that ended it asks."""
    from minigpt.presets import expectation
    from minigpt.runs import RUNS, as_argument

    state, name = outcome.state, as_argument(run)
    resume = f"minigpt train --resume {name}"
    if outcome.signal:
        stopped = f"stopped by {signal.Signals(outcome.signal).name} after step {state.step}"
        _notice(f"{stopped}, everything is saved", f"  go on:  {resume}")
        raise typer.Exit(128 + outcome.signal)
    ending = "stopped early, for validation no longer improves," if outcome.stopped_early else "finished"
    share = f"{outcome.evaluation_share:.0%} of it evaluating"
    _notice(f"{ending} at step {state.step} after {state.seconds:.0f} s, {share}")
    _notice(f"validation loss {state.validation_loss:.4f}, best {state.best_loss:.4f} at step {state.best_step}")
    expected = expectation(config, fingerprint)
    if expected and state.validation_loss is not None:
        low, high = expected.range
        lies = "as expected" if low <= state.validation_loss <= high else "not as expected"
        _notice(f"{lies}: {expected.preset} reaches {low:.3f} to {high:.3f}, whatever the seed")
    if state.overfitting:
        _notice(f"overfitting since step {state.best_step}: training went on to fall, validation rose")
    longer = f"--set train.steps={2 * state.step}"
    if config.train.minutes:
        longer = f"--set train.minutes={2 * config.train.minutes:g}"
    elif outcome.stopped_early:
        longer = "--set train.patience=0"
    _notice(
        f"checkpoint: {outcome.checkpoint}",
        f"  sample:   minigpt sample {name}",
        f"  longer:   {resume} {longer}",
        f"  curves:   minigpt board{'' if run.parent == RUNS else ' ' + quoted(str(run.parent))}",
    )


# --- sample and eval ---------------------------------------------------------------------------------


@app.command()
def sample(
    run: RunArgument = "last",
    prompt: Annotated[str | None, Option("--prompt", "-p", help="Text to continue.", metavar="S")] = None,
    prompt_file: Annotated[
        str | None, Option(help="File with the text to continue; '-' is standard input.", metavar="F")
    ] = None,
    num_samples: Annotated[int, Option("--num-samples", "-n", min=1, help="How many to draw, in one batch.")] = 1,
    length: Annotated[int | None, Option("--length", "-l", help="Characters to draw.")] = None,
    temperature: Annotated[
        float | None, Option("--temperature", "-t", help="Below 1 more cautious, above 1 wilder, 0 greedy.")
    ] = None,
    top_k: Annotated[int | None, Option(help="Keep only the k likeliest characters.")] = None,
    top_p: Annotated[float | None, Option(help="Keep the likeliest that reach this probability.")] = None,
    min_p: Annotated[float | None, Option(help="Drop characters below this share of the likeliest.")] = None,
    repetition_penalty: Annotated[
        float | None, Option(help="Above 1: what is in the context gets less likely.")
    ] = None,
    stop: Annotated[list[str] | None, Option(help="End before this text; repeatable.", metavar="S")] = None,
    seed: Annotated[int | None, Option(help="Names the random draws.")] = None,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
    out: Annotated[Path | None, Option("--out", "-o", help="Write to this file instead.", metavar="F")] = None,
    no_stream: Annotated[bool, Option("--no-stream", help="Print at the end, not as it is drawn.")] = False,
    no_cache: Annotated[bool, Option("--no-cache", help="Compute each step afresh: slow, the same text.")] = False,
) -> None:
    """Continue a prompt with a trained model."""
    from minigpt.checkpoint import load_checkpoint
    from minigpt.config import RuntimeConfig
    from minigpt.runtime import choose
    from minigpt.sample import generate

    if prompt is not None and prompt_file is not None:
        raise UserError("--prompt and --prompt-file exclude each other")
    on_unknown = _unknown(unknown)
    runtime = choose(RuntimeConfig(device=_device(device), dtype="float32"))
    loaded = load_checkpoint(run, checkpoint, runtime.device)
    settings = _sample_settings(
        loaded.config.sample,
        length=length, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed,
    )  # fmt: skip
    text = _read_text(prompt_file) if prompt_file is not None else prompt
    if text is None:  # the default, which is nobody's wish to the letter: some texts have no line end
        text, on_unknown = settings.prompt, "replace"
    ids, context = _encode_prompt(loaded.tokenizer, text, on_unknown), loaded.config.model.context
    text = loaded.tokenizer.decode(ids)  # as the model reads it, where something was skipped or replaced
    _check_memory(loaded.config, num_samples, settings.length, runtime)
    if len(ids) > context:
        _notice(f"the prompt is longer than the context: using its last {context} of {len(ids)} tokens")
    pieces = generate(
        loaded.model, loaded.tokenizer, text, settings,
        num_samples=num_samples, stop=stop or (), unknown=on_unknown, cache=not no_cache,
    )  # fmt: skip
    if num_samples == 1 and not (as_json or out or no_stream):
        _write(text)
        for piece in pieces:
            _write(piece.text)
        print()
        return
    samples = _by_sample(pieces, num_samples)
    if as_json:
        facts = {"checkpoint": str(loaded.path), "prompt": text}
        drawn = settings.model_dump(exclude={"prompt", "preview"})
        _write(_json({**facts, "settings": drawn, "samples": samples}), out)
    else:
        _write("\n--------\n".join(text + drawn["text"] for drawn in samples) + "\n", out)


def _by_sample(pieces: "Iterable[Piece]", count: int) -> list[dict[str, Any]]:
    """Gather what was drawn: for each sample its text, and its characters with their log-probabilities."""
    samples: list[dict[str, Any]] = [{"text": "", "characters": []} for _ in range(count)]
    for piece in pieces:
        samples[piece.sample]["text"] += piece.text
        samples[piece.sample]["characters"].append([piece.text, piece.logprob])
    return samples


@app.command("eval")
def evaluate(
    run: RunArgument = "last",
    text: Annotated[
        list[str] | None, Argument(help="A text to evaluate on instead of the run's validation split.", metavar="TEXT")
    ] = None,
    checkpoint: CheckpointOption = None,
    stride: Annotated[
        int | None, Option(min=1, help="Slide windows by this many tokens; lower losses, not comparable.")
    ] = None,
    encoding: EncodingOption = "utf-8",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure loss, bits per character and perplexity over a whole text, in one deterministic pass."""
    from tqdm import tqdm

    from minigpt import data
    from minigpt.checkpoint import load_checkpoint
    from minigpt.config import RuntimeConfig
    from minigpt.corpus import open_corpus, scan
    from minigpt.evaluate import evaluate, protocol
    from minigpt.runtime import choose

    if Path(run).is_file():
        raise UserError(f"the run comes before the text: minigpt eval last {quoted(run)}")
    loaded = load_checkpoint(run, checkpoint)
    runtime = choose(RuntimeConfig(device=_device(device), compile=False), loaded.meta.runtime)
    loaded.model.to(runtime.device)
    if text:
        corpus = open_corpus(text, encoding)
        _notice(*corpus.notices)
        tokens, name = data.encode(corpus, scan(corpus), loaded.tokenizer), corpus.name
    else:
        known = (loaded.meta.corpus.fingerprint, loaded.tokenizer)
        tokens, name = data.prepare(loaded.config.data, known).validation, "validation split"
    with tqdm(total=len(tokens) - 1, unit="token", disable=None, leave=False) as bar:
        result = evaluate(
            loaded.model, tokens, loaded.tokenizer,
            stride=stride, autocast=runtime.autocast, progress=bar.update,
        )  # fmt: skip
    how = protocol(loaded.config.model.context, stride)
    if as_json:
        facts = {"protocol": how, "text": name, "checkpoint": str(loaded.path), "dtype": runtime.dtype}
        _write(_json({**asdict(result), **facts}))
        return
    print(f"loss                {result.loss:.4f} nats")
    print(f"bits per character  {result.bits_per_character:.4f}")
    print(f"perplexity          {result.perplexity:.4f}")
    print(f"characters          {result.characters:,} of {name}")
    print(f"protocol            {how}, {runtime.dtype}")


# --- data, config, runs, board -----------------------------------------------------------------------


@data_app.command("list")
def data_list() -> None:
    """List the texts that have names."""
    from minigpt.corpus import BUILTINS, cache_folder, downloads

    rows = [(f"builtin:{name}", what, "always here") for name, what in BUILTINS.items()]
    for name, entry in downloads().items():
        here = (cache_folder() / "downloads" / entry.filename).is_file()
        where = "downloaded" if here else f"{entry.bytes / 1e6:.1f} MB to download"
        rows.append((f"download:{name}", entry.description, where))
    _table(("name", "text", ""), rows)


@data_app.command("info")
def data_info(
    text: Annotated[list[str], Argument(help=TEXT, metavar="TEXT")],
    encoding: EncodingOption = "utf-8",
    as_json: JsonOption = False,
) -> None:
    """Describe a text: its size, its characters, and the settings that fit it."""
    from minigpt.corpus import open_corpus, scan
    from minigpt.presets import fit

    corpus = open_corpus(text, encoding)
    found = scan(corpus)
    _notice(*corpus.notices)
    _, fitted = fit(found.characters, gpu=False)
    counts = dict(sorted(found.counts.items(), key=lambda item: -item[1]))
    if as_json:
        facts = {"name": corpus.name, "characters": found.characters, "distinct": len(counts)}
        _write(_json({**facts, "fingerprint": found.fingerprint, "counts": counts, "fitted": fitted}))
        return
    rare = sorted(char for char, count in counts.items() if count < 5)
    print(f"characters   {found.characters:,}")
    print(f"distinct     {len(counts):,}")
    print(f"commonest    {_listed(list(counts))}")
    print(f"rare         {len(rare):,} stand fewer than 5 times{': ' if rare else ''}{_listed(rare)}")
    if "\r" in counts:
        print(f"line ends    {counts[chr(13)]:,} carriage returns, kept as they are")
    print(f"fingerprint  {found.fingerprint}")
    print(f"fitted (CPU) {', '.join(f'{key}={value}' for key, value in fitted.items())}")


@data_app.command("get")
def data_get(name: Annotated[str, Argument(help="shakespeare, text8 or enwik8.")]) -> None:
    """Download a text into the cache, check it, and print where it is."""
    from minigpt.corpus import download

    print(download(name.removeprefix("download:")))


@config_app.command("list")
def config_list() -> None:
    """List the presets."""
    from minigpt.presets import presets

    _table(("preset", "what it is"), list(presets().items()))


@config_app.command("show")
def config_show(config: ConfigOption = None, set_: SetOption = None) -> None:
    """Print every setting with its value and where that comes from."""
    from minigpt.config import explain, parse_overrides, resolve
    from minigpt.presets import read_layer

    layers = [read_layer(config)] if config else []
    _table(("setting", "value", "from"), explain(resolve(*layers, parse_overrides(set_ or []))))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of a configuration file, for an editor to complete and check it."""
    from minigpt.config import schema

    _write(_json(schema()))


@app.command()
def runs(
    verify: Annotated[bool, Option("--verify", help="Check all that the runs keep on disk.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the runs in runs/, the one touched last at the end."""
    from minigpt.runs import RUNS, summaries

    if verify:
        _verify_runs(as_json)
        return
    found = list(summaries())
    if as_json:
        _write(_json([asdict(row) for row in found]))
        return
    if not found:
        raise UserError(f"there is no run in {RUNS.absolute()} yet; 'minigpt train' starts one")
    rows = [
        (
            row.name,
            row.corpus,
            f"{row.parameters:,}" if row.parameters is not None else "",
            str(row.step) if row.step is not None else "no checkpoint",
            f"{row.best_loss:.4f}" if row.best_loss is not None else "",
            _age(time.time() - row.touched),
        )
        for row in found
    ]
    _table(("run", "corpus", "parameters", "step", "best loss", "age"), rows)


def _verify_runs(as_json: bool) -> None:
    from minigpt.verify import verify_runs

    found = list(verify_runs())
    if as_json:
        _write(_json([asdict(one) for one in found]))
    else:
        _table(("run", "what", ""), [(one.run, one.what, one.problem or "intact") for one in found])
    if bad := sum(one.problem is not None for one in found):
        raise UserError(f"{bad} of {len(found)} are not as they were written")


@app.command()
def board(
    folder: Annotated[Path, Argument(help="Where the runs are.", metavar="FOLDER")] = Path("runs"),
    port: Annotated[int, Option(min=0, max=65535, help="Port to serve on; 0 takes a free one.")] = 6006,
    host: Annotated[str, Option(help="Address to serve on.", metavar="NAME")] = "localhost",
) -> None:
    """Open TensorBoard on the runs."""
    from tensorboard import default, program

    if not folder.is_dir():
        raise UserError(f"there is no folder {folder.absolute()}; 'minigpt train' makes it")
    server = program.TensorBoard(plugins=default.get_plugins())
    server.configure(argv=["minigpt board", "--logdir", str(folder), "--port", str(port), "--host", host])
    raise typer.Exit(server.main())


# --- bench -------------------------------------------------------------------------------------------


@bench_app.command("train")
def bench_train(
    text: Annotated[list[str] | None, Argument(help=TEXT, metavar="TEXT")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    rounds: RoundsOption = 5,
    seconds: Annotated[float, Option(help="About how long a side works in a round.", metavar="S")] = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Measure training steps, as `minigpt train` would make them, against a plain loop in float32."""
    from minigpt.bench import train

    _report_bench(train.run(text or [], config, set_ or [], rounds, seconds, _notice), as_json)


@bench_app.command("sample")
def bench_sample(
    set_: SetOption = None,
    streams: Annotated[int, Option(min=1, help="How many texts are drawn at once.", metavar="N")] = 1,
    length: Annotated[int, Option(min=1, help="Characters to draw in each.", metavar="N")] = 256,
    rounds: RoundsOption = 5,
    as_json: JsonOption = False,
) -> None:
    """Measure drawing text with and without the cache, and with transformers where it is installed."""
    from minigpt.bench import sample

    _report_bench(sample.run(set_ or [], streams, length, rounds, _notice), as_json)


@bench_app.command("data")
def bench_data(
    text: Annotated[list[str] | None, Argument(help=f"{TEXT} Default: two that are made.", metavar="TEXT")] = None,
    rounds: RoundsOption = 3,
    as_json: JsonOption = False,
) -> None:
    """Measure scanning and encoding a text against plain Python that reads it whole."""
    from minigpt.bench import data

    _report_bench(data.run(text or [], rounds, _notice), as_json)


def _report_bench(found: dict[str, Any], as_json: bool) -> None:
    from minigpt.bench.sides import tables

    if as_json:
        _write(_json(found))
        return
    for head, rows, lines in tables(found):
        _table(head, rows)
        print(*map(shown, lines), "", sep="\n")
    machine = found["machine"]
    print(f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, {found['date']}")


# --- small things ------------------------------------------------------------------------------------


def _notice(*lines: str) -> None:
    for line in lines:
        print(shown(line), file=sys.stderr)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [[shown(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for row in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _write(text: str, out: Path | None = None) -> None:
    if out is None:
        print(visible(text) if sys.stdout.isatty() else text, end="", flush=True)
        return
    try:
        out.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"cannot write {shown(out)}: {reason(error)}") from error


def _listed(chars: Sequence[str], most: int = 12) -> str:
    return " ".join(map(repr, chars[:most])) + (" ..." if len(chars) > most else "")


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _unknown(choice: str) -> Any:
    if choice not in ("error", "skip", "replace"):
        raise UserError(f"--unknown {choice}: expected error, skip or replace")
    return choice


def _device(device: str) -> str:
    from minigpt.config import parse_overrides, resolve

    return resolve(parse_overrides([f"runtime.device={device}"])).config.runtime.device


def _encode_prompt(tokenizer: "Tokenizer", text: str, unknown: Any) -> "Ids":
    try:
        return tokenizer.encode(text, unknown)
    except UserError as error:
        raise UserError(f"{error}; --unknown skip or --unknown replace goes on") from error


def _check_memory(config: "RunConfig", num_samples: int, length: int, runtime: "Runtime") -> None:
    """Refuse more samples than there is memory for, before the system ends the process for it."""
    from minigpt.runtime import free_memory_bytes

    model, free = config.model, free_memory_bytes(runtime.device)
    each = 4 * (2 * model.n_layer * model.n_embd * model.context + 3 * length)  # keys and values, tokens, draws
    if free is not None and num_samples * each > free:
        raise UserError(
            f"{num_samples} samples need about {num_samples * each / 1e9:.0f} GB, {free / 1e9:.0f} GB are free"
        )


def _sample_settings(defaults: "SampleConfig", **given: Any) -> "SampleConfig":
    from minigpt.config import resolve

    stored = {f"sample.{key}": value for key, value in defaults}
    chosen = {f"sample.{key}": value for key, value in given.items() if value is not None}
    return resolve(("checkpoint", stored), ("command line", chosen)).config.sample


def _read_text(path: str) -> str:
    from minigpt.corpus import open_corpus

    return "".join(open_corpus([path]).blocks())
