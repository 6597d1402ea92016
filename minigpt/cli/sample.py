"""`minigpt sample`."""

import os
import secrets
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from minigpt.cli.input import read_text, run_dataset
from minigpt.cli.options import EncodingOption, OnUnknown, RunArgument, UnknownOption
from minigpt.cli.output import check_writable, json_text, notice, table, write
from minigpt.errors import UnknownCharacterError, UserError, escape
from minigpt.training.signals import STDERR

if TYPE_CHECKING:
    from minigpt.config.schema import SampleConfig
    from minigpt.sampling.generate import SampledChar
    from minigpt.sampling.load import AnyEngine
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.text.dataset import TokenDataset

what, filters, output = (partial(Option, rich_help_panel=panel) for panel in ("What to write", "Filters", "Output"))
PromptOption = Annotated[str | None, what("--prompt", "-p", help="Text to continue.", metavar="LETTERS")]
InteractiveOption = Annotated[bool, what("--interactive", "-i", help="Continue each line that you type, until Ctrl-D.")]
FileOption = Annotated[str | None, what(help="A text to continue; '-': standard input.", metavar="SOURCE")]
SamplesOption = Annotated[int, what("--num-samples", "-n", min=1, max=10_000, help="Number of samples.", metavar="N")]
LengthOption = Annotated[
    int | None, what("--length", "-l", help="Number of tokens to generate: characters or bytes.", metavar="N")
]
StopOption = Annotated[list[str] | None, what(help="End a sample before these letters; repeatable.", metavar="LETTERS")]
SeedOption = Annotated[int | None, what(help="Seed of the random numbers. Default: a new seed each time.", metavar="N")]
TemperatureOption = Annotated[
    float | None,
    filters("--temperature", "-t", help="Higher is more random. 0: always the most likely token.", metavar="X"),
]
TopKOption = Annotated[int | None, filters(help="Keep only the k most likely tokens. 0: all.", metavar="K")]
TopPOption = Annotated[
    float | None, filters(help="Keep the fewest most likely tokens that reach this probability.", metavar="P")
]
MinPOption = Annotated[
    float | None, filters(help="Drop tokens below this fraction of the top probability.", metavar="P")
]
CopiedOption = Annotated[bool, output("--copied", help="Print how much is copied from the training text.")]
OutOption = Annotated[
    Path | None, output("--out", "-o", help="Write to this file. -: standard output.", metavar="FILE")
]
ForceOption = Annotated[bool, output("--force", help="Replace an existing file.")]
NoStreamOption = Annotated[bool, output("--no-stream", help="Print all text at the end, not as it is generated.")]
JsonOption = Annotated[bool, output("--json", help="Print the result as JSON.")]


def sample(
    run: RunArgument = "last",
    prompt: PromptOption = None,
    interactive: InteractiveOption = False,
    file: FileOption = None,
    num_samples: SamplesOption = 1,
    length: LengthOption = None,
    stop: StopOption = None,
    seed: SeedOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    copied: CopiedOption = False,
    out: OutOption = None,
    force: ForceOption = False,
    no_stream: NoStreamOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a prompt with a trained model.

    The prompt, length, temperature and filters default to the run's settings.

    Examples:
      minigpt sample
      minigpt sample mine --prompt "Once upon a time" --length 300
      minigpt sample mine@400 -n 5 --temperature 0.5 --stop "." --json
      minigpt sample mine -i
    """
    # NumPy reads this when it is imported. With more threads, a program that keeps one core busy stops all threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    whole = bool(copied or out or no_stream or as_json or num_samples > 1)
    _check_together(interactive, prompt, file, whole)
    check_writable(out, force)
    prompt = prompt if file is None else read_text(file, encoding)
    options = {"length": length, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    writer = _Writer.load(run, {**options, "seed": seed}, unknown, stop or ())
    if interactive:
        _converse(writer)
    elif whole:
        _write_samples(writer, prompt, num_samples, out, copied, as_json)
    else:
        _stream(*writer.write(prompt))


def _check_together(interactive: bool, prompt: str | None, file: str | None, whole: bool) -> None:
    """Raise UserError if options contradict each other."""
    if prompt is not None and file is not None:
        raise UserError("--prompt and --file both give the text to continue; remove one of them")
    if interactive and (prompt is not None or file is not None or whole):
        raise UserError("--interactive reads lines and prints them; leave out other options of input and output")


@dataclass
class _Writer:
    """A loaded model, and how it writes."""

    checkpoint: "Checkpoint"
    engine: "AnyEngine"
    settings: "SampleConfig"
    unknown: OnUnknown
    stop: Sequence[str]

    @classmethod
    def load(cls, run: str, options: dict[str, Any], unknown: OnUnknown, stop: Sequence[str]) -> "_Writer":
        """Load a run, with its settings changed by options. Print the seed if it is chosen at random."""
        from minigpt.config.resolve import resolve
        from minigpt.sampling.load import load_engine
        from minigpt.storage.checkpoint import load_checkpoint

        loaded = load_checkpoint(run)
        stored = {f"sample.{key}": value for key, value in loaded.config.sample}
        chosen = {f"sample.{key}": value for key, value in options.items() if value is not None}
        drawn = {} if "sample.seed" in chosen else {"sample.seed": secrets.randbelow(1 << 31)}
        settings = resolve(("checkpoint", stored), ("chance", drawn), ("command line", chosen)).config.sample
        engine = load_engine(loaded)
        if drawn and settings.temperature:
            notice(f"seed {settings.seed}")
        return cls(loaded, engine, settings, unknown, stop)

    def write(self, prompt: str | None = None, count: int = 1) -> tuple[str, Iterator["SampledChar"]]:
        """Return the prompt, with unknown characters skipped or replaced, and the characters that continue it."""
        from minigpt.sampling.generate import generate
        from minigpt.text.tokenizer import unix_newlines

        tokenizer = self.checkpoint.tokenizer
        if prompt is None:  # the default is a newline, like an empty prompt, but would print an empty line
            prompt = self.settings.prompt if self.settings.has_own_prompt else ""
        ids = tokenizer.encode(unix_newlines(prompt), self.unknown)
        if prompt and not len(ids):
            notice("the prompt has no character of the vocabulary: starting without it")
        if len(ids) > self.engine.context:
            notice(f"the prompt is longer than the context: using the last {self.engine.context} of {len(ids)} tokens")
        text = tokenizer.decode(ids)
        return text, generate(self.engine, tokenizer, text, self.settings, num_samples=count, stop=self.stop)


def _converse(writer: _Writer) -> None:
    """Continue each line of standard input, with other random numbers each time."""
    while True:
        STDERR.write("> " * sys.stdin.isatty())
        if not (line := sys.stdin.readline()):
            return
        try:
            _stream(*writer.write(line.rstrip("\r\n")))
        except UnknownCharacterError as error:
            notice(error.problem)
        writer.settings = writer.settings.model_copy(update={"seed": writer.settings.seed + 1})


def _stream(prompt: str, chars: "Iterable[SampledChar]") -> None:
    """Print the characters of a single sample as they are generated, after the prompt, which a terminal shows bold."""
    is_bold = prompt and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    sys.stdout.write("\033[1m" * bool(is_bold))
    write(prompt)
    sys.stdout.write("\033[22m" * bool(is_bold))
    for char in chars:
        write(char.text)
    print()


def _collect(chars: "Iterable[SampledChar]", count: int, length: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the text and the log-probabilities of each sample, and whether generation ended without Ctrl-C."""
    from tqdm import tqdm

    samples: list[dict[str, Any]] = [{"text": "", "characters": []} for _ in range(count)]
    try:
        for char in tqdm(chars, total=count * length, unit="character", disable=None, leave=False):
            samples[char.sample]["text"] += char.text
            samples[char.sample]["characters"].append({"text": char.text, "logprob": char.logprob})
    except KeyboardInterrupt:
        return samples, False
    return samples, True


def _measure_copied(samples: list[dict[str, Any]], data: "TokenDataset") -> dict[str, Any]:
    """Add the length of each character's match to `samples`. Return the copied shares of samples and validation."""
    from minigpt.interpret.copied import copied_shares, excerpts, match_lengths

    def shares(lengths: list[list[int]]) -> list[dict[str, float]]:
        return [{"least": least, "share": share} for least, share in copied_shares(lengths).items()]

    training, validation = data.tokenizer.decode(data.train), data.tokenizer.decode(data.validation)
    texts = [sample["text"] for sample in samples]
    lengths = match_lengths([*texts, *excerpts(validation, list(map(len, texts)))], training)  # at once is faster
    copied, baseline = lengths[: len(texts)], lengths[len(texts) :]
    for sample, own in zip(samples, copied, strict=True):
        sample["copied"] = own
    return {
        name: {"texts": len(texts), "characters": sum(map(len, texts)), "shares": shares(texts)}
        for name, texts in (("samples", copied), ("validation", baseline))
    }


def _write_samples(
    writer: _Writer, prompt: str | None, count: int, out: Path | None, copied: bool, as_json: bool
) -> None:
    """Print samples or write them to `out`. If `copied`, measure what is copied from the training text."""
    dataset = run_dataset(writer.checkpoint) if copied else None  # before generating
    text, chars = writer.write(prompt, count)
    samples, is_complete = _collect(chars, count, writer.settings.length)
    used = writer.settings.model_dump(exclude={"prompt", "preview"})
    document = {"checkpoint": escape(writer.checkpoint.path), "prompt": text, "settings": used, "samples": samples}
    if dataset:
        document["copied"] = _measure_copied(samples, dataset)
    if as_json:
        write(json_text(document), out)
    else:
        write("\n--------\n".join(text + sample["text"] for sample in samples) + "\n", out)
        if dataset:
            _print_copied(document["copied"])
    if not is_complete:
        notice("stopped by Ctrl-C; this is the text generated so far")
        sys.exit(128 + signal.SIGINT)


def _print_copied(copied: Any) -> None:
    """Print the shares of characters that are copied."""
    parts = [copied["samples"], copied["validation"]]
    rows = [
        (f"copied in runs of {share['least']}+", *(f"{part['shares'][number]['share']:.1%}" for part in parts))
        for number, share in enumerate(parts[0]["shares"])
    ]
    rows.append(("characters", *(f"{part['characters']:,}" for part in parts)))
    print()
    table(("", "generated", "validation text"), rows)
