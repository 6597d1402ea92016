"""Build the engine of a checkpoint."""

from collections.abc import Mapping

from minigpt.config.schema import ModelConfig
from minigpt.sampling.engine import Array, Engine
from minigpt.sampling.recurrent import RecurrentEngine
from minigpt.storage.checkpoint import Checkpoint

AnyEngine = Engine | RecurrentEngine


def build_engine(config: ModelConfig, weights: Mapping[str, Array]) -> AnyEngine:
    """Return the engine of a model. `weights` uses the names in the `state_dict()` of its torch model."""
    return (RecurrentEngine if config.is_recurrent else Engine)(config, weights)


def load_engine(checkpoint: Checkpoint) -> AnyEngine:
    """Return the engine of a checkpoint. It does not need torch."""
    return build_engine(checkpoint.config.model, checkpoint.weights)
