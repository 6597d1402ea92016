"""How several processes divide a batch, add up gradients, and decide whether to split the model."""

import pytest
import torch
from small_runs import make_config

import minigpt.model.memory as memory
from minigpt.errors import ConfigError, InsufficientMemoryError
from minigpt.training.parallel import Processes, add_shards, check_count, choose_fsdp


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 6, 8, 12, 16])
def test_subtrees_added_in_pairs_give_the_bits_of_the_whole_tree(shards: int) -> None:
    gradients = torch.randn(shards, 1000) * torch.logspace(-4, 4, 1000)
    whole = add_shards(range(shards), lambda shard: [gradients[shard].clone()])[0]
    assert torch.allclose(whole, gradients.sum(0), rtol=1e-3)
    for size in (n for n in (1, 2, 4, 8, 16) if shards % n == 0):
        owned = [Processes(rank, size).shards(shards) for rank in range(size)]
        assert [shard for own in owned for shard in own] == list(range(shards))
        sums = [add_shards(own, lambda shard: [gradients[shard].clone()])[0] for own in owned]
        for distance in (1 << level for level in range(size.bit_length() - 1)):
            sums = [sums[rank] + sums[rank ^ distance] for rank in range(size)]
        assert all(torch.equal(each, whole) for each in sums)


@pytest.mark.parametrize(
    ("shards", "more", "allowed"),
    [
        (1, {}, {1}),
        (8, {}, {1, 2, 4, 8}),
        (6, {}, {1, 2}),
        (6, {"runtime__exact": False}, {1, 2, 3, 6}),
        (6, {"runtime__parallel": "fsdp"}, {1, 2, 3, 6}),
    ],
)
def test_which_numbers_of_processes_can_divide_the_shards(
    shards: int, more: dict[str, object], allowed: set[int]
) -> None:
    config = make_config(train__shards=shards, train__batch_size=24, **more)
    for size in range(1, 10):
        if size in allowed:
            check_count(size, config)
        else:
            with pytest.raises(ConfigError, match=f"^{size} processes cannot"):
                check_count(size, config)


def test_fsdp_splits_a_model_if_a_copy_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = 1000
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: 16 * parameters - 1)  # a copy needs 16 each
    assert choose_fsdp(2, make_config(), parameters, "cpu")
    assert not choose_fsdp(2, make_config(), parameters // 2, "cpu")
    assert choose_fsdp(2, make_config(runtime__parallel="fsdp"), parameters // 2, "cpu")
    assert not choose_fsdp(1, make_config(runtime__parallel="fsdp"), parameters // 2, "cpu")
    for size, count, more in (
        (1, parameters, {}),
        (2, 2 * parameters, {}),
        (2, parameters, {"runtime__parallel": "data"}),
        (2, parameters, {"model__family": "lstm"}),
    ):
        with pytest.raises(InsufficientMemoryError):
            choose_fsdp(size, make_config(**more), count, "cpu")
