"""Run a torch model as an engine of sampling/generate.py: the plain forward pass over the window at each step."""

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.model.gpt import GPT, eval_mode
from minigpt.sampling.engine import Engine


class TorchEngine:
    """The reference that the tests hold `Engine` to. It keeps no KV cache and runs on any device."""

    def __init__(self, model: GPT) -> None:
        """Use `model` on its device."""
        self.model, self.context = model, model.config.context

    def start(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Forget all sequences, read new ones (B, T), and return the logits (B, V) of the next token."""
        self.ids = torch.tensor(ids, device=self.model.token_embedding.weight.device)
        with torch.inference_mode(), eval_mode(self.model):
            logits: NDArray[np.float32] = self.model(self.ids)[:, -1].float().numpy(force=True)
        return logits

    def step(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Append one token to each sequence (B), and return the logits (B, V) of the next."""
        return self.start(np.concatenate((self.ids.numpy(force=True), ids[:, None]), axis=1))


def numpy_engine(model: GPT) -> Engine:
    """Return the NumPy engine with the weights of a torch model."""
    weights = {name: tensor.numpy(force=True) for name, tensor in model.state_dict().items()}
    return Engine(model.config, weights)
