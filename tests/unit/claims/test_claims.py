"""The claims hold, give the same results on every run, change no global state, and fail for a faulty model."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minigpt.config.schema import ModelConfig
from minigpt.course import small_models
from minigpt.course.claims import recurrence
from minigpt.course.claims.claim import Result, decide, fmt
from minigpt.course.claims.experiment import Experiment
from minigpt.course.claims.run import CLAIMS, THEMES, run_claims, title
from minigpt.model import gpt as model
from minigpt.model import kernels
from minigpt.model.gpt import Attention, Block

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return run_claims()


def test_all_claims_hold(results: list[Result]) -> None:
    assert [(result.id, result.measured) for result in results if result.verdict != "PASS"] == []


def test_each_claim_has_one_result_in_reading_order(results: list[Result]) -> None:
    ids = [result.id for result in results]
    assert ids == [claim.id for claim in CLAIMS]
    assert len({*ids}) == len(ids)
    assert [result.id for result in run_claims({"10", "9"})] == [number for number in ids if number in (9, 10)]


def test_each_claim_corrects_a_mistake_or_has_recorded_runs(results: list[Result]) -> None:
    for result in results:
        assert result.trained or (result.mistake and result.said), result.id
        measured = " ".join([result.measured, *result.trained])
        assert re.search(r"\d", measured), f"{result.id} measured no number: {measured}"


def test_where_is_the_first_line_of_the_check(results: list[Result]) -> None:
    checks = {claim.id: claim.check for claim in CLAIMS if claim.check}
    for result in (result for result in results if result.id in checks):
        file, line = result.where.split(":")
        text = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert text == f"def {checks[result.id].__name__}() -> Finding:"


def test_results_do_not_depend_on_global_state_or_change_it(results: list[Result]) -> None:
    """Another seed, more threads and disabled gradients make no difference."""
    threads = torch.get_num_threads()
    torch.manual_seed(12345)
    random.seed(12345)
    torch.set_num_threads(2)
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    try:
        with torch.inference_mode():
            assert run_claims() == results
            assert torch.is_inference_mode_enabled()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert torch.is_grad_enabled()


def test_claims_do_not_depend_on_each_other(results: list[Result]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        reverse_order = [decide(claim, title(theme)) for theme in reversed(THEMES) for claim in reversed(theme.CLAIMS)]
    finally:
        torch.set_num_threads(threads)
    assert reverse_order[::-1] == results


# --- every claim can fail ----------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def everywhere(patch: Patch, name: str, value: object) -> None:
    """Replace `name` in the model and in every theme that imports it."""
    for module in (model, kernels, small_models, *THEMES):
        if hasattr(module, name):
            patch.setattr(module, name, value)


def without_mask(patch: Patch) -> None:
    everywhere(patch, "causal_mask", lambda queries, keys, device: torch.ones(queries, keys).bool())


def without_scale(patch: Patch) -> None:
    scaled = model.attention_weights
    everywhere(patch, "attention_weights", lambda q, k: scaled(q * q.size(-1) ** 0.5, k))


def _replace_sdpa(patch: Patch, sdpa: kernels.SDPA) -> None:
    everywhere(patch, "CPU", replace(kernels.CPU, sdpa=sdpa))
    patch.setattr(Attention, "kernels", model.CPU)  # of a new layer


def kernel_without_mask(patch: Patch) -> None:
    _replace_sdpa(patch, small_models.sdpa_unmasked)


def kernel_without_scale(patch: Patch) -> None:
    _replace_sdpa(patch, lambda q, k, v, _: kernels.sdpa_blocked(q * q.size(-1) ** 0.5, k, v, 0.0))


def kernel_mixes_up_heads(patch: Patch) -> None:
    _replace_sdpa(patch, lambda q, k, v, _: kernels.sdpa_blocked(q, k, v.flip(1), 0.0))


def number_of_heads_is_ignored(patch: Patch) -> None:
    init = Attention.__init__

    def one_head(self: Any, config: ModelConfig) -> None:
        init(self, config.model_copy(update={"n_head": 1}))

    patch.setattr(Attention, "__init__", one_head)


def unwanted_biases(patch: Patch) -> None:
    forward = nn.Linear.forward
    patch.setattr(nn.Linear, "forward", lambda self, x: forward(self, x) + 0.1)


def norm_after_the_sum(patch: Patch) -> None:
    def forward(self: Any, x: Tensor, cos_sin: Tensor | None = None) -> Tensor:
        x = self.norm1(x + self.attention(x, cos_sin))
        out: Tensor = self.norm2(x + self.mlp(x))
        return out

    patch.setattr(Block, "forward", forward)


def norm_does_not_subtract_the_mean(patch: Patch) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.rms_norm(x, x.shape[-1:]) * self.weight + self.bias
        return out

    patch.setattr(nn.LayerNorm, "forward", forward)


def attention_knows_positions(patch: Patch) -> None:
    forward = Attention.forward

    def shifted(self: Any, x: Tensor, cos_sin: Tensor | None = None) -> Tensor:
        return forward(self, x + torch.arange(x.size(1))[:, None] / 10, cos_sin)

    patch.setattr(Attention, "forward", shifted)


def embeddings_know_positions(patch: Patch) -> None:
    forward = nn.Embedding.forward

    def shifted(self: Any, ids: Tensor) -> Tensor:
        return forward(self, ids) + torch.arange(ids.size(-1))[:, None] * torch.linspace(-1, 1, self.embedding_dim)

    patch.setattr(nn.Embedding, "forward", shifted)


def permutation_changes_nothing(patch: Patch) -> None:
    """A fault of the checks: without shuffling, nothing changes after shuffling."""
    everywhere(patch, "permutation", lambda count, claim: torch.arange(count))


def random_numbers_are_zero(patch: Patch) -> None:
    everywhere(patch, "normal", lambda *shape, claim, part="": torch.zeros(shape, dtype=torch.float64))


def generation_without_the_model(patch: Patch) -> None:
    everywhere(patch, "generate_ids", lambda *args: iter(()))


def no_width_is_valid(patch: Patch) -> None:
    everywhere(patch, "contradictions", lambda config: ["no width is valid"])


def recurrence_grows(patch: Patch) -> None:
    rotation = recurrence.rotation
    patch.setattr(recurrence, "rotation", lambda claim: 3 * rotation(claim))


def runs_found_nothing(patch: Patch) -> None:
    patch.setattr(Experiment, "values", lambda self: [[0.0]] * len(self.quantities))


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        (without_mask, {35}),
        (without_scale, {9, 106}),
        (kernel_without_mask, {10, 57, 97}),
        (kernel_without_scale, {10, 97}),
        (kernel_mixes_up_heads, {10}),
        (number_of_heads_is_ignored, {10}),
        (unwanted_biases, {29, 107}),
        (norm_after_the_sum, {90}),
        (norm_does_not_subtract_the_mean, {91}),
        (attention_knows_positions, {57}),
        (embeddings_know_positions, {57}),
        (permutation_changes_nothing, {57}),
        (random_numbers_are_zero, {28}),
        (generation_without_the_model, {81}),
        (no_width_is_valid, {89}),
        (recurrence_grows, {73, 78}),
        (runs_found_nothing, {29, 39, 58, 68}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_fault_fails_the_claims_about_it(
    fault: Callable[[Patch], None], caught_by: set[int], monkeypatch: Patch
) -> None:
    claims = [claim for claim in CLAIMS if claim.id in caught_by]
    fault(monkeypatch)
    assert {claim.id: decide(claim, "").verdict for claim in claims} == dict.fromkeys(caught_by, "FAIL")


# --- numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (14.0, "14"),
        (0.12345, "0.123"),
        (-4.5678, "-4.57"),
        (12345.6, "12,346"),
        (3.2e-16, "3e-16"),
        (2.3e19, "2e+19"),
        (float("nan"), "nan"),
        (torch.tensor(0.5), "0.5"),
    ],
)
def test_numbers_have_three_significant_digits(value: float | Tensor, text: str) -> None:
    assert fmt(value) == text
