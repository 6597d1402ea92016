"""`minigpt sample`."""

import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from minigpt.cli.hints import shell_quote
from minigpt.cli.input import load_others, load_run, read_text, run_dataset
from minigpt.cli.options import (
    CheckpointOption,
    EncodingOption,
    ForceOption,
    JsonOption,
    OnUnknown,
    RunArgument,
    SamplesOption,
    UnknownOption,
    WithOption,
    checked_device,
)
from minigpt.cli.output import check_writable, json_text, notice, table, write
from minigpt.errors import UserError, escape, sanitize_terminal

if TYPE_CHECKING:
    from minigpt.config.schema import SampleConfig
    from minigpt.sampling.generate import LanguageModel, SampledChar
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.text.dataset import TokenDataset


def sample(
    run: RunArgument = "last",
    prompt: Annotated[str | None, Option("--prompt", "-p", help="Text to continue.", metavar="TEXT")] = None,
    prompt_file: Annotated[
        str | None, Option(help="File with the text to continue, or '-' (standard input).", metavar="FILE")
    ] = None,
    num_samples: SamplesOption = 1,
    length: Annotated[
        int | None, Option("--length", "-l", help="Number of tokens to generate: characters or bytes.", metavar="N")
    ] = None,
    temperature: Annotated[
        float | None,
        Option("--temperature", "-t", help="Higher is more random. 0: always the most likely character.", metavar="X"),
    ] = None,
    top_k: Annotated[int | None, Option(help="Keep only the k most likely characters. 0: all.", metavar="K")] = None,
    top_p: Annotated[
        float | None, Option(help="Keep the most likely characters that reach this probability.", metavar="P")
    ] = None,
    min_p: Annotated[
        float | None, Option(help="Drop characters below this fraction of the top probability.", metavar="P")
    ] = None,
    repetition_penalty: Annotated[
        float | None, Option(help="Above 1: make characters in the context less likely.", metavar="X")
    ] = None,
    stop: Annotated[list[str] | None, Option(help="End a sample before this text; repeatable.", metavar="TEXT")] = None,
    seed: Annotated[int | None, Option(help="Random seed.", metavar="N")] = None,
    checkpoint: CheckpointOption = None,
    with_: WithOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    engine: Annotated[
        Literal["numpy", "torch"], Option(help="numpy, or torch: slower, but on any device.", metavar="NAME")
    ] = "numpy",
    device: Annotated[str | None, Option(help="Device for --engine torch. Default: cpu.", metavar="NAME")] = None,
    copied: Annotated[
        bool, Option("--copied", help="Color what is copied from the training text, and print how much it is.")
    ] = False,
    as_json: JsonOption = False,
    out: Annotated[Path | None, Option("--out", "-o", help="Write to this file.", metavar="FILE")] = None,
    no_stream: Annotated[
        bool, Option("--no-stream", help="Print all text at the end, not as it is generated.")
    ] = False,
    force: ForceOption = False,
) -> None:
    """Continue a prompt with a trained model.

    Omitted options default to the run's settings.

    Examples:
      minigpt sample
      minigpt sample mine --prompt "Once upon a time" --length 300
      minigpt sample mine -n 5 --temperature 0.5 --stop "." --json
      minigpt sample mine --copied
      minigpt sample mine --with other
    """
    # NumPy reads this when it is imported. With more threads, a program that has one of the cores stops all of them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from minigpt.sampling.generate import generate

    if device is not None and engine == "numpy":
        raise UserError("--device needs --engine torch: NumPy runs on the CPU")
    if prompt is not None and prompt_file is not None:
        raise UserError("--prompt and --prompt-file are mutually exclusive")
    if prompt_file is not None:
        prompt = read_text(prompt_file, encoding)
    check_writable(out, read=prompt_file, force=force)
    loaded = _load(run, checkpoint, out)
    others = load_others(loaded, with_ or [], [out])
    for one in (loaded, *others):
        if copied and _split(one) != _split(loaded):
            other = f"{escape(one.run_name)} was trained on another part or text"
            raise UserError(f"--copied needs one training text, and {other}: leave out --copied or --with")
    dataset = run_dataset(loaded) if copied else None  # before generating
    settings = _sample_settings(
        loaded.config.sample,
        length=length, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed,
    )  # fmt: skip
    model = _make_engine([loaded, *others], engine, device or "cpu")
    text = _known_prompt(loaded, settings, prompt, unknown, model.context)
    chars = generate(model, loaded.tokenizer, text, settings, num_samples=num_samples, stop=stop or ())
    if num_samples == 1 and not (as_json or out or no_stream or copied):
        _stream(text, chars)
        return
    samples, is_complete = _collect(chars, num_samples, settings.length)
    copies = _measure_copied(samples, dataset) if dataset else None
    if as_json:
        used = settings.model_dump(exclude={"prompt", "preview"})
        paths = {"checkpoint": escape(loaded.path), "with": [escape(other.path) for other in others]}
        document = {**paths, "prompt": text, "settings": used, "samples": samples}
        write(json_text(document | ({"copied": copies} if copies else {})), out)
    else:
        _print_samples(text, samples, copies, out)
    if not is_complete:
        notice("stopped by Ctrl-C; this is the text generated so far")
        sys.exit(128 + signal.SIGINT)


def _split(checkpoint: "Checkpoint") -> tuple[str, float]:
    """Return what decides the training and the validation text of a run."""
    data = checkpoint.config.data
    return checkpoint.metadata.fingerprint, 0.0 if data.val_source else data.val_fraction


def _load(run: str, checkpoint: str | None, out: Path | None) -> "Checkpoint":
    """Load the checkpoint. If RUN looks like a text, the error suggests --prompt."""
    from minigpt.paths import RUNS

    try:
        return load_run(run, checkpoint, [out])
    except UserError as error:
        is_name = re.fullmatch(r"[\w.+/\\-]*", run)
        if is_name or os.path.exists(run) or os.path.exists(RUNS / run):  # False if the text is too long for a name
            raise
        raise UserError(f"{error}; to continue a text: --prompt {shell_quote(run)}") from error


def _make_engine(checkpoints: "Sequence[Checkpoint]", name: str, device: str) -> "LanguageModel":
    """Return the engine that runs the model, or the average of several. Only "torch" imports torch."""
    if name == "numpy":
        from minigpt.sampling.average import AverageEngine
        from minigpt.sampling.load import load_engine

        engines = [load_engine(one) for one in checkpoints]
        return AverageEngine(engines) if len(engines) > 1 else engines[0]
    from minigpt.config.schema import RuntimeConfig
    from minigpt.model.average import load_average
    from minigpt.model.device import choose_runtime
    from minigpt.model.gpt import use_kernels
    from minigpt.model.reference import TorchEngine

    runtime = choose_runtime(RuntimeConfig(device=checked_device(device), dtype="float32", compile=False))
    model = load_average(checkpoints).to(runtime.device)
    use_kernels(model, runtime.model_kernels)
    return TorchEngine(model)


def _known_prompt(
    loaded: "Checkpoint", settings: "SampleConfig", prompt: str | None, unknown: OnUnknown, context: int
) -> str:
    """Return the prompt, or the settings' prompt, with characters outside the vocabulary skipped or replaced."""
    from minigpt.text.tokenizer import unix_newlines

    if prompt is None:
        prompt = settings.prompt
        unknown = unknown if settings.has_own_prompt else "replace"  # not every text has the default, a newline
    ids = loaded.tokenizer.encode(unix_newlines(prompt), unknown)
    if len(ids) > context:
        notice(f"the prompt is longer than the context: using the last {context} of {len(ids)} tokens")
    return loaded.tokenizer.decode(ids)


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


def _print_samples(prompt: str, samples: list[dict[str, Any]], copies: dict[str, Any] | None, out: Path | None) -> None:
    """Print the samples or write them to `out`. If copies were measured (`found`), color and count them."""
    is_colored = copies is not None and not out and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if is_colored:
        prompt = sanitize_terminal(prompt)
    texts = [prompt + (_colored(sample) if is_colored else sample["text"]) for sample in samples]
    separated = "\n--------\n".join(texts) + "\n"
    if is_colored:
        print(separated, end="")
    else:
        write(separated, out)
    if copies:
        _print_copied(copies, is_colored)


def _measure_copied(samples: list[dict[str, Any]], data: "TokenDataset") -> dict[str, Any]:
    """Add the length of each character's match to `samples`. Return the shares in samples and validation text."""
    from minigpt.sampling.copied import copied_shares, excerpts, match_lengths

    training, validation = data.tokenizer.decode(data.train), data.tokenizer.decode(data.validation)
    for sample in samples:
        sample["copied"] = match_lengths(sample["text"], training)
    copied = [sample["copied"] for sample in samples]
    baseline = [match_lengths(text, training) for text in excerpts(validation, [len(text) for text in copied])]
    return {
        name: {"texts": len(texts), "characters": sum(map(len, texts)), "shares": copied_shares(texts)}
        for name, texts in (("samples", copied), ("validation", baseline))
    }


TINTS = {40: "255;150;140", 20: "255;200;120", 10: "255;240;150"}
"""The background of copied runs, as red, green and blue, by the least length."""


def _tint(text: str, length: int) -> str:
    color = next((color for least, color in TINTS.items() if length >= least), None)
    return f"\x1b[48;2;{color}m\x1b[38;2;0;0;0m{text}\x1b[0m" if color else text


def _colored(sample: dict[str, Any]) -> str:
    """Return the text of a sample, with the copied runs on a colored background. Newlines have none."""
    pairs = zip(sample["text"], sample["copied"], strict=True)
    return "".join(_tint(sanitize_terminal(char), 0 if char == "\n" else length) for char, length in pairs)


def _print_copied(copies: dict[str, Any], is_colored: bool) -> None:
    """Print the shares of copied characters in the samples and in the validation text."""
    parts = [copies["samples"], copies["validation"]]
    print()
    rows = [
        (f"copied in runs of {least}+", *(f"{part['shares'][least]:.1%}" for part in parts))
        for least in parts[0]["shares"]
    ]
    table(("", "generated", "validation text"), [*rows, ("characters", *(f"{part['characters']:,}" for part in parts))])
    if is_colored:
        print("colors:", *(_tint(f" {least}+ ", least) for least in sorted(TINTS)))


def _sample_settings(defaults: "SampleConfig", **options: Any) -> "SampleConfig":
    from minigpt.config.resolve import resolve

    stored = {f"sample.{key}": value for key, value in defaults}
    chosen = {f"sample.{key}": value for key, value in options.items() if value is not None}
    return resolve(("checkpoint", stored), ("command line", chosen)).config.sample
