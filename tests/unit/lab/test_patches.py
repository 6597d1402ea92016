"""Patches: each changes what it should, and none lets the model see the future."""

import math
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import patches
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config.resolve import resolve
from minigpt.config.schema import OptimConfig, RunConfig
from minigpt.model.gpt import GPT
from minigpt.training.optim import Muon

pytestmark = pytest.mark.nightly

ARGUMENTS: dict[str, Any] = {
    "concatenated_positions": 4,
    "lstm_first": True,
    "repeated_layers": 2,
    "depth_warmup": {"layers": 1, "share": 0.5},
    "attention_kind": "linear",
    "unscaled_attention": True,
    "initial_scale": 10,
    "untied_embeddings": True,
    "bigram_embeddings": True,
    "short_convolution": {"before": ["norm1", "norm2"], "taps": 2},
    "dropout_rates": {"embedding": 0.1},
    "qk_scale": {"factor": 2.0},
    "rope_base": 100.0,
    "value_residual": True,
    "embedding_residual": True,
    "variational_dropout": True,
    "gated_heads": 12,
    "teacher": {"steps": 2, "weight": 0.5},
    "second_model": {"steps": 2},
    "input_noise": 0.1,
    "multi_token_prediction": 0.5,
    "random_windows": True,
    "sequence_length_warmup": [[0.5, 2]],
    "batch_size_warmup": [[0.5, 0.5]],
}


def model(seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(resolve(("test", {"model.n_layer": 2, "model.n_embd": 16, "model.zero_init": False})).config.model, 9)


def fake_run(**settings: Any) -> Any:
    """The attributes of `Training` that patches use."""
    gpt = model()
    run = SimpleNamespace(
        learner=SimpleNamespace(model=gpt, runtime=SimpleNamespace(autocast=nullcontext, torch_dtype=torch.float32)),
        config=RunConfig(model=gpt.config, **settings),
        state=SimpleNamespace(step=0, tokens_seen=0),
        steps=10,
        data=SimpleNamespace(train=np.arange(1000, dtype=np.uint16)),
        step=lambda: None,
    )
    run.learner.loss = run.learner.mean_loss = lambda x, y: F.cross_entropy(gpt(x).flatten(0, 1), y.flatten())
    return run


@pytest.fixture(autouse=True)
def untrained_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let teachers be models without training: a fake run cannot train."""
    monkeypatch.setattr(patches.batch_patches, "trained", lambda run, steps, **changes: model(seed=1))


def patched(**wanted: Any) -> Any:
    run = fake_run()
    patches.apply(run, wanted)
    return run


def test_a_leak_of_the_future_is_found() -> None:
    class LeakingEmbedding(torch.nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            x = super().forward(ids)
            return x + 1e-3 * x.mean(1, keepdim=True)

    gpt = model()
    assert patches.leak(gpt) == 0
    gpt.token_embedding = LeakingEmbedding(9, 16)
    assert patches.leak(gpt) > 0


def test_no_patch_leaks_the_future() -> None:
    assert ARGUMENTS.keys() == patches.RUN_PATCHES.keys()
    for name, argument in ARGUMENTS.items():
        gpt = patched(**{name: argument}).learner.model
        for parameter in gpt.parameters():
            torch.nn.init.normal_(parameter, std=0.3)  # parameters of zero would hide a leak
        assert patches.leak(gpt) == 0, name


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        *((name, ARGUMENTS[name]) for name in ("qk_scale", "rope_base", "value_residual", "embedding_residual")),
        ("qk_scale", {"factor": 2.0, "learned": True}),
        ("gated_heads", 12),
        ("concatenated_positions", 4),
        ("attention_kind", "linear"),
        ("attention_kind", "relu"),
        ("lstm_first", True),
        ("unscaled_attention", True),
        ("initial_scale", 10),
    ],
)
def test_a_network_patch_changes_the_output(name: str, argument: Any) -> None:
    run = fake_run()
    ids = torch.arange(8)[None] % 9
    before = run.learner.model(ids)
    patches.RUN_PATCHES[name](run, argument)
    for key, parameter in run.learner.model.named_parameters():
        if key.endswith(("share", "gates")):
            torch.nn.init.constant_(parameter, 0.5)
    assert not torch.equal(run.learner.model(ids), before)


def test_plain_attention_weighs_values_by_the_formula_of_its_kind() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 8)

    def last_output(kind: str) -> Tensor:
        (block, *_) = patched(attention_kind=kind).learner.model.blocks
        out: Tensor = block.attention.attend(q, k, v, 0.0)
        return out[0, 1, 3]  # query 3 of head 1 sees keys 0 to 3

    scores, values = q[0, 1, 3] @ k[0, 1, :4].T, v[0, 1, :4]
    features = (F.elu(q[0, 1, 3]) + 1) @ (F.elu(k[0, 1, :4]) + 1).T
    torch.testing.assert_close(last_output("softmax"), (scores / math.sqrt(8)).softmax(0) @ values)
    torch.testing.assert_close(last_output("relu"), (scores / math.sqrt(8)).relu() @ values / 4)
    torch.testing.assert_close(last_output("linear"), features / features.sum() @ values)


def test_concatenated_positions_replace_the_last_dimensions() -> None:
    run = patched(concatenated_positions=4)
    x = run.learner.model.embed(torch.tensor([[3, 3, 5]]))[0]
    assert torch.equal(x[:, 12:], run.learner.model.table[:3])
    assert torch.equal(x[:, :12], run.learner.model.token_embedding.weight[[3, 3, 5], :12])


def test_variational_dropout_uses_one_mask_for_all_positions() -> None:
    torch.manual_seed(0)
    for block in patched(variational_dropout=True).learner.model.blocks:
        dropped = block.dropout.kernels.dropout(torch.ones(2, 5, 16), 0.5)
        assert set(dropped.unique().tolist()) == {0.0, 2.0}
        assert torch.equal(dropped, dropped[:, :1].expand(2, 5, 16))
        assert not torch.equal(dropped[0], dropped[1])
        zeros = torch.zeros(1, 1, 8, 8)  # uniform attention
        attended = block.attention.attend(zeros, zeros, torch.eye(8)[None, None], 0.5)[0, 0]
        last = attended[-1] > 0
        assert 0 < last.sum() < 8
        assert torch.equal(attended > 0, last.expand(8, 8).tril()), "a key must be dropped for all queries"


def test_later_layers_join_at_their_share_of_the_run() -> None:
    run = fake_run()
    ids = torch.arange(8)[None] % 9
    whole = run.learner.model(ids)
    patches.apply(run, {"depth_warmup": {"layers": 1, "share": 0.5}})
    assert not torch.equal(run.learner.model(ids), whole)
    run.learner.model(ids).sum().backward()
    last = run.learner.model.blocks[1].attention.qkv.weight
    assert last.grad is not None
    assert not last.grad.any()
    run.state.step = 5
    assert torch.equal(run.learner.model(ids), whole)


def test_repeated_layers_share_their_weights() -> None:
    run = patched(repeated_layers=2)
    first, second = run.learner.model.blocks
    assert first is second
    assert sum(p.numel() for p in run.learner.model.parameters()) < sum(p.numel() for p in model().parameters())


def test_a_second_model_is_averaged_with_the_first_only_in_evaluation() -> None:
    run = fake_run()
    gpt, ids = run.learner.model, torch.arange(8)[None] % 9
    one, other = gpt(ids), model(seed=1)(ids)
    patches.apply(run, {"second_model": {"steps": 2}})
    assert torch.equal(gpt(ids), one)
    expected = (one.softmax(-1) + other.softmax(-1)) / 2
    torch.testing.assert_close(gpt.eval()(ids).softmax(-1), expected)


# --- the optimizer -----------------------------------------------------------------------------------


def muon(**wanted: Any) -> Muon:
    (found,) = (group for group in patched(**wanted).learner.optimizer.groups if isinstance(group, Muon))
    return found


def updates_of(optimizer: Muon, lr: float) -> list[tuple[Tensor, Tensor]]:
    """Take a step with random gradients and no decay; return each matrix before and its change."""
    optimizer.weight_decay = 0.0
    torch.manual_seed(1)
    before = [matrix.detach().clone() for matrix in optimizer.parameters]
    for matrix in optimizer.parameters:
        matrix.grad = torch.randn_like(matrix)
    optimizer.step(lr)
    changes = [(old, new.detach() - old) for old, new in zip(before, optimizer.parameters, strict=True)]
    views = [map(partial(optimizer.matrices, p), pair) for p, pair in zip(optimizer.parameters, changes, strict=True)]
    return [pair for old, change in views for pair in zip(old, change, strict=True)]


def test_muon_patches_reach_the_optimizer() -> None:
    assert muon(muon_beta2=0.5).size_decay == 0.5
    updates = torch.randn(1, 2, 4)
    assert torch.equal(muon(plain_muon=True).normalize_columns(updates, []), updates)
    assert not torch.equal(muon(plain_muon=False).normalize_columns(updates, [torch.zeros(1, 4)]), updates)
    assert set(muon(qkv_parts=3).several.values()) == {3}
    ramped = muon(momentum_ramp={"start": 0.5, "rise": 2, "fall": 1, "steps": 4})
    momenta, peak = [], ramped.momentum
    for _ in range(5):
        updates_of(ramped, 0.1)
        momenta.append(round(ramped.momentum, 3))
    assert momenta == [0.5, round((0.5 + peak) / 2, 3), peak, peak, 0.5]
    adamw = fake_run(optim=OptimConfig(name="adamw"))
    with pytest.raises(ValueError, match="unpack"):
        patches.apply(adamw, {"muon_beta2": 0.5})


@pytest.mark.parametrize(("name", "all_rows"), [("normalize_square_rows", False), ("normalize_all_rows", True)])
def test_other_vectors_are_normalized(name: str, all_rows: bool) -> None:
    """In the first step the running mean equals the update, so all vectors get the same norm."""
    shapes = set()
    for matrix, change in updates_of(muon(**{name: True}), 0.1):
        rows, columns = matrix.shape
        norms = change.norm(dim=1 if all_rows or rows >= columns else 0)
        torch.testing.assert_close(norms, norms.mean().expand_as(norms), atol=1e-5, rtol=1e-3)
        shapes.add((rows > columns, rows == columns))
    assert shapes == {(True, False), (False, True), (False, False)}


def test_polar_express_brings_singular_values_closer_to_one() -> None:
    def spread(**wanted: Any) -> float:
        changes = (change for _, change in updates_of(muon(plain_muon=True, **wanted), 1.0))
        scaled = (change / math.sqrt(max(1, change.size(0) / change.size(1))) for change in changes)
        return max((torch.linalg.svdvals(change) - 1).abs().max().item() for change in scaled)

    assert spread(polar_express=True) < spread() < spread(ns_iterations=3)


def test_cautious_decay_applies_to_weights_that_shrink() -> None:
    plain, cautious = muon(plain_muon=False), muon(cautious_decay=True)
    plain.weight_decay = 0.0
    for optimizer in (plain, cautious):
        torch.manual_seed(1)
        for matrix in optimizer.parameters:
            matrix.data = torch.randn_like(matrix)
            matrix.grad = torch.randn_like(matrix)
    before = [matrix.detach().clone() for matrix in plain.parameters]
    plain.step(0.1)
    cautious.step(0.1)
    for old, updated, decayed in zip(before, plain.parameters, cautious.parameters, strict=True):
        smaller = (updated - old) * old < 0
        assert 0 < smaller.sum() < smaller.numel()
        expected = torch.where(smaller, updated - 0.1 * 0.1 * old, updated)
        torch.testing.assert_close(decayed.detach(), expected.detach())


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_decay_and_rate_follow_powers_of_the_schedule(power: float) -> None:
    decaying, plain = muon(decay_power=power), muon(plain_muon=False)
    plain.weight_decay = decaying.weight_decay * 0.5 ** (power - 1)
    scheduled, other = muon(rate_power=power), muon(plain_muon=False)
    for group, factor in ((decaying, 0.5), (plain, 0.5), (scheduled, 0.5), (other, 0.5**power)):
        torch.manual_seed(1)
        for matrix in group.parameters:
            matrix.data = torch.randn_like(matrix)
            matrix.grad = torch.randn_like(matrix)
        group.step(group.peak_rate * factor)
    for one, two in ((decaying, plain), (scheduled, other)):
        for ours, expected in zip(one.parameters, two.parameters, strict=True):
            torch.testing.assert_close(ours, expected)


# --- batches and the loss ----------------------------------------------------------------------------


def recording_run(**wanted: Any) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
    """Return a patched run, and the list of batches that its original loss receives."""
    run, batches = fake_run(), list[tuple[Tensor, Tensor]]()
    run.learner.loss = run.learner.mean_loss = lambda x, y: batches.append((x, y))
    patches.apply(run, wanted)
    assert run.learner.loss is run.learner.mean_loss, "the compiled loss must be the patched one"
    return run, batches


def test_input_noise_changes_inputs_but_not_targets() -> None:
    run, batches = recording_run(input_noise=0.25)
    x, y = torch.arange(4000).view(4, 1000), torch.arange(4000).view(4, 1000)
    run.learner.loss(x, y)
    ((inputs, targets),) = batches
    assert torch.equal(targets, y)
    assert 0.2 < (inputs != x).float().mean() < 0.3


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_a_teacher_is_mixed_into_the_loss(weight: float) -> None:
    run, teacher = patched(teacher={"steps": 2, "weight": weight}), model(seed=1)
    x, y = torch.randint(9, (2, 8)), torch.randint(9, (2, 8))
    log_probs = run.learner.model(x).log_softmax(-1)
    own = F.nll_loss(log_probs.flatten(0, 1), y.flatten())
    taught = -(teacher(x).softmax(-1) * log_probs).sum(-1).mean()
    assert run.learner.loss(x, y).item() == pytest.approx(((1 - weight) * own + weight * taught).item(), rel=1e-5)


def test_random_windows_are_windows_of_the_text() -> None:
    run, batches = recording_run(random_windows=True)
    zeros = torch.zeros(64, run.config.model.context, dtype=torch.long)
    run.learner.loss(zeros, zeros)
    ((x, y),) = batches
    assert x.shape == y.shape == zeros.shape
    assert torch.equal(y, x + 1)  # the text counts from 0
    assert torch.equal(x, x[:, :1] + torch.arange(x.size(1)))
    assert len(x[:, 0].unique()) > 50


def test_batch_size_warmup_counts_only_the_tokens_used() -> None:
    run, batches = recording_run()
    batch, context = run.config.train.batch_size, run.config.model.context

    def step() -> None:
        x = torch.zeros(batch, context)
        run.learner.loss(x, x)
        run.state.step += 1
        run.state.tokens_seen += x.numel()

    run.step = step
    patches.apply(run, {"batch_size_warmup": [[0.3, 0.25], [0.5, 0.5]]})
    for _ in range(run.steps):
        run.step()
    assert [len(x) for x, _ in batches] == [batch // 4] * 3 + [batch // 2] * 2 + [batch] * 5
    assert run.state.tokens_seen == context * sum(len(x) for x, _ in batches)


def test_the_weight_of_multi_token_prediction_falls_to_zero() -> None:
    run = patched(multi_token_prediction=0.5)
    x, y = torch.randint(9, (2, 8)), torch.randint(9, (2, 8))
    plain = F.cross_entropy(run.learner.model(x).flatten(0, 1), y.flatten())
    extra = []
    for run.state.step in (0, 5, 10):
        extra.append((run.learner.loss(x, y) - plain).item())
    with torch.no_grad():
        hidden = {}
        run.learner.model.norm.register_forward_hook(lambda norm, arguments, out: hidden.update(h=out))
        run.learner.model(x)
        ahead = F.cross_entropy(
            (hidden["h"][:, :-1] @ run.learner.model.ahead.T).flatten(0, 1), y[:, 1:].flatten()
        ).item()
    assert extra == pytest.approx([0.5 * ahead, 0.25 * ahead, 0.0], abs=1e-5)
    assert any(
        parameter is run.learner.model.ahead for group in run.learner.optimizer.groups for parameter in group.parameters
    )
