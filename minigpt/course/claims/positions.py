"""Positions: how a transformer knows the order of its tokens.

Attention is a weighted sum, and a sum does not depend on the order of its terms. So the model needs
the position of each token. It adds a vector for it to the embedding, or it rotates queries and keys (RoPE). The first
transformer added sines and cosines of many wavelengths:

    PE(p, 2i) = sin(p / 10000^(2i/d)),    PE(p, 2i+1) = cos(p / 10000^(2i/d))      (Vaswani et al. 2017, section 3.5)

There is a second source of order: the causal mask, in models with two or more layers. In the first layer each position
sees a different past, and the second layer reads the result.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from minigpt.course.claims.claim import Claim, Finding, fmt, fmt_named, max_abs
from minigpt.course.claims.experiment import Experiment
from minigpt.course.claims.small_models import (
    ENCODER,
    EXACT,
    normal,
    permutation,
    randomize,
    record_inputs,
    small_config,
    small_gpt,
)
from minigpt.model.gpt import GPT, attention_weights, sinusoidal_positions, use_kernels
from minigpt.model.kernels import CPU
from minigpt.model.size import count_parameters
from minigpt.seeds import mix_seed

FLOAT32 = 1e-6
"""Tolerance for float32, the precision of the model's position vectors."""

# --- a set, not a sequence ---------------------------------------------------------------------------


def keys_and_values_have_no_order() -> Finding:
    """Shuffle the keys and values together. The query sees the same pairs, so the weighted sum does not change."""
    q, k, v = normal(3, 10, 8, claim=55)
    order = permutation(10, claim=55)
    last = q[-1:]  # the last query, which sees all keys
    error = max_abs(attention_weights(last, k) @ v - attention_weights(last, k[order]) @ v[order])
    only_keys = max_abs(attention_weights(last, k) @ v - attention_weights(last, k[order]) @ v)
    measured = f"the output changes by {fmt(error)}; with only the keys shuffled, by {fmt(only_keys)}"
    return Finding(error < EXACT and only_keys > 0.1, measured)


def _shuffle_past(model: GPT, claim: int) -> float:
    """Return how much the last prediction changes when all earlier tokens are shuffled."""
    ids = torch.arange(12)[None]
    other = torch.cat((ids[:, permutation(11, claim)], ids[:, -1:]), dim=1)
    return max_abs(model(ids)[0, -1] - model(other)[0, -1])


def one_layer_is_a_bag() -> Finding:
    """Shuffle the past of a one-layer model without positions. The last prediction does not change.

    The last token knows which tokens came before, but not in which order.
    """
    without = _shuffle_past(small_gpt(56, n_layer=1), claim=56)
    with_positions = _shuffle_past(small_gpt(56, n_layer=1, position="sinusoidal"), claim=56)
    measured = (
        f"shuffling the past changes the last prediction by {fmt(without)}, or by {fmt(with_positions)} with positions"
    )
    return Finding(without < EXACT and with_positions > 0.01, measured)


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


def order_comes_from_positions() -> Finding:
    """Shuffle a text in an encoder. Without positions the outputs are shuffled in the same way."""
    ids, order, error = torch.arange(12)[None], permutation(12, claim=61), {}
    for position in ("none", "sinusoidal", "rotary"):
        model = small_gpt(61, position=position)
        use_kernels(model, ENCODER)
        error[position] = max_abs(model(ids)[:, order] - model(ids[:, order]))
    measured = f"difference between the shuffled outputs and the outputs for the shuffled text: {fmt_named(error)}"
    return Finding(error["none"] < EXACT and min(error["sinusoidal"], error["rotary"]) > 0.1, measured)


def equal_characters() -> Finding:
    """Compare the outputs of two equal tokens in an encoder. They are equal unless positions are added."""
    ids, apart = torch.tensor([[3, 1, 4, 1, 5]]), {}  # token 1 at positions 1 and 3
    for position in ("none", "learned", "sinusoidal"):
        model = small_gpt(59, position=position)
        use_kernels(model, ENCODER)
        apart[position] = max_abs(model(ids)[0, 1] - model(ids)[0, 3])
    measured = f"the outputs differ by {fmt_named(apart)}"
    return Finding(apart["none"] < EXACT and min(apart["learned"], apart["sinusoidal"]) > 0.1, measured)


def recurrence_knows_order() -> Finding:
    """Shuffle the past of four networks. Only the output of attention does not change.

    A recurrent network computes step by step, and a convolution combines neighbors. Both depend on the order.
    """
    x, order = normal(1, 12, 8, claim=71), [*permutation(11, claim=71).tolist(), 11]
    rnn = randomize(lambda: nn.RNN(8, 8, batch_first=True), claim=71)
    lstm = randomize(lambda: nn.LSTM(8, 8, batch_first=True), claim=71)
    convolution = randomize(lambda: nn.Conv1d(8, 8, kernel_size=3), claim=71)
    last_outputs: dict[str, Callable[[Tensor], Tensor]] = {
        "RNN": lambda x: rnn(x)[0][0, -1],
        "LSTM": lambda x: lstm(x)[0][0, -1],
        "CNN": lambda x: convolution(x.mT)[0, :, -1],
        "attention": lambda x: (attention_weights(x, x) @ x)[0, -1],
    }
    changes = {name: max_abs(last(x) - last(x[:, order])) for name, last in last_outputs.items()}
    measured = f"shuffling the past changes the last output by {fmt_named(changes)}"
    return Finding(changes.pop("attention") < EXACT and min(changes.values()) > 0.01, measured)


# --- sines and cosines -------------------------------------------------------------------------------


def formula() -> Finding:
    """Evaluate the formula in plain Python and compare it with the model's matrix."""
    table, error = sinusoidal_positions(256, 64), 0.0
    for p in range(256):
        for i in range(32):
            angle = p / 10_000 ** (2 * i / 64)
            error = max(error, abs(table[p, 2 * i].item() - math.sin(angle)))
            error = max(error, abs(table[p, 2 * i + 1].item() - math.cos(angle)))
    first = fmt(table[1, :4])
    measured = f"position 1 starts with {first}; all 256×64 values agree to within {fmt(error)}"
    return Finding(error < FLOAT32, measured)


def near_is_alike() -> Finding:
    """Compute the similarity of position vectors by distance. It falls on average, but not at every step.

    Neighboring positions differ mostly in the short wavelengths.
    """
    table = sinusoidal_positions(512, 64).double()
    similarity = table @ table[0] / (table[0] @ table[0])  # (distances,), 1 at distance 0
    bands = [similarity[first : last + 1].mean().item() for first, last in ((1, 4), (5, 16), (17, 64), (65, 256))]
    rises = (similarity.diff() > 0).sum().item()
    measured = f"similarity at distances 1-4, 5-16, 17-64, 65-256: {fmt(bands)}; it rises at {rises} of 511 steps"
    return Finding(bands == sorted(bands, reverse=True) and similarity[1:].max().item() < 0.999, measured)


def shift_is_a_rotation() -> Finding:
    """Rotate the vector of each position by fixed angles. The result is the vector of the position 17 steps later.

    Each pair (cos, sin) is a point on a circle, and a shift by k rotates it by k times its frequency. A rotation is a
    linear map, so a layer can learn to look k positions back from any position. The dot product of two position
    vectors therefore depends only on their distance.
    """
    table, distance = sinusoidal_positions(512, 64).double(), 17
    points = torch.complex(table[:, 1::2], table[:, 0::2])  # cos + i sin, (positions, pairs)
    angle = distance / 10_000 ** (torch.arange(0, 64, 2, dtype=torch.float64) / 64)  # (pairs,)
    unrotated = max_abs(points[:-distance] - points[distance:])
    error = max_abs(points[:-distance] * torch.polar(torch.ones_like(angle), angle) - points[distance:])
    products = (table[:-distance] * table[distance:]).sum(-1)  # (positions,)
    measured = (
        f"for {len(products)} positions p, one rotation maps PE(p) to PE(p + {distance}) to within {fmt(error)}; "
        f"their dot product is {fmt(products.mean())} ± {fmt(products.std())}"
    )
    return Finding(error < FLOAT32 and unrotated > 1 and products.std().item() < FLOAT32, measured)


def computed_once() -> Finding:
    """Check that the position matrix is a buffer: computed once, never trained, and not stored in checkpoints."""
    model, ids = small_gpt(64, position="sinusoidal"), torch.arange(12)[None]
    table = model.positions
    assert table is not None
    before = table.clone()
    model(ids).sum().backward()
    model(ids)
    reused = model.positions is table and torch.equal(table, before) and not table.requires_grad
    stored = [name for name in {**dict(model.named_parameters()), **model.state_dict()} if "position" in name]
    kinds = ("none", "sinusoidal", "learned")
    counts = {position: count_parameters(small_config(position=position), 65) for position in kinds}
    measured = f"parameters: {fmt_named(counts)}"
    return Finding(reused and not stored and counts["none"] == counts["sinusoidal"] < counts["learned"], measured)


def added_then_dropped() -> Finding:
    """Record the input of the first block: embedding plus position, with dropout applied during training."""
    model, ids = small_gpt(70, position="learned", n_embd=64, dropout=0.5), torch.arange(12)[None]
    added = model.token_embedding(ids) + model.position_embedding.weight[:12]  # (1, T, C)
    evaluated = record_inputs(model.blocks[0], lambda: model(ids))[0]
    with torch.random.fork_rng(devices=[]):  # dropout uses the global generator
        torch.default_generator.manual_seed(mix_seed("claim", 70, "dropout"))
        trained = record_inputs(model.blocks[0], lambda: model.train()(ids))[0]
    dropped = trained == 0
    error = max_abs(evaluated - added)
    kept_error = max_abs(trained - 2 * added.masked_fill(dropped, 0))
    share = dropped.double().mean().item()
    measured = (
        f"in evaluation the input matches the sum to within {fmt(error)}; in training with dropout 0.5, "
        f"{share:.0%} of the values are dropped and the rest doubled"
    )
    return Finding(error < EXACT and abs(share - 0.5) < 0.1 and kept_error < EXACT, measured)


# --- trained models ----------------------------------------------------------------------------------

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
        55,
        "Shuffling keys and values together changes nothing",
        ("003",),
        keys_and_values_have_no_order,
    ),
    Claim(
        56,
        "One layer without positions sees a bag of words",
        ("003",),
        one_layer_is_a_bag,
        notes_say="Attention alone is at most a clever bag of words.",
    ),
    Claim(
        57,
        "In a GPT with two or more layers, the causal mask also tells the order",
        ("003",),
        mask_tells_order,
        notes_say="Positions are the only source of order.",
        mistake="Each position sees a different past. The second layer can tell them apart.",
    ),
    Claim(
        58,
        "A small GPT without positions learns, but its loss is much higher",
        ("003",),
        notes_say="A model that does not know the order loses a lot.",
        trained=(NO_POSITIONS, NO_POSITIONS_IN_ONE_LAYER),
    ),
    Claim(
        61,
        "An encoder gets the order from positions, not from sequential steps",
        ("001",),
        order_comes_from_positions,
        notes_say="Self-attention gets the order from positions, not from sequential steps.",
    ),
    Claim(
        59,
        "Without positions or a mask, equal tokens get equal outputs",
        ("000",),
        equal_characters,
        notes_say="The model must distinguish equal tokens at different positions.",
    ),
    Claim(
        71,
        "Recurrent and convolutional networks need no positions to know the order",
        ("003",),
        recurrence_knows_order,
    ),
    Claim(
        62,
        "Sinusoidal positions are sines and cosines with wavelengths that grow like 10000^(2i/d)",
        ("002", "003"),
        formula,
    ),
    Claim(
        63,
        "The similarity of sinusoidal positions falls with their distance, on average",
        ("002",),
        near_is_alike,
        notes_say="Close positions have similar vectors; distant positions do not.",
    ),
    Claim(
        65,
        "The sinusoidal vector of position p + k is a linear map of that of p, the same for every p",
        ("002", "003"),
        shift_is_a_rotation,
    ),
    Claim(64, "Sinusoidal positions are computed once and reused", ("002",), computed_once),
    Claim(
        70,
        "In GPT-2, token and position vectors are added, then dropout is applied",
        ("003",),
        added_then_dropped,
        notes_say="Token and position vectors are added, then dropout is applied.",
    ),
    Claim(
        69,
        "In small models, added and concatenated positions give similar losses",
        ("003",),
        trained=ADDED_OR_CONCATENATED,
        notes_say="Adding positions loses little.",
    ),
    Claim(
        66,
        "In a small model, learned and sinusoidal positions give similar losses",
        ("003",),
        notes_say="Learned and sinusoidal positions give similar losses.",
        trained=(LEARNED_OR_SINUSOIDAL,),
    ),
    Claim(
        68,
        "In a small model, RoPE, which encodes relative positions, gives a lower loss than added ones",
        ("003",),
        notes_say="The relative position of two tokens matters.",
        trained=(RELATIVE,),
    ),
)
