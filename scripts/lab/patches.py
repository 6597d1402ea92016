"""Changes to a run that experiments try and that minigpt has no setting for.

A patch changes a run before its first step. Patches that helped became part of minigpt. The others are kept here so
that their results can be reproduced.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import batch_patches
import network_patches
import optimizer_patches
import torch

from minigpt.model.gpt import GPT, eval_mode
from minigpt.seeds import mix_seed
from minigpt.training.optim import Muon, Optimizer

Patch = Callable[[Any, Any], None]
"""Function that changes a run, or its Muon optimizer, with an argument from the question."""


def _by_name(patches: Iterable[Patch]) -> dict[str, Patch]:
    return {patch.__name__: patch for patch in patches}


RUN_PATCHES = _by_name((*network_patches.PATCHES, *batch_patches.PATCHES))
MUON_PATCHES = _by_name(optimizer_patches.PATCHES)


def apply(run: Any, patches: Mapping[str, Any]) -> None:
    """Apply patches to a run. `patches` maps names to arguments."""
    for name, argument in patches.items():
        if name not in MUON_PATCHES:
            torch.manual_seed(mix_seed(run.config.train.seed, "patch", name))
            RUN_PATCHES[name](run, argument)
    if patches:  # the model may have new parameters
        learner = run.learner
        learner.optimizer = Optimizer(learner.model, run.config.optim, learner.runtime.torch_dtype)
    for name, argument in patches.items():
        if name in MUON_PATCHES:
            (muon,) = (group for group in learner.optimizer.groups if isinstance(group, Muon))
            MUON_PATCHES[name](muon, argument)


@torch.no_grad()
def leak(model: GPT) -> float:
    """Return the largest change of a logit when later tokens change. It is 0 unless the model can see the future."""
    vocab_size, context = model.token_embedding.num_embeddings, model.config.context
    ids = torch.randint(vocab_size, (2, context))
    largest = 0.0
    with eval_mode(model):
        before = model(ids)
        for position in (1, context // 2, context - 1):
            changed = ids.clone()
            changed[:, position:] = (ids[:, position:] + 1) % vocab_size
            difference = (model(changed)[:, :position] - before[:, :position]).abs()
            largest = max(largest, difference.max().item())
    return largest
