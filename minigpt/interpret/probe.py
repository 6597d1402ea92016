"""Watching heads form: attention pictures and head scores in TensorBoard at each evaluation of a run."""

import math
from collections.abc import Callable

import numpy as np

from minigpt.errors import UserError
from minigpt.interpret import picture
from minigpt.interpret.extract import extract
from minigpt.interpret.passage import characters, glyph
from minigpt.interpret.scores import PATTERNS, head_scores
from minigpt.model.gpt import GPT
from minigpt.text.dataset import TokenDataset
from minigpt.training.metrics import Metrics

WATCHED = 128
"""Tokens at the start of the validation split that are looked at: the same at each evaluation."""

PROJECTED = 4096
"""Of a larger vocabulary no embeddings are written."""


def attention_probe(data: TokenDataset) -> Callable[[int, GPT, Metrics], None]:
    """Return the probe that `train` calls, as (step, model, metrics).

    It writes `attention/grid`, the weights of all heads as a picture; `heads/PATTERN`, the score of the head that
    follows that pattern most; per layer the mean distance and entropy of its heads; and for the projector the
    embeddings of the characters, where they are not too many to be told apart.
    """

    def probe(step: int, model: GPT, metrics: Metrics) -> None:
        ids = np.asarray(data.validation[: min(WATCHED, model.config.context)])
        try:
            seen = extract(model, ids)
        except UserError as error:  # no reason to end a run
            metrics.say(f"step {step}: {error}")
            return
        scores = head_scores(seen.weights, characters(data.tokenizer, ids))
        scalars = {f"heads/{name}": scores[name].values.max().item() for name in PATTERNS if name != "next"}
        for name in ("distance", "entropy"):
            means = scores[name].values.mean(-1).tolist()
            scalars |= {f"attention/{name}/layer {layer}": mean for layer, mean in enumerate(means)}
        metrics.scalars(step, {tag: value for tag, value in scalars.items() if not math.isnan(value)})
        image = picture.grid(seen.weights, range(len(seen.weights)), range(model.config.n_head))
        metrics.image(step, "attention/grid", picture.png(image), image.size)
        if (vocab_size := data.tokenizer.vocab_size) <= PROJECTED:
            signs = characters(data.tokenizer, np.arange(vocab_size, dtype=np.uint32))
            metrics.embedding(
                "characters", model.token_embedding.weight.detach().cpu(), [glyph(sign) for sign in signs]
            )

    return probe
