"""How several processes divide a batch, and add up gradients."""

import pytest
import torch
from small_runs import make_config

from minigpt.errors import ConfigError
from minigpt.training.parallel import Processes, check_count, tree_merges


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 6, 8, 12, 16])
def test_subtrees_added_in_pairs_give_the_bits_of_the_whole_tree(shards: int) -> None:
    gradients = torch.randn(shards, 1000) * torch.logspace(-4, 4, 1000)

    def added(owned: range) -> torch.Tensor:
        sums: list[torch.Tensor] = []
        for shard, merges in zip(owned, tree_merges(len(owned)), strict=True):
            sums.append(gradients[shard])
            for _ in range(merges):
                right = sums.pop()
                sums[-1] = sums[-1] + right
        (total,) = sums
        return total

    whole = added(range(shards))
    assert torch.allclose(whole, gradients.sum(0), rtol=1e-3)
    for size in (n for n in (1, 2, 4, 8, 16) if shards % n == 0):
        owned = [range(shards)[Processes(rank, size).part(shards)] for rank in range(size)]
        assert [shard for own in owned for shard in own] == list(range(shards))
        sums = [added(own) for own in owned]
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
