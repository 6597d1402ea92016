"""Recurrent networks, to compare with the transformer. They have the same interface.

Each layer keeps a state for each sequence, and updates it with every token in one of three ways:

- `rnn`: h = tanh(W x + U h) (Elman 1990, https://doi.org/10.1207/s15516709cog1402_1)
- `lstm`: gates decide what a second state, the cell, forgets and adds (Hochreiter and Schmidhuber 1997,
  https://doi.org/10.1162/neco.1997.9.8.1735; the forget gate is by Gers et al. 2000)
- `gru`: two gates and no cell (Cho et al. 2014, https://arxiv.org/abs/1406.1078; in PyTorch's variant)

Layers above the first add to the output of the layer below (Wu et al. 2016, https://arxiv.org/abs/1609.08144).
PyTorch computes the layers. `sampling/recurrent.py` has the same steps in NumPy.

Letters in shapes: B batch, T positions, C width (n_embd), V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import Dropout

LAYERS: dict[str, type[nn.RNN | nn.LSTM | nn.GRU]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class Recurrent(nn.Module):
    """Map token ids (B, T) to logits (B, T, V) of the next token at each position, from a state of zeros.

    Training cuts the text into windows of the context, so gradients end at the start of a window (truncated
    backpropagation through time). The model itself processes texts of any length.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config, layer = config, LAYERS[config.family]
        self.token_embedding = nn.Embedding(vocab_size, config.n_embd)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            layer(config.n_embd, config.n_embd, bias=config.bias, batch_first=True) for _ in range(config.n_layer)
        )
        self.init_weights()

    def init_weights(self) -> None:
        """Draw embeddings with a standard deviation of 1 / sqrt(C). Layers keep PyTorch's weights, except one bias.

        With a bias of 1, the forget gates of an LSTM start more open than closed (Jozefowicz et al. 2015,
        https://proceedings.mlr.press/v37/jozefowicz15.html).
        """
        C = self.config.n_embd
        nn.init.normal_(self.token_embedding.weight, std=1 / math.sqrt(C))
        for name, parameter in self.blocks.named_parameters():
            if name.endswith("bias_ih_l0") and self.config.family == "lstm":
                nn.init.ones_(parameter.data[C : 2 * C])

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V) for ids (B, T)."""
        x = self.dropout(self.token_embedding(ids) * math.sqrt(self.config.n_embd))  # (B, T, C), of unit variance
        # On a CPU, PyTorch's recurrent layers take 1.5 times as long in bfloat16.
        with torch.autocast(x.device.type, enabled=x.device.type != "cpu" and torch.is_autocast_enabled()):
            for index, block in enumerate(self.blocks):
                y = self.dropout(block(x)[0])  # (B, T, C)
                x = x + y if index else y  # a residual connection (Wu et al. 2016, section 3.1)
        return F.linear(x, self.token_embedding.weight)  # tied weights (Press and Wolf 2017)
