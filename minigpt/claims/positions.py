"""Where order comes from: attention itself is a sum over a set, and has none.

A weighted sum does not change when its terms change places. So a character must carry its position with it, as a
vector that is added to its embedding. The first transformer took sines and cosines of many wavelengths:

    PE(p, 2i) = sin(p / 10000^(2i/d)),    PE(p, 2i+1) = cos(p / 10000^(2i/d))      (Vaswani et al. 2017, section 3.5)

One thing does tell order without any position: the causal mask, once layers are stacked. In the first layer it
gives every place another past, and the second layer reads what the first made of it.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from minigpt.claims.claim import Claim, Finding, figure, figures, largest
from minigpt.claims.material import ENCODER, EXACT, awake, gpt, normal, plain, reaching, shuffled
from minigpt.model.gpt import GPT, attention_weights, count_parameters, sinusoidal_positions
from minigpt.seeds import mix_seed

SINGLE = 1e-6
"""Rounding of float32, in which the model keeps its position vectors."""

# --- a set, not a sequence ---------------------------------------------------------------------------


def keys_and_values_have_no_order() -> Finding:
    """A key and its value move together; the query meets the same pairs in another order, and a sum has no order."""
    q, k, v = normal(3, 10, 8, claim=55)
    order = shuffled(10, claim=55)
    last = q[-1:]  # the last query, which the mask lets see all keys
    error = largest(attention_weights(last, k) @ v - attention_weights(last, k[order]) @ v[order])
    only_keys = largest(attention_weights(last, k) @ v - attention_weights(last, k[order]) @ v)
    measured = f"the output changes by {figure(error)}; by {figure(only_keys)} when only the keys are shuffled"
    return Finding(error < EXACT and only_keys > 0.1, measured)


def _shuffle_past(model: GPT, claim: int) -> float:
    """Return by how much the last prediction changes when all characters before the last are shuffled."""
    ids = torch.arange(12)[None]
    other = torch.cat((ids[:, shuffled(11, claim)], ids[:, -1:]), dim=1)
    return largest(model(ids)[0, -1] - model(other)[0, -1])


def one_layer_is_a_bag() -> Finding:
    """The last character of one layer without positions knows which characters came before, not in which order."""
    shuffling = _shuffle_past(gpt(56, n_layer=1), claim=56)
    placed = _shuffle_past(gpt(56, n_layer=1, position="sinusoidal"), claim=56)
    measured = (
        f"shuffling the past changes the last prediction by {figure(shuffling)}; with positions by {figure(placed)}"
    )
    return Finding(shuffling < EXACT and placed > 0.01, measured)


def mask_tells_order() -> Finding:
    """A depth × mask grid, without positions anywhere: the mask leaks order as soon as there are two layers.

    Haviv et al. 2022 found that GPTs without positions learn nearly as well as those with.
    """
    change = {}
    for masked in (False, True):
        for layers in (1, 2, 3):
            model = gpt(57, n_layer=layers)
            model.use(None if masked else ENCODER)
            change[layers, masked] = _shuffle_past(model, claim=57)
    rows = {masked: [change[layers, masked] for layers in (1, 2, 3)] for masked in (False, True)}
    measured = (
        f"shuffling the past changes the last prediction, with 1, 2, 3 layers, by {figures(rows[False])} without a "
        f"mask, by {figures(rows[True])} with it"
    )
    blind = max(*rows[False], rows[True][0]) < EXACT
    return Finding(blind and min(rows[True][1:]) > 0.1, measured)


def order_comes_from_positions() -> Finding:
    """Without mask and positions a shuffled text gives the same outputs, shuffled. The positions break that."""
    ids, order, error = torch.arange(12)[None], shuffled(12, claim=61), {}
    for position in ("none", "sinusoidal", "rotary"):
        model = gpt(61, position=position)
        model.use(ENCODER)
        error[position] = largest(model(ids)[:, order] - model(ids[:, order]))
    measured = "outputs of a shuffled text, put back in order, differ by " + ", ".join(
        f"{figure(change)} ({position})" for position, change in error.items()
    )
    return Finding(error["none"] < EXACT and min(error["sinusoidal"], error["rotary"]) > 0.1, measured)


def equal_characters() -> Finding:
    """To attention two equal characters are one and the same, unless something is added that says where each is."""
    ids, apart = torch.tensor([[3, 1, 4, 1, 5]]), {}  # the same character in places 1 and 3
    for position in ("none", "learned", "sinusoidal"):
        model = gpt(59, position=position)
        model.use(ENCODER)
        apart[position] = largest(model(ids)[0, 1] - model(ids)[0, 3])
    measured = ", ".join(f"{figure(gap)} apart ({position})" for position, gap in apart.items())
    return Finding(apart["none"] < EXACT and min(apart["learned"], apart["sinusoidal"]) > 0.1, measured)


def recurrence_knows_order() -> Finding:
    """Where a network goes through a text step by step, or over neighbours, the order is in how it is computed."""
    x, order = normal(1, 12, 8, claim=71), [*shuffled(11, claim=71).tolist(), 11]
    rnn = awake(lambda: nn.RNN(8, 8, batch_first=True), claim=71)
    lstm = awake(lambda: nn.LSTM(8, 8, batch_first=True), claim=71)
    convolution = awake(lambda: nn.Conv1d(8, 8, kernel_size=3), claim=71)
    last_outputs: dict[str, Callable[[Tensor], Tensor]] = {
        "RNN": lambda x: rnn(x)[0][0, -1],
        "LSTM": lambda x: lstm(x)[0][0, -1],
        "CNN": lambda x: convolution(x.mT)[0, :, -1],
        "attention": lambda x: (attention_weights(x, x) @ x)[0, -1],
    }
    change = {name: largest(last(x) - last(x[:, order])) for name, last in last_outputs.items()}
    measured = "shuffling the past changes the last output by " + ", ".join(
        f"{figure(value)} ({name})" for name, value in change.items()
    )
    return Finding(change.pop("attention") < EXACT and min(change.values()) > 0.01, measured)


# --- sines and cosines -------------------------------------------------------------------------------


def formula() -> Finding:
    """The formula, number by number, in plain Python."""
    table, error = sinusoidal_positions(256, 64), 0.0
    for p in range(256):
        for i in range(32):
            angle = p / 10_000 ** (2 * i / 64)
            error = max(error, abs(table[p, 2 * i].item() - math.sin(angle)))
            error = max(error, abs(table[p, 2 * i + 1].item() - math.cos(angle)))
    measured = f"position 1 begins {figures(table[1, :4].tolist())}; all 256×64 numbers agree to {figure(error)}"
    return Finding(error < SINGLE, measured)


def near_is_alike() -> Finding:
    """Neighbours differ in the fast waves only. The likeness falls with distance, though not with every single step."""
    table = sinusoidal_positions(512, 64).double()
    likeness = table @ table[0] / (table[0] @ table[0])  # (distances,), 1 at distance 0
    bands = [likeness[first : last + 1].mean().item() for first, last in ((1, 4), (5, 16), (17, 64), (65, 256))]
    rises = (likeness.diff() > 0).sum().item()
    measured = (
        f"likeness at distances 1 to 4, 5 to 16, 17 to 64, 65 to 256: {figures(bands)}; "
        f"not step by step, for it rises in {rises} of 511"
    )
    return Finding(bands == sorted(bands, reverse=True) and likeness[1:].max().item() < 0.999, measured)


def shift_is_a_rotation() -> Finding:
    """Each pair (cos, sin) is the hand of a clock. To move by k is to turn every hand by k times its own speed.

    A rotation is a linear map, so a layer can learn to look k places back, wherever it stands. It also makes the
    product of two positions depend on their distance alone.
    """
    table, distance = sinusoidal_positions(512, 64).double(), 17
    hands = torch.complex(table[:, 1::2], table[:, 0::2])  # cos + i sin, (positions, pairs)
    angle = distance / 10_000 ** (torch.arange(0, 64, 2, dtype=torch.float64) / 64)  # (pairs,)
    unturned = largest(hands[:-distance] - hands[distance:])
    error = largest(hands[:-distance] * torch.polar(torch.ones_like(angle), angle) - hands[distance:])
    products = (table[:-distance] * table[distance:]).sum(-1)  # (positions,)
    measured = (
        f"for {len(products)} places, PE(p + {distance}) is the same rotation of PE(p) to {figure(error)}; "
        f"their product is {figure(products.mean())} ± {figure(products.std())}"
    )
    return Finding(error < SINGLE and unturned > 1 and products.std().item() < SINGLE, measured)


def computed_once() -> Finding:
    """The table is worked out when a model is made. It is no parameter: nothing trains it, and no file holds it."""
    model, ids = gpt(64, position="sinusoidal"), torch.arange(12)[None]
    table = model.positions
    assert table is not None
    before = table.clone()
    model(ids).sum().backward()
    model(ids)
    reused = model.positions is table and torch.equal(table, before) and not table.requires_grad
    stored = [name for name in {**dict(model.named_parameters()), **model.state_dict()} if "position" in name]
    counts = {
        position: count_parameters(plain(position=position), 65) for position in ("none", "sinusoidal", "learned")
    }
    measured = "parameters: " + ", ".join(f"{count:,} ({position})" for position, count in counts.items())
    return Finding(reused and not stored and counts["none"] == counts["sinusoidal"] < counts["learned"], measured)


def added_then_dropped() -> Finding:
    """What enters the first block is embedding plus position, through a dropout that is silent except in training."""
    model, ids = gpt(70, position="learned", n_embd=64, dropout=0.5), torch.arange(12)[None]
    added = model.token_embedding(ids) + model.position_embedding.weight[:12]  # (1, T, C)
    at_rest = reaching(model.blocks[0], lambda: model(ids))[0]
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        torch.default_generator.manual_seed(mix_seed("claim", 70, "dropout"))
        training = reaching(model.blocks[0], lambda: model.train()(ids))[0]
    dropped = training == 0
    error = largest(at_rest - added)
    scaled_up = largest(training - 2 * added.masked_fill(dropped, 0))
    share = dropped.double().mean().item()
    measured = (
        f"the sum enters unchanged to {figure(error)}; in training, at 0.5, {share:.0%} is dropped and the rest doubled"
    )
    return Finding(error < EXACT and abs(share - 0.5) < 0.1 and scaled_up < EXACT, measured)


CLAIMS = (
    Claim(
        55,
        "Keys and values can be shuffled together, and nothing changes.",
        ("003",),
        keys_and_values_have_no_order,
    ),
    Claim(56, "Attention alone is at most a clever bag of words.", ("003",), one_layer_is_a_bag),
    Claim(
        57,
        "Positions are the only source of order.",
        ("003",),
        mask_tells_order,
        correction="Not from two layers on: the causal mask gives every place another past, and that tells order.",
    ),
    Claim(
        61,
        "Attention has its order from the positions, not from a sequence of steps.",
        ("001",),
        order_comes_from_positions,
    ),
    Claim(59, "Equal characters in different places must be told apart.", ("000",), equal_characters),
    Claim(71, "Recurrent and convolutional networks know the order by themselves.", ("003",), recurrence_knows_order),
    Claim(62, "Positions are sines and cosines with wavelengths that grow like 10000^(2i/d).", ("002", "003"), formula),
    Claim(63, "Positions close to each other have vectors that are alike, far ones do not.", ("002",), near_is_alike),
    Claim(
        65,
        "The vector of p + k is a linear map of the vector of p, the same for every p.",
        ("002", "003"),
        shift_is_a_rotation,
    ),
    Claim(64, "The positions are computed once and used again.", ("002",), computed_once),
    Claim(70, "Word and position are added, then there is dropout.", ("003",), added_then_dropped),
)
