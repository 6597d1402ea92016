"""`minigpt sample`."""

import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from minigpt.cli.hints import shell_quote
from minigpt.cli.input import read_text
from minigpt.cli.options import (
    CheckpointOption,
    DeviceOption,
    EncodingOption,
    JsonOption,
    OnUnknown,
    RunArgument,
    UnknownOption,
    checked_device,
)
from minigpt.cli.output import check_writable, json_text, notice, refuse_trained_on, write
from minigpt.errors import UserError, escape

if TYPE_CHECKING:
    from minigpt.config.schema import SampleConfig
    from minigpt.sampling.generate import Piece
    from minigpt.storage.checkpoint import Checkpoint


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
    seed: Annotated[int | None, Option(help="Seed of the random draws.")] = None,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
    out: Annotated[Path | None, Option("--out", "-o", help="Write to this file instead.", metavar="F")] = None,
    no_stream: Annotated[bool, Option("--no-stream", help="Print at the end, not as it is drawn.")] = False,
    no_cache: Annotated[bool, Option("--no-cache", help="Compute each step afresh: slow, the same text.")] = False,
) -> None:
    """Continue a prompt with a trained model. What is not said is as the `sample` settings of its run have it."""
    from minigpt.config.schema import RuntimeConfig
    from minigpt.model.load import load_model
    from minigpt.model.memory import check_sampling
    from minigpt.sampling.generate import generate, settle

    given, device = _given(prompt, prompt_file, encoding), checked_device(device)
    check_writable(out, read=prompt_file)
    loaded = _loaded(run, checkpoint)
    refuse_trained_on(loaded.config.data, out)
    kernels = loaded.config.runtime.kernels
    computing = RuntimeConfig(device=device, dtype="float32", compile=False, kernels=kernels)
    model = load_model(loaded)
    runtime = settle(model, computing, num_samples)
    settings = _sample_settings(
        loaded.config.sample,
        length=length, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed,
    )  # fmt: skip
    if given is None:
        given, unknown = settings.prompt, unknown if settings.has_own_prompt else "replace"
    text = _as_read(loaded, given, unknown)
    check_sampling(loaded.config.model, num_samples, settings.length, runtime.device)
    pieces = generate(
        model, loaded.tokenizer, text, settings,
        num_samples=num_samples, stop=stop or (), cache=not no_cache,
    )  # fmt: skip
    if num_samples == 1 and not (as_json or out or no_stream):
        write(text)
        for piece in pieces:
            write(piece.text)
        print()
        return
    samples, is_whole = _by_sample(pieces, num_samples, settings.length)
    if as_json:
        drawn = settings.model_dump(exclude={"prompt", "preview"})
        write(
            json_text({"checkpoint": escape(loaded.path), "prompt": text, "settings": drawn, "samples": samples}), out
        )
    else:
        write("\n--------\n".join(text + one["text"] for one in samples) + "\n", out)
    if not is_whole:
        notice("stopped by Ctrl-C; this is what was drawn until then")
        raise Exit(128 + signal.SIGINT)


def _loaded(run: str, checkpoint: str | None) -> "Checkpoint":
    """Load the checkpoint to draw from. Raises UserError, which says where a text goes that stands in RUN's place."""
    from minigpt.paths import RUNS
    from minigpt.storage.checkpoint import load_checkpoint

    try:
        return load_checkpoint(run, checkpoint)
    except UserError as error:
        is_name = re.fullmatch(r"[\w.+/\\-]*", run)
        if is_name or os.path.exists(run) or os.path.exists(RUNS / run):  # of a text too long for a name, False
            raise
        raise UserError(f"{error}; a text to continue goes by --prompt {shell_quote(run)}") from error


def _given(prompt: str | None, file: str | None, encoding: str) -> str | None:
    """Return the prompt of the command line, where it has one. Raises UserError."""
    if prompt is not None and file is not None:
        raise UserError("--prompt and --prompt-file exclude each other")
    return prompt if file is None else read_text(file, encoding)


def _as_read(loaded: "Checkpoint", prompt: str, unknown: OnUnknown) -> str:
    """Return a prompt as the model reads it, where characters that it does not know are skipped or replaced."""
    ids, context = loaded.tokenizer.encode(prompt, unknown), loaded.config.model.context
    if len(ids) > context:
        notice(f"the prompt is longer than the context: using its last {context} of {len(ids)} tokens")
    return loaded.tokenizer.decode(ids)


def _by_sample(pieces: "Iterable[Piece]", count: int, length: int) -> tuple[list[dict[str, Any]], bool]:
    """Gather each sample's text and its characters with their log-probabilities, and say whether that is all.

    A Ctrl-C ends the drawing, and loses nothing of it.
    """
    from tqdm import tqdm

    samples: list[dict[str, Any]] = [{"text": "", "characters": []} for _ in range(count)]
    try:
        for piece in tqdm(pieces, total=count * length, unit="character", disable=None, leave=False):
            samples[piece.sample]["text"] += piece.text
            samples[piece.sample]["characters"].append([piece.text, piece.logprob])
    except KeyboardInterrupt:
        return samples, False
    return samples, True


def _sample_settings(defaults: "SampleConfig", **given: Any) -> "SampleConfig":
    from minigpt.config.resolve import resolve

    stored = {f"sample.{key}": value for key, value in defaults}
    chosen = {f"sample.{key}": value for key, value in given.items() if value is not None}
    return resolve(("checkpoint", stored), ("command line", chosen)).config.sample
