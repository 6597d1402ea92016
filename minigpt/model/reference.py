"""Run a torch model as an engine of sampling/generate.py: the plain forward pass over the window at each step."""

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.model.gpt import eval_mode
from minigpt.model.load import Model
from minigpt.sampling.load import AnyEngine, build_engine
from minigpt.sampling.recurrent import RecurrentEngine


class TorchEngine:
    """The reference that the tests hold the NumPy engines to. It keeps no cache and runs on any device."""

    def __init__(self, model: Model) -> None:
        """Use `model` on its device."""
        self.model = model
        self.context = RecurrentEngine.context if model.config.is_recurrent else model.config.context

    def start(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Forget all sequences, read new ones (B, T), and return the logits (B, V) of the next token."""
        self.ids = torch.tensor(ids, device=self.model.token_embedding.weight.device)
        with torch.inference_mode(), eval_mode(self.model):
            logits: NDArray[np.float32] = self.model(self.ids)[:, -1].float().numpy(force=True)
        return logits

    def step(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Append one token to each sequence (B), and return the logits (B, V) of the next token."""
        return self.start(np.concatenate((self.ids.numpy(force=True), ids[:, None]), axis=1))


def numpy_engine(model: Model) -> AnyEngine:
    """Return the NumPy engine with the weights of a torch model."""
    weights = {name: tensor.numpy(force=True) for name, tensor in model.state_dict().items()}
    return build_engine(model.config, weights)
