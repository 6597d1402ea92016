"""The average prediction of several models."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minigpt.model.load import Model, load_model
from minigpt.storage.checkpoint import Checkpoint


class Average(nn.Module):
    """Map token ids (B, T) to logits (B, T, V) of the mean probabilities of several models.

    Models make different errors, so the average is often better than each of them (Hansen and Salamon 1990,
    https://doi.org/10.1109/34.58871). The context is the shortest of the transformers, or of all models if none is a
    transformer.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        self.models, self.token_embedding = nn.ModuleList(models), models[0].token_embedding
        configs = [model.config for model in models]
        transformers = [config for config in configs if not config.is_recurrent]
        self.config = min(transformers or configs, key=lambda config: config.context)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V) for ids (B, T). If all models agree, these are their logits, as a penalty expects."""
        logits = torch.stack([model(ids).float() for model in self.models])  # (models, B, T, V)
        normalizers = logits.logsumexp(-1, keepdim=True)
        return (logits - normalizers).logsumexp(0) - math.log(len(logits)) + normalizers.mean(0)


def load_average(checkpoints: Sequence[Checkpoint]) -> Model | Average:
    """Return the model of a checkpoint, or the average of several, on the CPU and in eval mode."""
    models = [load_model(checkpoint) for checkpoint in checkpoints]
    return Average(models).eval() if len(models) > 1 else models[0]
