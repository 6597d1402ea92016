"""The average prediction of several models."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minigpt.model.load import Model


class Average(nn.Module):
    """Map token ids (B, T) to the logarithm of the mean probability of several models, (B, T, V).

    Models make different errors, so the average is often better than each of them (Hansen and Salamon 1990,
    https://doi.org/10.1109/34.58871). T is at most the shortest context of the transformers.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        self.models, self.token_embedding = nn.ModuleList(models), models[0].token_embedding
        transformers = [model.config for model in models if not model.config.is_recurrent]
        self.config = min(transformers, key=lambda config: config.context, default=models[0].config)

    def forward(self, ids: Tensor) -> Tensor:
        """Return log-probabilities (B, T, V) for ids (B, T)."""
        each = torch.stack([model(ids).float().log_softmax(-1) for model in self.models])  # (models, B, T, V)
        return each.logsumexp(0) - math.log(len(each))
