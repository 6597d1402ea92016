"""`minigpt eval`."""

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from minigpt.cli.input import advice_on_unknown
from minigpt.cli.options import (
    CheckpointOption,
    DeviceOption,
    EncodingOption,
    JsonOption,
    RunArgument,
    UnknownOption,
    checked_device,
    checked_unknown,
)
from minigpt.cli.output import json_text, notice, write
from minigpt.errors import UserError, escape, shell_quote

if TYPE_CHECKING:
    pass


def evaluate(
    run: RunArgument = "last",
    text: Annotated[
        list[str] | None, Argument(help="A text to evaluate on instead of the run's validation split.", metavar="TEXT")
    ] = None,
    checkpoint: CheckpointOption = None,
    stride: Annotated[
        int | None, Option(min=1, help="Slide windows by this many tokens; not comparable, mostly lower.")
    ] = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure loss, bits per character and perplexity over a whole text, in one deterministic pass."""
    from tqdm import tqdm

    from minigpt.config.schema import RuntimeConfig
    from minigpt.model.device import choose
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.storage.runs import is_pointer
    from minigpt.text import dataset as data
    from minigpt.text.sources import open_corpus, scan
    from minigpt.training.evaluate import evaluate, protocol

    if os.path.isfile(run) and not is_pointer(Path(run)):
        raise UserError(f"the run comes before the text: minigpt eval last {shell_quote(run)}")
    on_unknown, loaded = checked_unknown(unknown), load_checkpoint(run, checkpoint)
    runtime = choose(RuntimeConfig(device=checked_device(device), compile=False), loaded.meta.runtime)
    loaded.model.to(runtime.device)
    loaded.model.use(runtime.use_kernels())
    if text:
        corpus = open_corpus(text, encoding)
        notice(*corpus.notices)
        with advice_on_unknown():
            if on_unknown == "error":
                tokens, name = data.encode(corpus, scan(corpus), loaded.tokenizer), corpus.name
            else:
                tokens = data.encode_known(corpus, loaded.tokenizer, on_unknown)
                name = f"{corpus.name}, unknown ones {'skipped' if on_unknown == 'skip' else 'replaced'}"
    else:
        tokens, name = loaded.validation, "validation split"
    with tqdm(total=len(tokens) - 1, unit="token", disable=None, leave=False) as bar:
        result = evaluate(
            loaded.model, tokens, loaded.tokenizer,
            stride=stride, autocast=runtime.autocast, progress=bar.update,
        )  # fmt: skip
    how = protocol(loaded.config.model.context, stride)
    if as_json:
        facts = {"protocol": how, "text": name, "checkpoint": escape(loaded.path), "dtype": runtime.dtype}
        # JSON has no infinity.
        figures = {name: value if math.isfinite(value) else None for name, value in asdict(result).items()}
        write(json_text({**figures, **facts}))
        return
    print(f"loss                {result.loss:.4f} nats{' a byte' if loaded.config.data.tokenizer == 'byte' else ''}")
    print(f"bits per character  {result.bits_per_character:.4f}")
    print(f"perplexity          {result.perplexity:.4f}")
    print(f"characters          {result.characters:,} of {name}")
    print(f"protocol            {how}, {runtime.dtype}")
    print(f"checkpoint          {escape(loaded.path)}")
