"""`minigpt eval`."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from typer import Option

from minigpt.cli.input import run_dataset
from minigpt.cli.options import (
    DeviceOption,
    EncodingOption,
    JsonOption,
    OnUnknown,
    RunArgument,
    UnknownOption,
    runtime_settings,
)
from minigpt.cli.output import json_text, load_torch, notice, table, waiting, write
from minigpt.errors import CheckpointError, TextError, count, escape

if TYPE_CHECKING:
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.text.tokenizer import Ids
    from minigpt.training.evaluate import EvalResult

MOST = 0.9
"""--by-position prints within how many tokens this share of the fall of the loss happens."""
FileOption = Annotated[
    list[str] | None,
    Option(help="A text to evaluate on instead of the validation split; repeatable.", metavar="SOURCE"),
]
StrideOption = Annotated[
    int | None,
    Option(
        min=1,
        help="Move the window by N tokens, not by a full context. Usually lowers the loss: compare only at equal N.",
        metavar="N",
    ),
]
ByPositionOption = Annotated[
    bool, Option("--by-position", help="Also measure the loss at each position of the full windows.")
]


def evaluate(
    run: RunArgument = "last",
    file: FileOption = None,
    stride: StrideOption = None,
    by_position: ByPositionOption = False,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure the loss of a model on a whole text.

    Without --file, use the validation split of the run.

    Examples:
      minigpt eval
      minigpt eval mine --file other.txt --unknown skip
      minigpt eval mine@400 --by-position   how much of its past the model uses
    """
    load_torch()
    from minigpt.interpret.simple import simple_losses
    from minigpt.storage.checkpoint import load_checkpoint

    loaded = load_checkpoint(run)
    tokens, name, training = _choose_tokens(loaded, file or [], unknown, encoding)
    result, windows, dtype = _measure(loaded, tokens, stride, by_position, device)
    with waiting("counting n-grams and compressing the text"):
        simple = simple_losses(training, tokens, loaded.tokenizer) if training is not None else {}
    if as_json:
        about = {"protocol": windows, "text": name, "checkpoint": escape(loaded.path), "dtype": dtype}
        others = [{"method": method, "loss": loss} for method, loss in simple.items()]
        positions = [{"position": number, "loss": loss} for number, loss in enumerate(result.by_position, 1)]
        write(json_text(asdict(result) | {"by_position": positions, "simple": others} | about))
        return
    print(f"loss                {result.loss:.4f} nats per {loaded.tokenizer.unit}")
    print(f"bits per character  {result.bits_per_character:.4f}")
    print(f"perplexity          {result.perplexity:.4f}")
    print(f"text                {name}, {result.characters:,} characters")
    print(f"windows             {windows}, {dtype}")
    print(f"checkpoint          {escape(loaded.path)}")
    if simple:
        print()
        rows = sorted({**simple, "this model": result.loss}.items(), key=lambda row: -row[1])
        table(("method", "loss"), [(method, f"{loss:.4f}") for method, loss in rows])
    if by_position:
        _print_by_position(result.by_position)


def _measure(
    checkpoint: "Checkpoint", tokens: "Ids", stride: int | None, by_position: bool, device: str
) -> tuple["EvalResult", str, str]:
    """Return the result for the tokens (N,), a description of the windows, and the precision."""
    from tqdm import tqdm

    from minigpt.model.device import choose_runtime, configure_torch
    from minigpt.model.gpt import use_kernels
    from minigpt.model.load import load_model
    from minigpt.training.evaluate import evaluate

    runtime = choose_runtime(runtime_settings(device), checkpoint.metadata.runtime)
    configure_torch(runtime)
    model = load_model(checkpoint).to(runtime.device)
    use_kernels(model, runtime.model_kernels)
    with tqdm(total=len(tokens) - 1, unit="token", disable=None, leave=False) as bar:
        result = evaluate(
            model, tokens, checkpoint.tokenizer,
            stride=stride, by_position=by_position, autocast=runtime.autocast, progress=bar.update,
        )  # fmt: skip
    if not math.isfinite(result.loss):
        raise CheckpointError(f"the loss of the model is {result.loss:g}; an earlier checkpoint may work")
    if by_position and not result.by_position:
        raise TextError(f"the text is shorter than one window of {count(model.config.context, 'token')}")
    return result, protocol(model.config.context, stride), runtime.dtype


def _choose_tokens(
    loaded: "Checkpoint", text: list[str], unknown: OnUnknown, encoding: str
) -> tuple["Ids", str, "Ids | None"]:
    """Return the tokens (N,) of the text, its name, and the training split. Another text has no training split."""
    from minigpt.text.corpus import scan
    from minigpt.text.dataset import encode, from_scans
    from minigpt.text.sources import open_corpus

    if not text:
        with waiting("reading the text"):
            data = run_dataset(loaded)
        return data.validation, "validation split", data.train
    corpus, trained_on = open_corpus(text, encoding), loaded.metadata.fingerprint
    with waiting("reading the text"):
        scanned = scan(corpus)
    if scanned.fingerprint == trained_on:  # the loss on the training part would say nothing about new text
        notice("this is the text that the run was trained on; using its validation split")
        data = from_scans(loaded.config.data, [scanned], loaded.tokenizer)
        return data.validation, "validation split", data.train
    notice(*corpus.notices)
    if scanned.fingerprint == trained_on.split("+")[0]:
        notice(f"{escape(loaded.run_name)} was trained on this text: the loss is too low")
    changes = {"error": "", "skip": ", unknown characters skipped", "replace": ", unknown characters replaced"}
    return encode(corpus, loaded.tokenizer, unknown), corpus.name + changes[unknown], None


def _print_by_position(by_position: Sequence[float]) -> None:
    """Print the loss at positions 1, 2, 3 to 4 and so on, and how much of the context lowers it."""
    bins = octaves(by_position)
    names = [str(first) if first == last else f"{first}-{last}" for first, last, _ in bins]
    print()
    table(("position", "loss"), [(name, f"{loss:.4f}") for name, (_, _, loss) in zip(names, bins, strict=True)])
    gain = bins[0][2] - bins[-1][2]
    if gain <= 0:
        print("the loss does not fall with the position")
        return
    most = next(last for _, last, loss in bins if bins[0][2] - loss >= MOST * gain)
    print(f"the loss falls by {gain:.4f} from position 1 to {names[-1]}, {MOST:.0%} of that within {most} tokens")


def octaves(by_position: Sequence[float]) -> list[tuple[int, int, float]]:
    """Return the mean over positions 1, 2, 3 to 4, 5 to 8 and so on, as (first, last, mean). Positions start at 1."""
    ends = [min(1 << n, len(by_position)) for n in range((len(by_position) - 1).bit_length() + 1)]
    return [(start + 1, end, statistics.fmean(by_position[start:end])) for start, end in pairwise([0, *ends])]


def protocol(context: int, stride: int | None) -> str:
    """Return a description of the windows of an evaluation, to show beside its results."""
    if stride is None or stride == context:
        return f"non-overlapping windows of {context}"
    return f"sliding windows of {context}, stride {stride} (not comparable with non-overlapping windows, mostly lower)"
