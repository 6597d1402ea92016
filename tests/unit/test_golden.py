"""What an unchanged seed computes, compared with values that an earlier version computed."""

import json

import golden
import pytest
import torch
from small_models import some_ids

EXPECTED = json.loads(golden.FILE.read_text(encoding="utf-8"))
pytestmark = pytest.mark.usefixtures("torch_settings")


def test_batches_begin_where_they_always_did() -> None:
    assert golden.batch_starts() == EXPECTED["batch starts"]


def test_samples_have_the_tokens_they_always_had() -> None:
    assert golden.sampled() == EXPECTED["sampled"]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_gives_the_weights_it_always_gave(seed: int) -> None:
    assert golden.initial_weights(seed) == pytest.approx(EXPECTED["initial weights"][str(seed)], abs=1e-6)


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_five_steps_with_dropout_have_the_losses_they_always_had(family: str) -> None:
    assert golden.losses(family) == pytest.approx(EXPECTED["losses"][family], abs=1e-4)


def test_each_step_has_other_dropout_masks_and_each_repeats_its_own() -> None:
    learner = golden.learner("modern")
    tokens = some_ids(17, vocab_size=golden.VOCAB_SIZE).numpy()  # one window: all batches are the same

    def gradient(step: int) -> torch.Tensor:
        learner.step(tokens, step, 0.0)
        return torch.cat([p.grad.flatten() for p in learner.optimizer.names if p.grad is not None])

    first = gradient(0)
    assert not torch.equal(gradient(1), first)
    assert torch.equal(gradient(0), first)
