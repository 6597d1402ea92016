"""How several processes divide a batch, add up gradients, and decide whether to split the model."""

import pytest
import torch
from small_runs import make_config

import minigpt.model.memory as memory
from minigpt.errors import ConfigError, InsufficientMemoryError
from minigpt.model.size import count_parameters
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
    def chosen(size: int, free: int, **more: object) -> bool:
        monkeypatch.setattr(memory, "free_memory_bytes", lambda device: free)
        return choose_fsdp(size, make_config(model__n_layer=8, train__shards=2, **more), 13, "cpu")

    copy = count_parameters(make_config(model__n_layer=8).model, 13) * 4
    alone, data = 5 * copy, 5 * copy  # two shards and their sum, or one and the buffer for exchange
    assert chosen(2, data - 1)
    assert not chosen(2, data)
    assert chosen(2, data, runtime__parallel="fsdp")
    assert not chosen(1, alone, runtime__parallel="fsdp")
    for size, free, more in (
        (1, alone - 1, {}),
        (2, 2 * copy, {}),  # half of four copies, and no memory to gather a block
        (2, data - 1, {"runtime__parallel": "data"}),
        (2, 1000, {"model__family": "lstm"}),
    ):
        with pytest.raises(InsufficientMemoryError):
            chosen(size, free, **more)
