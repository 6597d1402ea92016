"""`minigpt eval`."""

import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from minigpt.cli.hints import shell_quote
from minigpt.cli.input import load_others, run_dataset
from minigpt.cli.options import (
    CheckpointOption,
    DeviceOption,
    EncodingOption,
    JsonOption,
    OnUnknown,
    RunArgument,
    UnknownOption,
    WithOption,
    checked_device,
)
from minigpt.cli.output import json_text, notice, table, write
from minigpt.errors import CheckpointError, TextError, UserError, count, escape
from minigpt.paths import RUNS, is_run

if TYPE_CHECKING:
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.storage.metadata import Metadata
    from minigpt.text.tokenizer import Ids
    from minigpt.training.evaluate import EvalResult

MOST = 0.9
"""The share of the gain from the context that the summary of --by-position locates."""


def evaluate(
    run: RunArgument = "last",
    text: Annotated[
        list[str] | None,
        Argument(help="Evaluate on this text instead of the validation split.", metavar="TEXT"),
    ] = None,
    checkpoint: CheckpointOption = None,
    with_: WithOption = None,
    stride: Annotated[
        int | None,
        Option(
            min=1,
            help="Move the window N tokens, not a full context. Usually lowers the loss: compare only at equal N.",
            metavar="N",
        ),
    ] = None,
    by_position: Annotated[
        bool, Option("--by-position", help="Also measure the loss at each position of the full windows.")
    ] = False,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure the loss of a model on a whole text.

    Without TEXT, use the validation split of the run.

    Examples:
      minigpt eval
      minigpt eval my-1 other.txt --unknown skip
      minigpt eval my-1 --by-position   how much of its past the model uses
      minigpt eval my-1 --with my-2     the average of two models
    """
    from tqdm import tqdm

    from minigpt.config.schema import RuntimeConfig
    from minigpt.model.average import load_average
    from minigpt.model.device import choose_runtime, configure_torch
    from minigpt.model.gpt import use_kernels
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.text.simple import simple_losses
    from minigpt.training.evaluate import evaluate, protocol

    if os.path.isfile(run) and not is_run(RUNS / run):
        raise UserError(f"{escape(run)} is a text file; name the run first: minigpt eval last {shell_quote(run)}")
    loaded = load_checkpoint(run, checkpoint)
    runtime = choose_runtime(RuntimeConfig(device=checked_device(device), compile=False), loaded.metadata.runtime)
    configure_torch(runtime)
    others = load_others(loaded, with_ or [])
    model = load_average([loaded, *others]).to(runtime.device)
    use_kernels(model, runtime.model_kernels)
    tokens, name, training, fingerprint = _choose_tokens(loaded, text or [], unknown, encoding)
    for member in (loaded, *others):
        if _may_know(member, loaded, fingerprint, is_validation=training is not None):
            notice(f"{escape(member.run_name)} may have been trained on this text: the loss may be too low")
    with tqdm(total=len(tokens) - 1, unit="token", disable=None, leave=False) as bar:
        result = evaluate(
            model, tokens, loaded.tokenizer,
            stride=stride, by_position=by_position, autocast=runtime.autocast, progress=bar.update,
        )  # fmt: skip
    if not math.isfinite(result.loss):
        raise CheckpointError(f"the loss of the model is {result.loss:g}; an earlier checkpoint may work")
    if by_position and not result.by_position:
        raise TextError(f"the text is shorter than one window of {count(model.config.context, 'token')}")
    windows = protocol(model.config.context, stride)
    simple = simple_losses(training, tokens, loaded.tokenizer) if training is not None else {}
    if as_json:
        document = _document(result, by_position) | {"simple": simple}
        document |= {"protocol": windows, "text": name, "checkpoint": escape(loaded.path), "dtype": runtime.dtype}
        document |= {"with": [escape(other.path) for other in others]}
        write(json_text(document))
        return
    print(f"loss                {result.loss:.4f} nats per {loaded.tokenizer.unit}")
    print(f"bits per character  {result.bits_per_character:.4f}")
    print(f"perplexity          {result.perplexity:.4f}")
    print(f"text                {name}, {result.characters:,} characters")
    print(f"windows             {windows}, {runtime.dtype}")
    if training is not None and not others and windows == protocol(model.config.context, None):
        _print_recorded(loaded.metadata, result.loss)
    print(f"checkpoint          {escape(loaded.path)}")
    for other in others:
        print(f"averaged with       {escape(other.path)}")
    if simple:
        print()
        ours = "these models" if others else "this model"
        rows = sorted({**simple, ours: result.loss}.items(), key=lambda row: -row[1])
        table(("method", "loss"), [(method, f"{loss:.4f}") for method, loss in rows])
    if by_position:
        _print_by_position(result.by_position)


def _choose_tokens(
    loaded: "Checkpoint", text: list[str], unknown: OnUnknown, encoding: str
) -> tuple["Ids", str, "Ids | None", str]:
    """Return the tokens (N,) of the text, its name, the training split, and the fingerprint.

    By default, it is the validation split of the run. Another text has no training split.
    """
    from minigpt.text.corpus import scan
    from minigpt.text.dataset import encode, from_scans
    from minigpt.text.sources import open_corpus

    if not text:
        data = run_dataset(loaded)
        return data.validation, "validation split", data.train, data.fingerprint
    corpus = open_corpus(text, encoding)
    scanned = scan(corpus)
    if scanned.fingerprint == loaded.metadata.fingerprint:
        # The loss on the training part would say nothing about new text.
        notice("this is the text that the run was trained on; using its validation split")
        dataset = from_scans(loaded.config.data, [scanned], loaded.tokenizer)
        return dataset.validation, "validation split", dataset.train, scanned.fingerprint
    notice(*corpus.notices)
    name = corpus.name
    if unknown != "error":
        name += f", unknown characters {'skipped' if unknown == 'skip' else 'replaced'}"
    return encode(corpus, loaded.tokenizer, unknown), name, None, scanned.fingerprint


def _may_know(run: "Checkpoint", first: "Checkpoint", fingerprint: str, *, is_validation: bool) -> bool:
    """Return whether a run may have been trained on the validation split of the first run, or else on a text."""
    from minigpt.training.setup import trained_on_validation

    trained = run.metadata.fingerprint
    if not is_validation:
        return trained.split("+")[0] == fingerprint
    return trained != fingerprint or trained_on_validation(run, first.config.data, fingerprint)


def _document(result: "EvalResult", by_position: bool) -> dict[str, Any]:
    """Return the result for JSON, which has no infinity. The perplexity can be infinite."""
    document = {key: None if value == math.inf else value for key, value in asdict(result).items()}
    if not by_position:
        del document["by_position"]
    return document


def _print_recorded(metadata: "Metadata", loss: float) -> None:
    """Print the loss of the best checkpoint as `minigpt runs` shows it, if it differs."""
    best = metadata.state.best_loss
    if best is not None and metadata.step == metadata.state.best_step and f"{best:.4f}" != f"{loss:.4f}":
        print(f"in training         {best:.4f} nats: another precision or device rounds differently")


def _print_by_position(by_position: Sequence[float]) -> None:
    """Print the loss at positions 1, 2, 3 to 4 and so on, and how much of the context lowers it."""
    from minigpt.training.evaluate import octaves

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
