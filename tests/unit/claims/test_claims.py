"""The lecture notes as checks: all hold, are the same each time, disturb nothing, and fail where they should."""

import inspect
import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minigpt.claims import CLAIMS, THEMES, Result, material, recurrence, run_claims
from minigpt.claims.claim import decide, figure
from minigpt.config.schema import ModelConfig
from minigpt.model import gpt as model
from minigpt.model import kernels
from minigpt.model.gpt import GPT, Attention, Block, Dropout
from minigpt.text.tokenizer import CharTokenizer

ROOT = Path(__file__).resolve().parents[3]

# Every row of the table of claims whose kind includes E, that is, which needs no training ...
EXACT_ROWS = {
    *(2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 14, 15, 18, 19),  # score, softmax, weighted sum
    *(24, 25, 27, 28, 29, 30),  # Q, K, V
    *(35, 41, 42, 43, 45, 46),  # heads
    *(49, 50, 51, 52, 54),  # mask
    *(55, 56, 57, 59, 61, 62, 63, 64, 65, 70, 71),  # positions
    *(73, 74, 75, 78, 80),  # recurrent networks
    *(85, 88, 89, 90, 91, 96, 97, 101, 102),  # embeddings, blocks, other people's code
}
COUNTED_ROWS = {81, 82}  # ... and two of those to be timed, of which steps and products are counted here
CORRECTED = {9, 10, 28, 29, 35, 57, 81, 89, 90, 91, 97}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return run_claims()


def test_all_claims_hold(results: list[Result]) -> None:
    assert [(result.id, result.measured) for result in results if result.verdict == "FAIL"] == []
    assert {result.id for result in results if result.verdict == "CORRECTED"} == CORRECTED
    assert {result.verdict for result in results} == {"PASS", "CORRECTED"}


def test_each_row_that_needs_no_training_is_decided_once_and_in_order(results: list[Result]) -> None:
    assert [result.id for result in results] == sorted(EXACT_ROWS | COUNTED_ROWS)
    files = {path.stem for path in (ROOT / "minigpt/inside/claims").glob("*.py")}
    assert files - {"__init__", "claim", "material", "trained"} == {theme.__name__.split(".")[-1] for theme in THEMES}


def test_results_are_complete(results: list[Result]) -> None:
    for result in results:
        assert re.fullmatch(r"00[0-4](, 00[0-4])*", result.note)
        assert result.claim.endswith(".")
        assert re.search(r"\d", result.measured), f"{result.id} measured no figure: {result.measured}"
        assert (result.correction is not None) is (result.id in CORRECTED)


def test_where_is_the_line_of_the_check(results: list[Result]) -> None:
    checks = {claim.id: claim.check for claim in CLAIMS}
    for result in results:
        file, line = result.where.split(":")
        assert file.startswith("minigpt/inside/claims/")
        text = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert text == f"def {checks[result.id].__name__}() -> Finding:"


def test_each_check_is_short_and_says_why() -> None:
    for claim in CLAIMS:
        assert claim.check.__doc__, claim.check
        assert len(inspect.getsource(claim.check).splitlines()) <= 30, claim.check


# --- the same each time, and nothing disturbed -------------------------------------------------------


def test_results_depend_on_no_state_and_leave_none(results: list[Result]) -> None:
    """Another seed, more threads and a mode without gradients change nothing, and are not changed."""
    found = torch.get_num_threads()
    torch.manual_seed(12345)
    random.seed(12345)
    torch.set_num_threads(2)
    before, drawn = torch.get_rng_state(), random.getstate()
    try:
        with torch.no_grad():
            again = run_claims()
            assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(found)
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == drawn
    assert again == results
    assert torch.is_grad_enabled()


def test_works_where_gradients_cannot_be_had(results: list[Result]) -> None:
    with torch.inference_mode():
        assert run_claims() == results
        assert torch.is_inference_mode_enabled()


def test_no_claim_depends_on_another(results: list[Result]) -> None:
    found = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        backwards = [decide(claim) for claim in reversed(CLAIMS)]
    finally:
        torch.set_num_threads(found)
    assert sorted(backwards, key=lambda result: result.id) == results


def test_takes_seconds() -> None:
    started = time.perf_counter()
    run_claims()
    assert time.perf_counter() - started < 15


# --- checks that can fail ----------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def everywhere(patch: Patch, name: str, value: object) -> None:
    """Replace what `name` means in the model and in every theme that imported it."""
    for module in (model, kernels, material, *THEMES):
        if hasattr(module, name):
            patch.setattr(module, name, value)


def without_mask(patch: Patch) -> None:
    everywhere(patch, "causal_mask", lambda queries, keys, device: torch.ones(queries, keys).bool())


def mask_that_hides_the_query_itself(patch: Patch) -> None:
    """An off-by-one that leaks nothing: each sees the past only. The first, with nothing to see, keeps itself."""

    def shifted(queries: int, keys: int, device: torch.device) -> Tensor:
        seen = torch.ones(queries, keys).tril(keys - queries - 1).bool()
        seen[:, 0] = True
        return seen

    everywhere(patch, "causal_mask", shifted)


def without_scale(patch: Patch) -> None:
    scaled = model.attention_weights
    everywhere(patch, "attention_weights", lambda q, k: scaled(q * q.size(-1) ** 0.5, k))


def sums_that_are_not_one(patch: Patch) -> None:
    weights = model.attention_weights
    everywhere(patch, "attention_weights", lambda q, k: weights(q, k) * 1.01)


def without_softmax(patch: Patch) -> None:
    everywhere(patch, "attention_weights", lambda q, k: q @ k.mT)


def _with_attention(patch: Patch, attend: kernels.SDPA) -> None:
    everywhere(patch, "best_for", lambda device: replace(kernels.CPU, sdpa=attend))


def kernel_without_mask(patch: Patch) -> None:
    _with_attention(patch, material.attend_to_all)


def kernel_without_scale(patch: Patch) -> None:
    _with_attention(patch, lambda q, k, v, *_: kernels.sdpa_in_blocks(q * q.size(-1) ** 0.5, k, v, 0.0))


def kernel_that_mixes_up_heads(patch: Patch) -> None:
    _with_attention(patch, lambda q, k, v, *_: kernels.sdpa_in_blocks(q, k, v.flip(1), 0.0))


def number_of_heads_ignored(patch: Patch) -> None:
    start = Attention.__init__

    def alone(self: Any, config: ModelConfig) -> None:
        start(self, config.model_copy(update={"n_head": 1}))

    patch.setattr(Attention, "__init__", alone)


def biases_nobody_asked_for(patch: Patch) -> None:
    product = model.Linear.forward
    patch.setattr(model.Linear, "forward", lambda self, x: product(self, x) + 0.1)


def positions_on_another_base(patch: Patch) -> None:
    patch.setattr(model, "POSITION_BASE", 1000.0)


def positions_forgotten(patch: Patch) -> None:
    everywhere(patch, "sinusoidal_positions", torch.zeros)


def positions_that_train(patch: Patch) -> None:
    register = nn.Module.register_buffer

    def parameter(module: nn.Module, name: str, value: Tensor | None, persistent: bool = True) -> None:
        if name == "positions" and value is not None:
            module.register_parameter(name, nn.Parameter(value))
        else:
            register(module, name, value, persistent)

    patch.setattr(GPT, "register_buffer", parameter)


def dropout_that_never_rests(patch: Patch) -> None:
    patch.setattr(Dropout, "forward", lambda self, x: nn.functional.dropout(x, self.probability))


def tokenizer_that_loses_a_character(patch: Patch) -> None:
    decode = CharTokenizer.decode
    patch.setattr(CharTokenizer, "decode", lambda self, ids: decode(self, ids)[1:])


def norm_after_the_sum(patch: Patch) -> None:
    def forward(self: Any, x: Tensor, turns: Tensor | None = None) -> Tensor:
        x = self.norm1(x + self.attention(x, turns))
        out: Tensor = self.norm2(x + self.mlp(x))
        return out

    patch.setattr(Block, "forward", forward)


def norm_without_a_mean(patch: Patch) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.rms_norm(x, x.shape[-1:]) * self.weight + self.bias
        return out

    patch.setattr(nn.LayerNorm, "forward", forward)


def queries_that_know_their_place(patch: Patch) -> None:
    forward = Attention.forward

    def moved(self: Any, x: Tensor, turns: Tensor | None = None) -> Tensor:
        return forward(self, x + torch.arange(x.size(1))[:, None] / 10, turns)

    patch.setattr(Attention, "forward", moved)


def embeddings_that_know_their_place(patch: Patch) -> None:
    looked_up = nn.Embedding.forward

    def moved(self: Any, ids: Tensor) -> Tensor:
        return looked_up(self, ids) + torch.arange(ids.size(-1))[:, None] * torch.linspace(-1, 1, self.embedding_dim)

    patch.setattr(nn.Embedding, "forward", moved)


def shuffling_that_does_nothing(patch: Patch) -> None:
    """Not a fault of the model: a check that shuffles nothing would find that shuffling changes nothing."""
    everywhere(patch, "shuffled", lambda count, claim: torch.arange(count))


def numbers_that_are_all_zero(patch: Patch) -> None:
    everywhere(patch, "normal", lambda *shape, claim, part="": torch.zeros(shape, dtype=torch.float64))


def clipping_that_does_nothing(patch: Patch) -> None:
    patch.setattr(nn.utils, "clip_grad_norm_", lambda parameters, max_norm: None)


def writing_without_the_model(patch: Patch) -> None:
    everywhere(patch, "generate_ids", lambda *given: iter(()))


def no_width_allowed(patch: Patch) -> None:
    everywhere(patch, "contradictions", lambda config: ["no width is right"])


def recurrence_that_only_grows(patch: Patch) -> None:
    rotation = recurrence.rotation
    patch.setattr(recurrence, "rotation", lambda claim: 3 * rotation(claim))


def parameters_that_follow_the_context(patch: Patch) -> None:
    count = model.count_parameters
    everywhere(patch, "count_parameters", lambda config, vocab_size: count(config, vocab_size) + config.context)


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        (without_mask, {14, 35, 41, 43, 50, 51, 52, 54, 102}),
        (mask_that_hides_the_query_itself, {14, 41, 43, 50, 51, 52, 54, 102}),
        (without_scale, {4, 7, 8, 9, 14, 41, 43, 50, 51, 102}),
        (sums_that_are_not_one, {11, 14, 41, 43, 50, 51, 101, 102}),
        (without_softmax, {11, 12, 50, 51, 101}),
        (kernel_without_mask, {10, 14, 41, 43, 49, 50, 54, 57, 80, 96, 97, 102}),
        (kernel_without_scale, {10, 14, 41, 43, 50, 96, 97, 102}),
        (kernel_that_mixes_up_heads, {10, 41, 43, 96, 102}),
        (number_of_heads_ignored, {10, 24, 42, 96}),
        (biases_nobody_asked_for, {27, 29}),
        (positions_on_another_base, {62, 65}),
        (positions_forgotten, {56, 59, 61, 62, 63, 65}),
        (positions_that_train, {64}),
        (dropout_that_never_rests, {70}),
        (tokenizer_that_loses_a_character, {85}),
        (norm_after_the_sum, {90}),
        (norm_without_a_mean, {91}),
        (queries_that_know_their_place, {56, 57, 59, 61}),
        (embeddings_that_know_their_place, {56, 57, 59, 61, 88}),
        (shuffling_that_does_nothing, {55, 56, 57, 61, 71}),
        (numbers_that_are_all_zero, {12, 18, 19, 28, 30, 55}),
        (clipping_that_does_nothing, {75}),
        (writing_without_the_model, {81}),
        (no_width_allowed, {89}),
        (recurrence_that_only_grows, {18, 73, 74, 78}),
        (parameters_that_follow_the_context, {25}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_fault_is_found(fault: Callable[[Patch], None], caught_by: set[int], monkeypatch: Patch) -> None:
    """What is wrong on purpose fails the claims that are about it."""
    claims = [claim for claim in CLAIMS if claim.id in caught_by]
    fault(monkeypatch)
    assert {claim.id: decide(claim).verdict for claim in claims} == dict.fromkeys(caught_by, "FAIL")


# --- figures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (14.0, "14"),
        (0.12345, "0.123"),
        (-4.5678, "-4.57"),
        (12345.6, "12,346"),
        (3.2e-16, "3e-16"),
        (0.0009, "9e-04"),
        (2.3e19, "2e+19"),
        (float("nan"), "nan"),
        (torch.tensor(0.5), "0.5"),
    ],
)
def test_figures_are_for_people(value: float | Tensor, text: str) -> None:
    assert figure(value) == text
