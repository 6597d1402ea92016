"""Log attention to TensorBoard at each evaluation, to show how heads form during training."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from minigpt.errors import UserError, escape, reason
from minigpt.files import write_atomically
from minigpt.interpret.excerpt import characters, glyph
from minigpt.interpret.extract import extract
from minigpt.interpret.images import grid
from minigpt.interpret.scores import PATTERNS, head_scores
from minigpt.model.gpt import GPT
from minigpt.model.load import Model
from minigpt.paths import VALIDATION
from minigpt.text.dataset import TokenDataset
from minigpt.training.metrics import Metrics

PROBE_TOKENS = 128
"""Number of tokens to probe, from the start of the validation split."""
MAX_PROJECTED = 4096
"""Size of the largest vocabulary whose embeddings are logged."""


def attention_probe(data: TokenDataset) -> Callable[[int, Model, Metrics], None]:
    """Return a function that training calls at each evaluation with (step, model, metrics).

    It logs an image of all heads, the best score for each pattern, the token embeddings for TensorBoard's projector,
    and the mean distance, entropy and attention outside the line of each layer.
    """

    def probe(step: int, model: Model, metrics: Metrics) -> None:
        if not isinstance(model, GPT):
            return
        ids = np.asarray(data.validation[: min(PROBE_TOKENS, model.config.context)])
        try:
            activations = extract(model, ids)
        except UserError as error:  # a failed probe must not end the run
            metrics.message(f"step {step}: {error}")
            return
        scores = head_scores(activations.weights, characters(data.tokenizer, ids))
        scalars = {f"heads/{name}": scores[name].values.max().item() for name in PATTERNS}
        for name in ("distance", "entropy", "outside line"):
            means = scores[name].values.mean(-1).tolist()
            scalars |= {f"attention/{name}/layer {layer}": mean for layer, mean in enumerate(means)}
        for tag, value in scalars.items():
            if not math.isnan(value):
                metrics.to_tensorboard("add_scalar", tag, value, step)
        tag = "attention/a row per layer, a column per head"
        metrics.to_tensorboard("add_image", tag, grid(activations.weights), step, dataformats="HWC")
        if (vocab_size := data.tokenizer.vocab_size) <= MAX_PROJECTED and metrics.run and metrics.boards:
            labels = [glyph(c) for c in characters(data.tokenizer, np.arange(vocab_size, dtype=np.uint32))]
            try:
                write_projector(metrics.run / VALIDATION, model.token_embedding.weight.detach().cpu(), labels)
            except OSError as error:
                metrics.message(f"cannot write the embeddings for TensorBoard: {reason(error)}")

    return probe


def write_projector(folder: Path, vectors: Tensor, labels: Sequence[str]) -> None:
    """Write vectors (N, C) and their labels for TensorBoard's projector. Replace earlier vectors."""
    rows = ["\t".join(f"{number:.6g}" for number in row) for row in vectors.tolist()]
    entry = 'embeddings { tensor_name: "characters" tensor_path: "vectors.tsv" metadata_path: "labels.tsv" }'
    files = {"vectors.tsv": rows, "labels.tsv": map(escape, labels), "projector_config.pbtxt": [entry]}
    for name, lines in files.items():
        write_atomically(folder / name, "\n".join(lines) + "\n")
