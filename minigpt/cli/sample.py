"""`minigpt sample`."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from minigpt.cli.input import read_text, run_dataset
from minigpt.cli.options import (
    CheckpointOption,
    EncodingOption,
    ForceOption,
    JsonOption,
    OnUnknown,
    RunArgument,
    SamplesOption,
    UnknownOption,
)
from minigpt.cli.output import check_writable, json_text, notice, table, write
from minigpt.errors import UserError, escape

if TYPE_CHECKING:
    from minigpt.config.schema import SampleConfig
    from minigpt.sampling.generate import SampledChar
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.text.dataset import TokenDataset

PromptOption = Annotated[str | None, Option("--prompt", "-p", help="Text to continue.", metavar="TEXT")]
PromptFileOption = Annotated[
    str | None, Option(help="File with the text to continue, or '-' (standard input).", metavar="FILE")
]
LengthOption = Annotated[
    int | None, Option("--length", "-l", help="Number of tokens to generate: characters or bytes.", metavar="N")
]
TemperatureOption = Annotated[
    float | None,
    Option("--temperature", "-t", help="Higher is more random. 0: always the most likely character.", metavar="X"),
]
TopKOption = Annotated[int | None, Option(help="Keep only the k most likely characters. 0: all.", metavar="K")]
TopPOption = Annotated[
    float | None, Option(help="Keep the most likely characters that reach this probability.", metavar="P")
]
MinPOption = Annotated[
    float | None, Option(help="Drop characters below this fraction of the top probability.", metavar="P")
]
StopOption = Annotated[list[str] | None, Option(help="End a sample before this text; repeatable.", metavar="TEXT")]
SeedOption = Annotated[int | None, Option(help="Random seed.", metavar="N")]
CopiedOption = Annotated[bool, Option("--copied", help="Print how much is copied from the training text.")]
OutOption = Annotated[
    Path | None, Option("--out", "-o", help="Write to this file. -: standard output.", metavar="FILE")
]
NoStreamOption = Annotated[bool, Option("--no-stream", help="Print all text at the end, not as it is generated.")]


def sample(
    run: RunArgument = "last",
    prompt: PromptOption = None,
    prompt_file: PromptFileOption = None,
    num_samples: SamplesOption = 1,
    length: LengthOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    stop: StopOption = None,
    seed: SeedOption = None,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    copied: CopiedOption = False,
    as_json: JsonOption = False,
    out: OutOption = None,
    no_stream: NoStreamOption = False,
    force: ForceOption = False,
) -> None:
    """Continue a prompt with a trained model.

    Omitted options default to the run's settings.

    Examples:
      minigpt sample
      minigpt sample mine --prompt "Once upon a time" --length 300
      minigpt sample mine -n 5 --temperature 0.5 --stop "." --json
    """
    # NumPy reads this when it is imported. With more threads, a program that has one of the cores stops all of them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from minigpt.storage.checkpoint import load_checkpoint

    prompt = _read_prompt(prompt, prompt_file, encoding)
    check_writable(out, read=prompt_file, force=force)
    loaded = load_checkpoint(run, checkpoint)
    dataset = run_dataset(loaded) if copied else None  # before generating
    settings = _merge(loaded, length=length, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    text, chars = _generate(loaded, settings, prompt, unknown, num_samples, stop or ())
    if num_samples == 1 and not (as_json or out or no_stream or copied):
        _stream(text, chars)
        return
    samples, is_complete = _collect(chars, num_samples, settings.length)
    used = settings.model_dump(exclude={"prompt", "preview"})
    document = {"checkpoint": escape(loaded.path), "prompt": text, "settings": used, "samples": samples}
    _write_samples(document, dataset, out, as_json)
    if not is_complete:
        notice("stopped by Ctrl-C; this is the text generated so far")
        sys.exit(128 + signal.SIGINT)


def _read_prompt(prompt: str | None, file: str | None, encoding: str) -> str | None:
    if prompt is not None and file is not None:
        raise UserError("--prompt and --prompt-file are mutually exclusive")
    return prompt if file is None else read_text(file, encoding)


def _merge(loaded: "Checkpoint", **options: Any) -> "SampleConfig":
    """Return the settings of the run, changed by the options that were given."""
    from minigpt.config.resolve import resolve

    stored = {f"sample.{key}": value for key, value in loaded.config.sample}
    chosen = {f"sample.{key}": value for key, value in options.items() if value is not None}
    return resolve(("checkpoint", stored), ("command line", chosen)).config.sample


def _generate(
    loaded: "Checkpoint",
    settings: "SampleConfig",
    prompt: str | None,
    unknown: OnUnknown,
    num_samples: int,
    stop: Sequence[str],
) -> tuple[str, Iterator["SampledChar"]]:
    """Return the prompt, with unknown characters skipped or replaced, and the characters that continue it."""
    from minigpt.sampling.generate import generate
    from minigpt.sampling.load import load_engine
    from minigpt.text.tokenizer import unix_newlines

    engine = load_engine(loaded)

    if prompt is None:
        prompt = settings.prompt
        unknown = unknown if settings.has_own_prompt else "replace"  # not every text has the default, a newline
    ids = loaded.tokenizer.encode(unix_newlines(prompt), unknown)
    if len(ids) > engine.context:
        notice(f"the prompt is longer than the context: using the last {engine.context} of {len(ids)} tokens")
    text = loaded.tokenizer.decode(ids)
    return text, generate(engine, loaded.tokenizer, text, settings, num_samples=num_samples, stop=stop)


def _stream(prompt: str, chars: "Iterable[SampledChar]") -> None:
    """Print the characters of a single sample as they are generated."""
    write(prompt)
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
            samples[char.sample]["characters"].append([char.text, char.logprob])
    except KeyboardInterrupt:
        return samples, False
    return samples, True


def _measure_copied(samples: list[dict[str, Any]], data: "TokenDataset") -> dict[str, Any]:
    """Add the length of each character's match to `samples`. Return the shares in samples and validation text."""
    from minigpt.interpret.copied import copied_shares, excerpts, match_lengths

    training, validation = data.tokenizer.decode(data.train), data.tokenizer.decode(data.validation)
    texts = [sample["text"] for sample in samples]
    lengths = match_lengths([*texts, *excerpts(validation, list(map(len, texts)))], training)  # at once is faster
    copied, baseline = lengths[: len(texts)], lengths[len(texts) :]
    for sample, own in zip(samples, copied, strict=True):
        sample["copied"] = own
    return {
        name: {"texts": len(texts), "characters": sum(map(len, texts)), "shares": copied_shares(texts)}
        for name, texts in (("samples", copied), ("validation", baseline))
    }


def _write_samples(document: dict[str, Any], dataset: "TokenDataset | None", out: Path | None, as_json: bool) -> None:
    """Print the samples or write them to `out`. With a dataset, measure what is copied from its training text."""
    if dataset:
        document["copied"] = _measure_copied(document["samples"], dataset)
    if as_json:
        write(json_text(document), out)
        return
    texts = [document["prompt"] + sample["text"] for sample in document["samples"]]
    write("\n--------\n".join(texts) + "\n", out)
    if copied := document.get("copied"):
        parts = [copied["samples"], copied["validation"]]
        rows = [
            (f"copied in runs of {least}+", *(f"{part['shares'][least]:.1%}" for part in parts))
            for least in parts[0]["shares"]
        ]
        rows.append(("characters", *(f"{part['characters']:,}" for part in parts)))
        print()
        table(("", "generated", "validation text"), rows)
