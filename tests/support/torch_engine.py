"""The reference for sampling: the plain forward pass over the window at each step."""

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.model.gpt import eval_mode
from minigpt.model.load import Model
from minigpt.sampling.recurrent import RecurrentEngine


class TorchEngine:
    """A torch model as an engine of `generate`. It keeps no cache, and runs on the device of the model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.context = RecurrentEngine.context if model.config.is_recurrent else model.config.context

    def start(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        self.ids = torch.tensor(ids, device=self.model.token_embedding.weight.device)
        with torch.inference_mode(), eval_mode(self.model):
            logits: NDArray[np.float32] = self.model(self.ids)[:, -1].float().numpy(force=True)
        return logits

    def step(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.start(np.concatenate((self.ids.numpy(force=True), ids[:, None]), axis=1))
