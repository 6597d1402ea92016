"""Checkpoints of tiny models with large random weights, to export."""

from dataclasses import replace
from typing import Any

import random_models
import torch
from small_models import random_model, small_config

from minigpt.model.recurrent import Recurrent
from minigpt.storage.checkpoint import Checkpoint


def checkpoint(
    text: str = random_models.TEXT, *, byte: bool = False, family: str = "modern", **changes: Any
) -> Checkpoint:
    """Return a checkpoint of a model of two layers, 16 wide, with a context of 10."""
    made = random_models.checkpoint(text, byte=byte)
    config = small_config(family, **changes)
    torch.manual_seed(0)
    vocab_size = made.tokenizer.vocab_size
    model = Recurrent(config, vocab_size) if config.is_recurrent else random_model(family, vocab_size, **changes)
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    return replace(made, config=made.config.model_copy(update={"model": config}), weights=weights)
