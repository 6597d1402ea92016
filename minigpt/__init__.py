"""minigpt: train your own character-level GPT on any text, and look inside it.

Train on a text, as `minigpt train my.txt --config tiny --name mine` does:

    import minigpt

    prepared = minigpt.prepare_run(["my.txt"], preset="tiny", assignments=["train.steps=100"])
    with minigpt.new_run("mine", prepared.stem) as (run, in_place):
        outcome = minigpt.train(prepared.config, run, prepared.data, in_place=in_place)
    print(outcome.state.best_loss)

Load the best checkpoint and sample from it. This does not need PyTorch:

    checkpoint = minigpt.load_checkpoint("runs/mine")
    engine = minigpt.load_engine(checkpoint)
    print("".join(sampled.text for sampled in minigpt.generate(engine, checkpoint.tokenizer, "the ")))

Compute with the model in PyTorch:

    import torch

    model = minigpt.load_model(checkpoint)
    ids = torch.from_numpy(checkpoint.tokenizer.encode("the "))
    logits = model(ids[None])  # (1, 4, vocabulary size)
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "GPT",
    "RunConfig",
    "UserError",
    "generate",
    "load_checkpoint",
    "load_engine",
    "load_model",
    "new_run",
    "prepare_run",
    "train",
]

_HOME = {
    "GPT": "model.gpt",
    "RunConfig": "config.schema",
    "UserError": "errors",
    "generate": "sampling.generate",
    "load_checkpoint": "storage.checkpoint",
    "load_engine": "sampling.load",
    "load_model": "model.load",
    "new_run": "storage.runs",
    "prepare_run": "training.setup",
    "train": "training.loop",
}

if TYPE_CHECKING:
    from minigpt.config.schema import RunConfig
    from minigpt.errors import UserError
    from minigpt.model.gpt import GPT
    from minigpt.model.load import load_model
    from minigpt.sampling.generate import generate
    from minigpt.sampling.load import load_engine
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.storage.runs import new_run
    from minigpt.training.loop import train
    from minigpt.training.setup import prepare_run


def __getattr__(name: str) -> Any:
    # Import on first use, so that `import minigpt` and `minigpt --help` do not wait for torch.
    if name not in _HOME:
        raise AttributeError(f"module 'minigpt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"minigpt.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
