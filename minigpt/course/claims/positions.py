"""Positions.

Attention is a weighted sum, and a sum does not depend on the order of its terms. So the model needs
the position of each token. It adds a vector for it to the embedding, or it rotates queries and keys (RoPE).
"""

import torch

from minigpt.course.claims.claim import Claim, Finding, fmt, max_abs
from minigpt.course.claims.experiment import Experiment
from minigpt.course.small_models import ENCODER, EXACT, permutation, small_gpt
from minigpt.model.gpt import GPT, use_kernels
from minigpt.model.kernels import CPU


def _shuffle_past(model: GPT, claim: int) -> float:
    """Return how much the last prediction changes when all earlier tokens are shuffled."""
    ids = torch.arange(12)[None]
    other = torch.cat((ids[:, permutation(11, claim)], ids[:, -1:]), dim=1)
    return max_abs(model(ids)[0, -1] - model(other)[0, -1])


def mask_tells_order() -> Finding:
    """Shuffle the past of models without positions, for 1 to 3 layers, with and without the mask.

    The mask reveals the order in models with two or more layers. Claim 58 measures what a GPT can do with it.
    """
    changes: dict[bool, list[float]] = {False: [], True: []}
    for masked in (False, True):
        for layers in (1, 2, 3):
            model = small_gpt(57, n_layer=layers)
            use_kernels(model, CPU if masked else ENCODER)
            changes[masked].append(_shuffle_past(model, claim=57))
    measured = (
        f"with 1, 2, 3 layers, shuffling the past changes the last prediction by {fmt(changes[False])} without "
        f"a mask, and by {fmt(changes[True])} with one"
    )
    no_order = max(*changes[False], changes[True][0]) < EXACT
    return Finding(no_order and min(changes[True][1:]) > 0.1, measured)


NO_POSITIONS = Experiment(
    "positions-4",
    "positions#does-a-model-need-positional-encodings",
    "After a minute of training, a model of 4 layers without positions has a loss {none - learned} "
    "above learned positions, and {none - baseline} above RoPE. Haviv et al. 2022 (arXiv 2203.16634) found "
    "only small differences. Their models have 125 million parameters or more, read words or subwords, and train far "
    "longer. This one has 0.8 million and reads characters.",
    lambda learned, rotary: min(learned, rotary) > 0.1,
)
NO_POSITIONS_IN_ONE_LAYER = Experiment(
    "positions-1",
    "positions#does-a-model-need-positional-encodings",
    "A model of one layer without positions has a loss {none - learned} above learned positions.",
    lambda difference: difference > 0.3,
)
ADDED_OR_CONCATENATED = tuple(
    Experiment(
        question,
        "positions#which-positional-encodings-are-best",
        f"With {layers}, concatenated positions have a loss of {{concatenated}}, added ones {{learned}}.",
        lambda concatenated, added: abs(concatenated - added) < 0.02,
    )
    for question, layers in (
        ("positions-1", "one layer"),
        ("positions-2", "two layers"),
        ("positions-4", "four layers"),
    )
)
LEARNED_OR_SINUSOIDAL = Experiment(
    "positions-4",
    "positions#which-positional-encodings-are-best",
    "After a minute of training, the loss is {learned} with learned positions and {sinusoidal} with sinusoidal ones. "
    "The difference is {learned - sinusoidal}.",
    lambda learned, sinusoidal, difference: abs(difference) < 0.02,
)
RELATIVE = Experiment(
    "positions-4",
    "positions#which-positional-encodings-are-best",
    "With RoPE, positions enter a score only as the distance of the two tokens. After a minute of training, its "
    "loss is {sinusoidal - baseline} below sinusoidal positions and {learned - baseline} below learned ones.",
    lambda *gaps: min(gaps) > 0.02,
)


CLAIMS = (
    Claim(
        57,
        "In a GPT with two or more layers, the causal mask also tells the order",
        mask_tells_order,
        said="Positions are the only source of order.",
        mistake="Each position sees a different past. The second layer can tell them apart.",
    ),
    Claim(
        58,
        "A small GPT without positions learns, but its loss is much higher",
        said="A model that does not know the order loses a lot.",
        trained=(NO_POSITIONS, NO_POSITIONS_IN_ONE_LAYER),
    ),
    Claim(
        69,
        "In small models, added and concatenated positions give similar losses",
        trained=ADDED_OR_CONCATENATED,
        said="Adding positions loses little.",
    ),
    Claim(
        66,
        "In a small model, learned and sinusoidal positions give similar losses",
        said="Learned and sinusoidal positions give similar losses.",
        trained=(LEARNED_OR_SINUSOIDAL,),
    ),
    Claim(
        68,
        "In a small model, RoPE, which encodes relative positions, gives a lower loss than added ones",
        said="The relative position of two tokens matters.",
        trained=(RELATIVE,),
    ),
)
