"""The command line: parse, import inside the function, call one function, print.

Results go to stdout, everything else to stderr. A UserError is one line and exit code 1.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from minigpt.errors import UserError

if TYPE_CHECKING:
    from minigpt.config import Layer, Resolved, RunConfig, SampleConfig
    from minigpt.data import TextData
    from minigpt.tokenizer import ByteTokenizer, CharTokenizer
    from minigpt.train import Outcome, Probe

app = typer.Typer(
    help="Train your own character-level GPT on any text, and look inside it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="List, describe and fetch texts.", no_args_is_help=True, rich_markup_mode=None)
config_app = typer.Typer(help="List presets, explain settings, print the schema.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(config_app, name="config")


def main() -> None:
    """Run the command line; the entry point of `minigpt` and `python -m minigpt`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Windows consoles default to a code page that cannot print most of Unicode.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        app()
    except UserError as error:
        print(f"minigpt: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


class _SettingsInHelp(TyperCommand):
    """A command whose --help ends with every setting that --set accepts."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from minigpt.config import describe_settings

        with formatter.section("Settings for --set, with their defaults"):
            formatter.write_dl(describe_settings())


ConfigOption = Annotated[str | None, typer.Option("--config", "-c", help="A preset's name or a YAML file.", metavar="FILE|PRESET")]
SetOption = Annotated[list[str] | None, typer.Option("--set", "-s", help="Override one setting; repeatable.", metavar="KEY=VALUE")]
RunArgument = Annotated[str, typer.Argument(help="A run's name or folder, a checkpoint folder, or 'last'.", metavar="[RUN]")]
CheckpointOption = Annotated[str | None, typer.Option("--checkpoint", help="best (the default), last or a step.", metavar="best|last|STEP")]
UnknownOption = Annotated[str, typer.Option("--unknown", help="What a character that the model does not know does: error, skip or replace.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]


# --- train -------------------------------------------------------------------------------------------


@app.command(cls=_SettingsInHelp)
def train(
    text: Annotated[list[str] | None, typer.Argument(help="Files, folders, globs, '-', builtin:NAME or download:NAME.", metavar="[TEXT]...")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run; by default the preset's, numbered.")] = None,
    resume: Annotated[str | None, typer.Option("--resume", help="Go on with a run exactly where it stopped.", metavar="RUN")] = None,
) -> None:
    """Train a model. Without arguments: the quickstart. With a TEXT: a preset fitted to its size."""
    from minigpt import runs

    if resume is not None:
        if text or config or name:
            raise UserError("--resume goes on with the run's own text, configuration and name; only --set goes with it")
        run, resolved, data, checkpoint = _open_resumed(resume, set_ or [])
    else:
        resolved, data, stem = _open_new(text or [], config, set_ or [])
        run, checkpoint = runs.new_run(name, stem), None
    _train(run, resolved.config, data, checkpoint)


def _open_new(text: Sequence[str], preset: str | None, assignments: Sequence[str]) -> "tuple[Resolved, TextData, str]":
    """Resolve the configuration of a new run and prepare its text; return them with a stem for its name."""
    from minigpt import config
    from minigpt.data import prepare

    layers = []
    if preset or not text:
        layers.append(config.read_layer(preset or "quickstart"))
    if text:
        layers.append(("command line", {"data.source": list(text)}))
    layers.append(config.parse_overrides(assignments))
    resolved = config.resolve(*layers)
    data = prepare(resolved.config.data)
    _notice(*data.notices)
    stem = Path(preset or "quickstart").stem
    if not preset and text:
        layers.insert(0, _fitted(data))
        resolved = config.resolve(*layers)
        stem = "".join(c for c in Path(text[0].rpartition(":")[2]).stem.split(".")[0] if c.isalnum() or c in "-_") or "text"
    room = min(len(data.train) - 1, resolved.config.model.context)
    if room < resolved.config.model.context:
        _notice(f"the text has {len(data.train)} tokens to train on: model.context shrinks from {resolved.config.model.context} to {room}")
        resolved = config.resolve(*layers, ("fitted to the text", {"model.context": room}))
    return resolved, data, stem.lstrip("-_") or "text"


def _fitted(data: "TextData") -> "Layer":
    from minigpt.config import fit
    from minigpt.runtime import best_device

    label, values = fit(data.characters, gpu=best_device() != "cpu")
    shape = ", ".join(f"{key.split('.')[1]} {value}" for key, value in values.items())
    _notice(f"{label}: {shape}")
    return label, values


def _open_resumed(name: str, assignments: Sequence[str]) -> "tuple[Path, Resolved, TextData, Path]":
    """Find the newest checkpoint of a run, and its text; refuse changes that would make it another run."""
    from minigpt import config, runs
    from minigpt.data import prepare
    from minigpt.tokenizer import from_json

    run = runs.find_run(name)
    steps = runs.checkpoint_steps(run)
    if not steps:
        raise UserError(f"run {run.name} has no checkpoint to resume from; start it anew under another --name")
    checkpoint = runs.step_folder(run, steps[-1])
    stored = config.read_layer(str(run / "config.yaml"))
    resolved = config.resolve(stored, config.parse_overrides(assignments))
    if changes := config.changed_on_resume(config.resolve(stored).config, resolved.config):
        raise UserError(f"a resumed run keeps its settings, but {'; '.join(changes)}; start a new run instead")
    meta = runs.read_meta(checkpoint)
    tokenizer = from_json((checkpoint / "tokenizer.json").read_text(encoding="utf-8"), str(checkpoint / "tokenizer.json"))
    data = prepare(resolved.config.data, known=(meta["corpus"]["fingerprint"], tokenizer))
    return run, resolved, data, checkpoint


def _train(run: Path, config: "RunConfig", data: "TextData", checkpoint: Path | None) -> None:
    from minigpt import config as configuration, runs
    from minigpt.train import train

    _notice(f"{data.characters:,} characters, {data.tokenizer.vocab_size} in the vocabulary; run {run.name} in {run}")
    probes = [_sample_probe(config.sample, data.tokenizer)] if config.sample.preview else []
    try:
        runs.write_atomically(run / "config.yaml", configuration.to_yaml(config))
        step = int(runs.read_meta(checkpoint)["step"]) if checkpoint else 0
        runs.record_start(run, step, sys.argv)
        outcome = train(config, run, data, resume=checkpoint, probes=probes)
    except UserError:
        curves = run / "metrics.jsonl"
        if not (curves.is_file() and curves.stat().st_size):
            shutil.rmtree(run)  # nothing was trained: the name is free again
        raise
    _report(run, config, outcome)


def _sample_probe(settings: "SampleConfig", tokenizer: "CharTokenizer | ByteTokenizer") -> "Probe":
    """Return the probe that draws the same prompt's continuation at each evaluation, to watch it get better."""
    from minigpt.metrics import Metrics
    from minigpt.model import GPT
    from minigpt.sample import generate

    short = settings.model_copy(update={"length": settings.preview})

    def probe(step: int, model: GPT, metrics: Metrics) -> None:
        text = "".join(piece.text for piece in generate(model, tokenizer, settings.prompt, short, unknown="replace"))
        metrics.text(step, "sample", settings.prompt + text)

    return probe


def _report(run: Path, config: "RunConfig", outcome: "Outcome") -> NoReturn:
    """Say how a run ended and what can be done with it, and exit."""
    from minigpt.runs import RUNS

    state, name = outcome.state, run.name if run.parent == RUNS else str(run)
    resume = f"minigpt train --resume {_quoted(name)}"
    if outcome.signal:
        _notice(f"stopped by {signal.Signals(outcome.signal).name} after step {state.step}, everything is saved", f"  go on:  {resume}")
        raise SystemExit(128 + outcome.signal)
    ending = "stopped early, for validation no longer improves," if outcome.stopped_early else "finished"
    _notice(f"{ending} at step {state.step} after {state.seconds:.0f} s, {outcome.evaluation_share:.0%} of it evaluating")
    _notice(f"validation loss {state.validation_loss:.4f}, best {state.best_loss:.4f} at step {state.best_step}")
    if state.overfitting:
        _notice(f"overfitting since step {state.best_step}: training went on to fall, validation rose")
    longer = f"--set train.steps={2 * state.step}"
    if config.train.minutes:
        longer = f"--set train.minutes={2 * config.train.minutes:g}"
    elif outcome.stopped_early:
        longer = "--set train.patience=0"
    _notice(
        f"checkpoint: {outcome.checkpoint}",
        f"  sample:   minigpt sample {_quoted(name)}",
        f"  longer:   {resume} {longer}",
        "  curves:   minigpt board",
    )
    raise SystemExit(0)


# --- sample and eval ---------------------------------------------------------------------------------


@app.command()
def sample(
    run: RunArgument = "last",
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Text to continue.")] = None,
    prompt_file: Annotated[str | None, typer.Option("--prompt-file", help="File with the text to continue; '-' is standard input.")] = None,
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", min=1, help="How many to draw, in one batch.")] = 1,
    length: Annotated[int | None, typer.Option("--length", "-l", min=1, help="Characters to draw.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", "-t", min=0, help="Below 1 more cautious, above 1 wilder, 0 greedy.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", min=0, help="Keep only the k likeliest characters.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Keep the likeliest characters that reach this probability.")] = None,
    min_p: Annotated[float | None, typer.Option("--min-p", help="Drop characters below this share of the likeliest.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option("--repetition-penalty", help="Above 1: what is in the context gets less likely.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this text; repeatable.", metavar="S")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Names the random draws.")] = None,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file instead of the terminal.")] = None,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print at the end instead of as it is drawn.")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compute each step from scratch: slow, the same text.")] = False,
) -> None:
    """Continue a prompt with a trained model."""
    from minigpt.checkpoint import load_checkpoint
    from minigpt.config import RuntimeConfig
    from minigpt.runtime import choose
    from minigpt.sample import Piece, generate

    if prompt is not None and prompt_file is not None:
        raise UserError("--prompt and --prompt-file exclude each other")
    loaded = load_checkpoint(run, checkpoint, choose(RuntimeConfig(device=_device(device), dtype="float32")).device)
    settings = _sample_settings(
        loaded.config.sample,
        length=length, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed,
    )  # fmt: skip
    text = _read_text(prompt_file) if prompt_file is not None else settings.prompt if prompt is None else prompt
    tokens, context = len(loaded.tokenizer.encode(text, _unknown(unknown))), loaded.config.model.context
    if tokens > context:
        _notice(f"the prompt is longer than the context: using its last {context} of {tokens} tokens")
    pieces = generate(
        loaded.model, loaded.tokenizer, text, settings,
        num_samples=num_samples, stop=stop or (), unknown=_unknown(unknown), cache=not no_cache,
    )  # fmt: skip
    if num_samples == 1 and not (as_json or out or no_stream):
        print(text, end="", flush=True)
        for piece in pieces:
            print(piece.text, end="", flush=True)
        print()
        return
    samples: list[list[Piece]] = [[] for _ in range(num_samples)]
    for piece in pieces:
        samples[piece.sample].append(piece)
    texts = ["".join(piece.text for piece in drawn) for drawn in samples]
    if as_json:
        shown = json.dumps(
            {
                "checkpoint": str(loaded.path),
                "prompt": text,
                "settings": settings.model_dump(exclude={"prompt", "preview"}),
                "samples": [
                    {"text": words, "characters": [[piece.text, piece.logprob] for piece in drawn]}
                    for words, drawn in zip(texts, samples, strict=True)
                ],
            },
            indent=1,
            ensure_ascii=False,
        )
    else:
        shown = "\n--------\n".join(text + words for words in texts)
    _write(shown + "\n", out)


@app.command("eval")
def evaluate(
    run: RunArgument = "last",
    text: Annotated[list[str] | None, typer.Argument(help="A text to evaluate on; by default the run's validation split.", metavar="[TEXT]...")] = None,
    checkpoint: CheckpointOption = None,
    stride: Annotated[int | None, typer.Option("--stride", min=1, help="Slide windows by this many tokens; lower losses, not comparable.")] = None,
    encoding: Annotated[str, typer.Option("--encoding", help="Encoding of TEXT.")] = "utf-8",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure loss, bits per character and perplexity over a whole text, in one deterministic pass."""
    from tqdm import tqdm

    from minigpt import data, runs
    from minigpt.checkpoint import load_checkpoint
    from minigpt.config import RuntimeConfig
    from minigpt.corpus import open_corpus, scan
    from minigpt.evaluate import evaluate, protocol
    from minigpt.runtime import choose

    meta = runs.read_meta(runs.find_checkpoint(run, checkpoint))
    runtime = choose(RuntimeConfig(device=_device(device), compile=False), meta.get("runtime"))
    loaded = load_checkpoint(run, checkpoint, runtime.device)
    if text:
        corpus = open_corpus(text, encoding)
        tokens, name = data.encode(corpus, scan(corpus), loaded.tokenizer), corpus.name
    else:
        known = (str(meta["corpus"]["fingerprint"]), loaded.tokenizer)
        tokens, name = data.prepare(loaded.config.data, known).validation, "validation split"
    with tqdm(total=len(tokens) - 1, unit="token", disable=None, leave=False, file=sys.stderr) as bar:
        result = evaluate(
            loaded.model, tokens, loaded.tokenizer, stride=stride, autocast=runtime.autocast, progress=bar.update
        )
    how = protocol(loaded.config.model.context, stride)
    if as_json:
        facts = {"protocol": how, "text": name, "checkpoint": str(loaded.path), "dtype": runtime.dtype}
        print(json.dumps({**asdict(result), **facts}, indent=1))
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
        here = "downloaded" if (cache_folder() / "downloads" / entry.filename).is_file() else f"{entry.bytes / 1e6:.1f} MB to download"
        rows.append((f"download:{name}", entry.description, here))
    _table(("name", "text", ""), rows)


@data_app.command("info")
def data_info(
    text: Annotated[list[str], typer.Argument(help="Files, folders, globs, '-', builtin:NAME or download:NAME.", metavar="TEXT...")],
    encoding: Annotated[str, typer.Option("--encoding", help="Encoding of the files.")] = "utf-8",
    as_json: JsonOption = False,
) -> None:
    """Describe a text: its size, its characters, and what it is good for."""
    from minigpt.config import fit
    from minigpt.corpus import open_corpus, scan

    corpus = open_corpus(text, encoding)
    found = scan(corpus)
    _notice(*corpus.notices)
    counts = sorted(found.counts.items(), key=lambda item: -item[1])
    rare = sorted(char for char, count in counts if count < 5)
    _, fitted = fit(found.characters, gpu=False)
    if as_json:
        facts = {"name": corpus.name, "characters": found.characters, "distinct": len(counts), "fingerprint": found.fingerprint}
        print(json.dumps({**facts, "counts": dict(counts), "fitted": fitted}, indent=1, ensure_ascii=False))
        return
    print(f"characters   {found.characters:,}")
    print(f"distinct     {len(counts):,}")
    print(f"commonest    {' '.join(repr(char) for char, _ in counts[:12])}")
    few = f": {' '.join(repr(char) for char in rare[:12])}{' ...' if len(rare) > 12 else ''}" if rare else ""
    print(f"rare         {len(rare):,} characters stand fewer than 5 times{few}")
    if "\r" in found.counts:
        print(f"line ends    {found.counts[chr(13)]:,} carriage returns, kept as they are")
    print(f"fingerprint  {found.fingerprint}")
    print(f"fitted (CPU) {', '.join(f'{key}={value}' for key, value in fitted.items())}")


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="shakespeare, text8 or enwik8.")]) -> None:
    """Download a text into the cache, check it, and print where it is."""
    from minigpt.corpus import download

    print(download(name.removeprefix("download:")))


@config_app.command("list")
def config_list() -> None:
    """List the presets."""
    from minigpt.config import presets

    _table(("preset", "what it is"), list(presets().items()))


@config_app.command("show")
def config_show(config: ConfigOption = None, set_: SetOption = None) -> None:
    """Print every setting with its value and where that comes from."""
    from minigpt.config import explain, parse_overrides, read_layer, resolve

    layers = [read_layer(config)] if config else []
    _table(("setting", "value", "from"), explain(resolve(*layers, parse_overrides(set_ or []))))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of a configuration file, for an editor to complete and check it."""
    from minigpt.config import schema

    print(json.dumps(schema(), indent=1))


@app.command()
def runs(as_json: JsonOption = False) -> None:
    """List the runs in runs/, the one touched last at the end."""
    from minigpt.runs import RUNS, summaries

    found = list(summaries())
    if as_json:
        print(json.dumps([asdict(row) for row in found], indent=1))
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


@app.command()
def board(
    folder: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to serve on; 0 takes a free one.")] = 6006,
    host: Annotated[str, typer.Option("--host", help="Address to serve on.")] = "localhost",
) -> None:
    """Open TensorBoard on the runs."""
    import subprocess

    if not folder.is_dir():
        raise UserError(f"there is no folder {folder.absolute()}; 'minigpt train' makes it")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port), "--host", host]
    try:
        raise SystemExit(subprocess.run(command, check=False).returncode)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


# --- small things ------------------------------------------------------------------------------------


def _notice(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name


def _unknown(choice: str) -> Any:
    if choice not in ("error", "skip", "replace"):
        raise UserError(f"--unknown {choice}: expected error, skip or replace")
    return choice


def _device(device: str) -> str:
    from minigpt.config import parse_overrides, resolve

    return resolve(parse_overrides([f"runtime.device={device}"])).config.runtime.device


def _sample_settings(defaults: "SampleConfig", **given: Any) -> "SampleConfig":
    from minigpt.config import resolve

    stored = {f"sample.{key}": value for key, value in defaults}
    chosen = {f"sample.{key}": value for key, value in given.items() if value is not None}
    return resolve(("checkpoint", stored), ("command line", chosen)).config.sample


def _read_text(path: str) -> str:
    from minigpt.corpus import open_corpus

    return "".join(open_corpus([path]).blocks())


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
