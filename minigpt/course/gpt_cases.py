"""What `course check` compares in chapters 7 to 9 and 11: the parts of a GPT, and the whole.

Letters in shapes: B batch, T time, C width, H heads, D head size, V vocabulary.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.course import letters
from minigpt.course.comparison import EXCHANGED, Case, Mistake, Skipped, load
from minigpt.course.recorder import BATCH, Recorder, V, check_training
from minigpt.course.small_models import randn, small_config
from minigpt.errors import UserError
from minigpt.interpret.extract import ablate_heads, extract
from minigpt.model.gpt import GPT, Attention, Block, attention_weights, rope_cos_sin
from minigpt.model.kernels import apply_rope
from minigpt.model.load import load_transformer
from minigpt.paths import RUNS, is_run
from minigpt.storage.checkpoint import load_checkpoint

CLASSIC: dict[str, Any] = {"n_embd": 8, "context": 16, "position": "rotary", "bias": True}
"""The settings of a small `classic` model, for `small_config`."""
ARCHITECTURE = ("family", "norm", "activation", "qk_norm", "bias", "position")
"""The settings of a model that do not follow from its shape."""
YOUR_RUN = "course-9"


def heads(my: Any) -> Iterator[Case]:
    """Check chapter 7."""
    x, ours, theirs = randn(2, 6, 8), Attention(small_config(**CLASSIC)), my.Attention(8, 4)
    cos_sin = rope_cos_sin(6, 2)
    q, k, v = ours.queries_keys_values(x, cos_sin)
    output, swapped = (weights @ v for weights in (attention_weights(q, k), attention_weights(k, q)))  # (B, H, T, D)

    def projected(output: Tensor) -> Any:
        return ours.proj(output.transpose(1, 2).flatten(2))

    mistakes = {
        "the heads are not moved behind the letters before they are put side by side": ours.proj(
            output.reshape(2, 6, 8)
        ),
        EXCHANGED: projected(swapped),
        "the output is not multiplied by proj": output.transpose(1, 2).flatten(2),
        "queries and keys have no RoPE": ours(x),
        "the values have RoPE too": projected(attention_weights(q, k) @ apply_rope(v, cos_sin)),
    }
    yield Case("Attention(8, 4)(x)", lambda: load(theirs, ours)(x), ours(x, cos_sin), mistakes)


def classic(seed: int = 2) -> GPT:
    """Return a small model of the family `classic` with large random weights, so that each part matters."""
    torch.manual_seed(seed)
    model = GPT(small_config(**CLASSIC), 9).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def block(my: Any) -> Iterator[Case]:
    """Check chapter 8."""
    ours, theirs, x, cos_sin = classic().blocks[0], my.Block(8, 4), randn(2, 6, 8), rope_cos_sin(6, 2)
    assert isinstance(ours, Block)
    yield Case("Block(8, 4)", partial(load, theirs, ours))
    hidden = ours.mlp.up(x)
    mistakes = {
        'GELU has no approximate="tanh"': ours.mlp.down(F.gelu(hidden)),
        "it has ReLU, not GELU": ours.mlp.down(hidden.relu()),
        "the activation is missing": ours.mlp.down(hidden),
    }
    yield Case("Block(8, 4).mlp(x)", lambda: theirs.mlp(x), ours.mlp(x), mistakes)
    attended = ours.attention(ours.norm1(x), cos_sin)
    middle, unnormed = x + attended, x + ours.attention(x, cos_sin)
    after = ours.norm1(unnormed)
    mistakes = {
        "norm1 is missing": unnormed + ours.mlp(ours.norm2(unnormed)),
        "norm2 is missing": middle + ours.mlp(middle),
        "norm1 is used twice": middle + ours.mlp(ours.norm1(middle)),
        "the norms come after the parts, not before them": ours.norm2(after + ours.mlp(after)),
        "x is not added to the output of the attention": attended + ours.mlp(ours.norm2(attended)),
        "x is not added to the output of the MLP": ours.mlp(ours.norm2(middle)),
        "the MLP does not see the output of the attention": middle + ours.mlp(ours.norm2(x)),
    }
    yield Case("Block(8, 4)(x)", lambda: theirs(x), ours(x, cos_sin), mistakes)


def yours(my: Any) -> Iterator[Case]:
    """Check chapter 9, and the trained model of `minigpt course run 9` if there is one."""
    ours, theirs = classic(), my.GPT(9, 16, n_layer=2, n_head=4, C=8)
    ids, name = torch.arange(12).view(2, 6) % 9, "GPT(9, 16, n_layer=2, n_head=4, C=8)"

    def check_start() -> None:
        gpt = my.GPT(99, 16, n_layer=1, n_head=4, C=64)
        for name, parameter in gpt.named_parameters():
            if parameter.ndim == 2 and not 0.013 < parameter.std() < 0.025:  # GPT-2 divides by the root of 2 n_layer
                raise Mistake(f"starts {name} with a standard deviation of {parameter.std():.3f}, expected 0.020")
        if any(isinstance(module, nn.LayerNorm) and (module.weight != 1).any() for module in gpt.modules()):
            raise Mistake("changes the gains of its norms: only matrices start with a standard deviation of 0.02")

    yield Case("GPT(99, 16, n_layer=1, n_head=4, C=64)", check_start)
    yield Case(name, partial(load, theirs, ours))
    embedded, stack = ours.embed(ids), nn.Sequential(*ours.blocks)
    mistakes = {
        "the last norm is missing": _logits(ours, ids, norm=False),
        "only the first block is used": _logits(ours, ids, blocks=1),
        "the blocks are left out": ours.unembed(embedded),
        "queries and keys have no RoPE": ours.unembed(stack(embedded)),
    }
    yield Case(f"{name}(ids)", lambda: theirs(ids), ours(ids), mistakes)
    yield from _generation(my, theirs)
    yield from _optimizer(my)
    call = partial(check_training, lambda gpt, ids, steps, context, batch: my.train_gpt(gpt, ids, steps, batch))
    yield Case("train_gpt(gpt, ids, steps=30, batch=4)", call)
    yield Case("train_gpt(gpt, ids, steps=2, at=at)", partial(_moments, my), [0, 1, 2])
    if is_run(RUNS / YOUR_RUN):
        yield _your_run(my)


def _your_run(my: Any) -> Case:
    """Return the check of the trained model. Raises Skipped if its run is damaged or does not fit."""
    name = f"{RUNS.name}/{YOUR_RUN}"
    try:
        checkpoint = load_checkpoint(YOUR_RUN, "last")
        config, tokenizer = checkpoint.config.model, checkpoint.tokenizer
        chapter = small_config(**CLASSIC)
        if any(getattr(config, key) != getattr(chapter, key) for key in ARCHITECTURE):
            raise UserError("its model is not that of the chapter")
        network = load_transformer(checkpoint)
        prompt = torch.from_numpy(tokenizer.encode(letters.PROMPT[: config.context]))[None]
    except UserError as error:
        raise Skipped(f"skipped {name}: {error}") from None
    gpt = my.GPT(tokenizer.vocab_size, config.context, config.n_layer, config.n_head, config.n_embd)
    return Case(f"the logits of {name}", lambda: load(gpt, network)(prompt), network(prompt))


def _logits(model: GPT, ids: Tensor, norm: bool = True, blocks: int | None = None) -> Tensor:
    x, cos_sin = model.embed(ids), rope_cos_sin(ids.size(1), 2)
    for layer in list(model.blocks)[:blocks]:
        x = layer(x, cos_sin)
    return model.unembed(x) if norm else x @ model.token_embedding.weight.T


WRONG_ADAMW: dict[str, dict[str, Any]] = {
    "the weight decay is missing": {"decays": (0.0, 0.0)},
    "vectors have weight decay too": {"decays": (0.1, 0.1)},
    "the weight decay is added to the gradient": {"kind": torch.optim.Adam},
    "beta2 is 0.999, not 0.99": {"beta2": 0.999},
}
"""The arguments of `_torch_adamw` for each mistake of a reader."""


def _torch_adamw(parameters: Any, kind: Any = torch.optim.AdamW, beta2: float = 0.99, decays: Any = (0.1, 0.0)) -> Any:
    groups = [{"params": [p], "weight_decay": decay} for p, decay in zip(parameters, decays, strict=True)]
    return kind(groups, lr=0.1, betas=(0.9, beta2))


def _three_steps(make: Callable[[list[nn.Parameter]], Any], *rate: float) -> Tensor:
    """Return a matrix and a vector, flattened into one, after three steps of the optimizer that `make` returns."""
    parameters = [nn.Parameter(randn(4, 3)), nn.Parameter(randn(3))]
    optimizer = make(parameters)
    for step in range(3):
        for parameter in parameters:
            parameter.grad = randn(*parameter.shape).roll(step)
        optimizer.step(*rate)
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def _optimizer(my: Any) -> Iterator[Case]:
    """Check `AdamW`, `rate_at` and `clip`."""
    mistakes = {name: _three_steps(partial(_torch_adamw, **change)) for name, change in WRONG_ADAMW.items()}
    call = partial(_three_steps, my.AdamW, 0.1)
    yield Case("three steps of AdamW([matrix, vector])", call, _three_steps(_torch_adamw), mistakes)
    rates = torch.tensor([min((step + 1) / 50, (500 - step) / 451) for step in range(500)])
    name = "[rate_at(step, 500, peak=1) for step in range(500)]"
    yield Case(name, lambda: torch.tensor([float(my.rate_at(step, 500, peak=1)) for step in range(500)]), rates)
    long = 10 * F.normalize(randn(10), dim=0)
    yield Case("clip(gradients) of length 10", partial(_clipped, my.clip, long), long / 10)
    short, mistakes = long / 100, {"it lengthens short gradients": long / 10}
    yield Case("clip(gradients) of length 0.1", partial(_clipped, my.clip, short), short, mistakes)


def _clipped(clip: Callable[[list[Tensor]], object], gradient: Tensor) -> Tensor:
    """Return a gradient after `clip` has received it in two parts."""
    parts = [part.clone() for part in gradient.split((6, 4))]
    clip(parts)
    return torch.cat(parts)


def _moments(my: Any) -> list[int]:
    """Return at which steps `train_gpt` calls `at`. Raise Mistake if it does not call both `clip` and `rate_at`."""
    found, spies = list[int](), dict[str, mock.Mock]()
    with ExitStack() as stack:
        for name in ("clip", "rate_at"):
            function = getattr(my, name)
            spies[name] = mock.Mock(wraps=function)
            for module in {my, *sys.modules.values()}:  # the reader's functions may be in several files
                if vars(module).get(name) is function:
                    stack.enter_context(mock.patch.object(module, name, spies[name]))
        my.train_gpt(Recorder(), torch.arange(V), 2, batch=BATCH, at=found.append)
    for name, spy in spies.items():
        if not spy.called:
            raise Mistake(f"never calls {name}")
    return found


def _generation(my: Any, theirs: nn.Module) -> Iterator[Case]:
    """Check `generate`: past the context with a model that is certain of each letter, then with one of equal logits."""
    certain, ignorant = classic(seed=28), classic()  # with this seed, each mistake changes the letters
    prompt = torch.arange(12) % 9
    with torch.no_grad():
        certain.norm.weight.mul_(1000)
        for model, name in ((certain, "norm.bias"), (ignorant, "norm.weight"), (ignorant, "norm.bias")):
            model.get_parameter(name).zero_()

    @torch.no_grad()
    def continuation(first: int | None = -16, last: int | None = None, position: int = -1, sign: int = 1) -> Tensor:
        ids = prompt
        for _ in range(10):
            probabilities = _logits(certain, ids[None, first:last])[0, position].softmax(-1)
            ids = torch.cat((ids, (sign * probabilities).argmax()[None]))
        return ids

    mistakes = {
        "the logits are those of the first position, not of the last": continuation(position=0),
        "it takes the least probable letter": continuation(sign=-1),
        "it keeps the first letters of the context, not the last": continuation(first=None, last=16),
        "the model sees only the last letter": continuation(first=-1),
        "the model sees more letters than its context": continuation(first=None),
    }
    name = "generate(gpt, ids, 10) past the context"
    yield Case(name, lambda: my.generate(load(theirs, certain), prompt, 10), continuation(), mistakes)

    def check_samples() -> None:
        if len(set(my.generate(load(theirs, ignorant), prompt[:1], 15)[1:].tolist())) == 1:
            raise Mistake("always takes the most probable letter; it should sample")

    yield Case("generate(gpt, ids, 15) samples", check_samples)


def learned(my: Any) -> Iterator[Case]:
    """Check chapter 11."""
    ours, ids = classic(), torch.arange(6)[None]
    theirs = load(my.GPT(9, 16, n_layer=2, n_head=4, C=8), ours)
    weights = extract(ours, ids[0].numpy()).weights[:, None]  # (L, 1, H, T, T)
    for layer in (0, 1):
        call = partial(my.weights_of, theirs, ids, layer=layer)
        mistakes = {f"they are those of layer {1 - layer}": weights[1 - layer]}
        yield Case(f"weights_of(gpt, ids, layer={layer})", call, weights[layer], mistakes)
    rows = copy.deepcopy(ours)
    rows.get_parameter("blocks.1.attention.proj.weight").data[4:6] = 0

    def without_head(layer: int, head: int) -> Any:
        return my.without_head(theirs, layer, head)(ids)

    for layer, head in ((1, 2), (0, 1)):
        with ablate_heads(ours, {(layer, head)}):
            expected = ours(ids)
        mistakes = {"the rows of proj.weight are zero, not the columns": rows(ids), "no head is removed": ours(ids)}
        name = f"without_head(gpt, layer={layer}, head={head})(ids)"
        yield Case(name, partial(without_head, layer, head), expected, mistakes)
        mistakes = {"without_head has changed the model that it was given": expected}
        yield Case("gpt(ids) is as before", lambda: theirs(ids), ours(ids), mistakes)
