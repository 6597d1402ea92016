"""minigpt: train your own character-level GPT on any text, on any machine, and look inside it."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["GPT", "Engine", "RunConfig", "UserError", "generate", "load_checkpoint", "load_model"]

_HOME = {
    "GPT": "model.gpt",
    "Engine": "sampling.engine",
    "RunConfig": "config.schema",
    "UserError": "errors",
    "generate": "sampling.generate",
    "load_checkpoint": "storage.checkpoint",
    "load_model": "model.load",
}

if TYPE_CHECKING:
    from minigpt.config.schema import RunConfig
    from minigpt.errors import UserError
    from minigpt.model.gpt import GPT
    from minigpt.model.load import load_model
    from minigpt.sampling.engine import Engine
    from minigpt.sampling.generate import generate
    from minigpt.storage.checkpoint import load_checkpoint


def __getattr__(name: str) -> Any:
    # Import on first use, so that `import minigpt` and `minigpt --help` do not wait for torch.
    if name not in _HOME:
        raise AttributeError(f"module 'minigpt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"minigpt.{_HOME[name]}"), name)
