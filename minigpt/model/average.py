"""The average prediction of several models."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minigpt.model.load import Model


class Average(nn.Module):
    """Map token ids (B, T) to logits (B, T, V) of the mean probabilities of several models.

    Models make different errors, so the average is often better than each of them (Hansen and Salamon 1990,
    https://doi.org/10.1109/34.58871). T is at most the shortest context of the transformers,
    or of the recurrent models if there are no others.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        self.models, self.token_embedding = nn.ModuleList(models), models[0].token_embedding
        configs = [model.config for model in models]
        transformers = [config for config in configs if not config.is_recurrent]
        self.config = min(transformers or configs, key=lambda config: config.context)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V) for ids (B, T), as large as those of the models: their size counts in a penalty."""
        each = torch.stack([model(ids).float() for model in self.models])  # (models, B, T, V)
        sizes = each.logsumexp(-1, keepdim=True)
        return (each - sizes).logsumexp(0) - math.log(len(each)) + sizes.mean(0)
