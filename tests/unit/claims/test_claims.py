"""The claims hold, give the same results on every run, change no global state, and fail for a faulty model."""

import inspect
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
from minigpt.course.claims import recurrence, small_models
from minigpt.course.claims.claim import Result, decide, fmt
from minigpt.course.claims.experiment import Experiment
from minigpt.course.claims.run import CLAIMS, THEMES, run_claims, title
from minigpt.model import gpt as model
from minigpt.model import kernels, size
from minigpt.model.gpt import GPT, Attention, Block, Dropout
from minigpt.text.tokenizer import CharTokenizer

ROOT = Path(__file__).resolve().parents[3]
CORRECTED = {79, 9, 10, 13, 28, 29, 35, 57, 81, 89, 90, 91, 97, 106, 107, 108, 110}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return run_claims()


def test_all_claims_hold(results: list[Result]) -> None:
    assert [(result.id, result.measured) for result in results if result.verdict == "FAIL"] == []
    assert {result.id for result in results if result.verdict == "CORRECTED"} == CORRECTED
    assert {result.verdict for result in results} == {"PASS", "CORRECTED"}


def test_each_claim_has_one_result_in_reading_order(results: list[Result]) -> None:
    ids = [result.id for result in results]
    assert ids == [claim.id for claim in CLAIMS]
    assert len({*ids}) == 70
    assert [result.id for result in run_claims({"10", "9"})] == [number for number in ids if number in (9, 10)]
    with_claims = {
        path.stem
        for path in (ROOT / "minigpt/course/claims").glob("*.py")
        if "\nCLAIMS = (" in path.read_text(encoding="utf-8")
    }
    assert with_claims == {theme.__name__.split(".")[-1] for theme in THEMES}


def test_results_are_complete(results: list[Result]) -> None:
    for result in results:
        assert result.said
        measured = " ".join([result.measured, *result.trained])
        assert re.search(r"\d", measured), f"{result.id} measured no number: {measured}"
        assert (result.mistake is not None) is (result.id in CORRECTED)
        assert result.mistake is None or result.said != result.title
        assert not result.title.endswith((".", "?"))


def test_where_is_the_first_line_of_the_check(results: list[Result]) -> None:
    checks = {claim.id: claim.check for claim in CLAIMS if claim.check}
    for result in (result for result in results if result.id in checks):
        file, line = result.where.split(":")
        text = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert text == f"def {checks[result.id].__name__}() -> Finding:"


def test_each_check_is_short_and_explained() -> None:
    for claim in CLAIMS:
        assert {*claim.notes} <= {"000", "001", "002", "003", "004"}
        assert claim.notes
        assert claim.check or claim.trained
        if claim.check:
            assert claim.check.__doc__, claim.check
            assert len(inspect.getsource(claim.check).splitlines()) <= 32, claim.check


# --- deterministic, without side effects -------------------------------------------------------------


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


def mask_hides_the_query_itself(patch: Patch) -> None:
    """Shift the mask by one: each query sees only the past. The first query keeps itself."""

    def shifted(queries: int, keys: int, device: torch.device) -> Tensor:
        visible = torch.ones(queries, keys).tril(keys - queries - 1).bool()
        visible[:, 0] = True
        return visible

    everywhere(patch, "causal_mask", shifted)


def without_scale(patch: Patch) -> None:
    scaled = model.attention_weights
    everywhere(patch, "attention_weights", lambda q, k: scaled(q * q.size(-1) ** 0.5, k))


def weights_do_not_sum_to_one(patch: Patch) -> None:
    weights = model.attention_weights
    everywhere(patch, "attention_weights", lambda q, k: weights(q, k) * 1.01)


def without_softmax(patch: Patch) -> None:
    everywhere(patch, "attention_weights", lambda q, k: q @ k.mT)


def _replace_sdpa(patch: Patch, sdpa: kernels.SDPA) -> None:
    patch.setattr(kernels, "CPU", replace(kernels.CPU, sdpa=sdpa))


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


def positions_with_another_base(patch: Patch) -> None:
    patch.setattr(model, "POSITION_BASE", 1000.0)


def positions_are_zero(patch: Patch) -> None:
    everywhere(patch, "sinusoidal_positions", torch.zeros)


def positions_are_trained(patch: Patch) -> None:
    register = nn.Module.register_buffer

    def parameter(module: nn.Module, name: str, value: Tensor | None, persistent: bool = True) -> None:
        if name == "positions" and value is not None:
            module.register_parameter(name, nn.Parameter(value))
        else:
            register(module, name, value, persistent)

    patch.setattr(GPT, "register_buffer", parameter)


def dropout_in_evaluation(patch: Patch) -> None:
    patch.setattr(Dropout, "forward", lambda self, x: nn.functional.dropout(x, self.probability))


def tokenizer_loses_a_character(patch: Patch) -> None:
    decode = CharTokenizer.decode
    patch.setattr(CharTokenizer, "decode", lambda self, ids: decode(self, ids)[1:])


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


def clipping_does_nothing(patch: Patch) -> None:
    patch.setattr(nn.utils, "clip_grad_norm_", lambda parameters, max_norm: None)


def generation_without_the_model(patch: Patch) -> None:
    everywhere(patch, "generate_ids", lambda *args: iter(()))


def no_width_is_valid(patch: Patch) -> None:
    everywhere(patch, "contradictions", lambda config: ["no width is valid"])


def recurrence_grows(patch: Patch) -> None:
    rotation = recurrence.rotation
    patch.setattr(recurrence, "rotation", lambda claim: 3 * rotation(claim))


def parameters_depend_on_the_context(patch: Patch) -> None:
    count = size.count_parameters
    everywhere(patch, "count_parameters", lambda config, vocab_size: count(config, vocab_size) + config.context)


def runs_found_nothing(patch: Patch) -> None:
    patch.setattr(Experiment, "values", lambda self: [[0.0]] * len(self.quantities))


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        (without_mask, {14, 35, 41, 43, 50, 51, 52, 54, 102}),
        (mask_hides_the_query_itself, {14, 41, 43, 50, 51, 52, 54, 102}),
        (without_scale, {4, 7, 8, 9, 14, 41, 43, 50, 51, 102, 106}),
        (weights_do_not_sum_to_one, {11, 14, 41, 43, 50, 51, 101, 102}),
        (without_softmax, {11, 12, 50, 51, 101}),
        (kernel_without_mask, {10, 14, 41, 43, 49, 50, 54, 57, 80, 96, 97, 102}),
        (kernel_without_scale, {10, 14, 41, 43, 50, 96, 97, 102}),
        (kernel_mixes_up_heads, {10, 41, 43, 96, 102}),
        (number_of_heads_is_ignored, {10, 24, 42, 96}),
        (unwanted_biases, {27, 29, 107}),
        (positions_with_another_base, {62, 65}),
        (positions_are_zero, {56, 59, 61, 62, 63, 65}),
        (positions_are_trained, {64}),
        (dropout_in_evaluation, {70}),
        (tokenizer_loses_a_character, {85}),
        (norm_after_the_sum, {90}),
        (norm_does_not_subtract_the_mean, {91}),
        (attention_knows_positions, {56, 57, 59, 61}),
        (embeddings_know_positions, {56, 57, 59, 61, 88}),
        (permutation_changes_nothing, {55, 56, 57, 61, 71}),
        (random_numbers_are_zero, {12, 18, 19, 28, 30, 55}),
        (clipping_does_nothing, {75}),
        (generation_without_the_model, {81}),
        (no_width_is_valid, {89}),
        (recurrence_grows, {18, 73, 74, 78}),
        (parameters_depend_on_the_context, {25}),
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
