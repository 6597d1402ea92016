"""The claims hold, give the same results on every run, change no global state, and fail for a faulty model."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from minigpt.course import small_models
from minigpt.course.claims.claim import Result, decide, fmt
from minigpt.course.claims.experiment import Experiment
from minigpt.course.claims.run import CLAIMS, THEMES, run_claims
from minigpt.model import kernels
from minigpt.model.gpt import Attention, Block


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


def zeros(*shape: int, claim: int, part: str = "") -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def uniform_weights(q: Tensor, k: Tensor) -> Tensor:
    return torch.full((*q.shape[:-1], k.size(-2)), 1 / k.size(-2), dtype=q.dtype)


def norm_after_the_sum(self: Any, x: Tensor, cos_sin: Tensor | None = None) -> Tensor:
    x = self.norm1(x + self.attention(x, cos_sin))
    out: Tensor = self.norm2(x + self.mlp(x))
    return out


FAULTS: dict[str, tuple[object, set[int]]] = {
    "attention_weights": (uniform_weights, {9, 35, 78, 106}),
    "normal": (zeros, {28}),
    "record_inputs": (lambda module, run: [], {81, 90}),
    "multiplications": (lambda run: 7, {82}),
    "contradictions": (lambda config: ["no width is valid"], {89}),
    "permutation": (lambda count, claim: torch.arange(count), {57}),
    "rotation": (lambda claim: 3 * torch.eye(32, dtype=torch.float64), {73}),
}
"""Names that the checks use, a faulty value, and the claims that must fail with it."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_the_claims_about_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, caught_by = FAULTS[name]
    for module in (small_models, *THEMES):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    assert failing(caught_by) == caught_by


def failing(numbers: set[int]) -> set[int]:
    return {claim.id for claim in CLAIMS if claim.id in numbers and decide(claim, "").verdict == "FAIL"}


def test_a_faulty_model_fails_the_claims_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "forward", norm_after_the_sum)
    assert failing({90}) == {90}
    monkeypatch.setattr(Attention, "kernels", replace(kernels.CPU, sdpa=small_models.sdpa_unmasked))
    assert failing({10, 97}) == {10, 97}


def test_runs_that_found_nothing_fail_the_claims_about_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Experiment, "values", lambda self: [[0.0]] * len(self.quantities))
    assert failing({29, 39, 58, 68}) == {29, 39, 58, 68}


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
