"""minigpt: train your own character-level GPT on any text, and look inside it.

Load the run that was trained last, and generate text without PyTorch:

    import minigpt

    model = minigpt.load("last")
    text = model.generate("the ", length=100, temperature=0.7)
    print(text)

See how well the model predicts a text. Jupyter shows the page of `minigpt inspect` in an iframe:

    loss = model.loss("the cat and the hat")  # loss.mean is in nats per character
    page = model.inspect("the cat and the hat")

Train on a text, as `minigpt train my.txt --config tiny --steps 100 --name mine` does:

    prepared = minigpt.prepare_run(["my.txt"], preset="tiny", assignments=["train.steps=100"])
    with minigpt.new_run("mine", prepared.stem) as run:
        outcome = minigpt.train(prepared.config, run, prepared.data)
    print(outcome.state.best_loss)

Compute with the best checkpoint of this run in PyTorch:

    import torch

    checkpoint = minigpt.load_checkpoint("runs/mine")
    network = minigpt.load_model(checkpoint)
    ids = torch.from_numpy(checkpoint.tokenizer.encode("the "))
    logits = network(ids[None])  # (1, 4, vocabulary size)
"""

TYPE_CHECKING = False
"""True for type checkers, like `typing.TYPE_CHECKING`. Importing `typing` would delay the handling of Ctrl-C."""
__version__ = "0.1.0"
_HOME = {
    "GPT": "model.gpt",
    "RunConfig": "config.schema",
    "SampleConfig": "config.schema",
    "Training": "training.loop",
    "UserError": "errors",
    "extract": "interpret.extract",
    "generate": "sampling.generate",
    "history": "notebook",
    "load": "notebook",
    "load_checkpoint": "storage.checkpoint",
    "load_engine": "sampling.load",
    "load_model": "model.load",
    "new_run": "storage.runs",
    "prepare_run": "training.setup",
    "train": "training.loop",
}
__all__ = [*_HOME]

if TYPE_CHECKING:
    from minigpt.config.schema import RunConfig as RunConfig
    from minigpt.config.schema import SampleConfig as SampleConfig
    from minigpt.errors import UserError as UserError
    from minigpt.interpret.extract import extract as extract
    from minigpt.model.gpt import GPT as GPT
    from minigpt.model.load import load_model as load_model
    from minigpt.notebook import history as history
    from minigpt.notebook import load as load
    from minigpt.sampling.generate import generate as generate
    from minigpt.sampling.load import load_engine as load_engine
    from minigpt.storage.checkpoint import load_checkpoint as load_checkpoint
    from minigpt.storage.runs import new_run as new_run
    from minigpt.training.loop import Training as Training
    from minigpt.training.loop import train as train
    from minigpt.training.setup import prepare_run as prepare_run


def __getattr__(name: str) -> object:
    # Import on first use, so that `import minigpt` and `minigpt --help` do not wait for torch.
    if name not in _HOME:
        from minigpt.errors import did_you_mean

        raise AttributeError(f"module 'minigpt' has no attribute {name!r}{did_you_mean(name, _HOME)}")
    from importlib import import_module

    return getattr(import_module(f"minigpt.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
