"""Log attention to TensorBoard at each evaluation, to show how heads form during training."""

import math
from collections.abc import Callable

import numpy as np

from minigpt.errors import UserError
from minigpt.interpret.excerpt import characters
from minigpt.interpret.extract import extract
from minigpt.interpret.images import grid
from minigpt.interpret.scores import PATTERNS, head_scores
from minigpt.model.gpt import GPT
from minigpt.model.load import Model
from minigpt.text.dataset import TokenDataset
from minigpt.training.metrics import Metrics

PROBE_TOKENS = 128
"""Number of tokens to probe, from the start of the validation split."""


def attention_probe(data: TokenDataset) -> Callable[[int, Model, Metrics], None]:
    """Return a function that training calls at each evaluation with (step, model, metrics).

    It logs an image of all heads, the best score for each pattern, and the mean distance, entropy and attention
    outside the line of each layer.
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

    return probe
