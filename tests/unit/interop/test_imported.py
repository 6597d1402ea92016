"""Import of models from nanoGPT, and of files that try to do harm."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exports import made, nanogpt_file, nanogpt_tensors
from random_models import TEXT

from minigpt.errors import UserError
from minigpt.interop import nanogpt
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.text.corpus import Scan, scan
from minigpt.text.sources import open_corpus
from minigpt.training.setup import prepare_resume

NANOGPT = {"family": "classic", "activation": "gelu_exact"}


@pytest.fixture(autouse=True)
def text(empty_folder: Path) -> Scan:
    """text.txt, which the models were trained on."""
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    return scan(open_corpus(["text.txt"], "utf-8"))


@pytest.mark.parametrize("bias", [False, True])
def test_nanogpt_has_the_same_weights(bias: bool) -> None:
    checkpoint = made(**NANOGPT, bias=bias)
    Path("links").mkdir()
    link = Path("links/ckpt.pt")
    link.symlink_to(nanogpt_file(Path("ckpt.pt"), checkpoint).absolute())  # the user's own
    run = nanogpt.create_run(link, "text.txt", "utf-8", "mine")
    loaded = load_checkpoint(run)
    assert loaded.weights.keys() == checkpoint.weights.keys()
    assert all(np.array_equal(loaded.weights[name], array) for name, array in checkpoint.weights.items())
    assert loaded.config.model == checkpoint.config.model
    assert loaded.tokenizer.to_json() == checkpoint.tokenizer.to_json()
    assert (loaded.metadata.step, loaded.metadata.imported) == (7, "nanoGPT")
    with pytest.raises(UserError, match="no optimizer state"):
        prepare_resume(run, [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_nanogpt_may_have_half_precision(dtype: torch.dtype, text: Scan) -> None:
    checkpoint = made(**NANOGPT)
    half = {name: tensor.to(dtype) for name, tensor in nanogpt_tensors(checkpoint).items()}
    _, weights, _ = nanogpt.read(nanogpt_file(Path("ckpt.pt"), checkpoint, model=half), text)
    assert weights["token_embedding.weight"].dtype == np.float32
    expected = torch.tensor(checkpoint.weights["token_embedding.weight"]).to(dtype).float()
    assert np.array_equal(weights["token_embedding.weight"], expected.numpy())


class Trap:
    """An object whose unpickling creates a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("trapped",)


def test_hostile_files_of_nanogpt_are_refused_and_run_nothing(text: Scan) -> None:
    checkpoint, path = made(**NANOGPT), Path("ckpt.pt")

    def refused(problem: str) -> None:
        with pytest.raises(UserError, match=problem):
            nanogpt.read(path, text)
        assert not Path("trapped").exists()

    nanogpt_file(path, checkpoint, config=Trap())
    refused("no code")
    for model in ({"more": torch.ones(1).expand(20_000, 40_000)}, {7: torch.ones(2)}, {"a": 7}, [7]):
        nanogpt_file(path, checkpoint, model=model)
        refused("missing" if "more" in model else "no code")
    path.write_bytes(pickle.dumps(Trap()))
    refused("no code")
    torch.save({"model": Trap()}, path, _use_new_zipfile_serialization=False)
    refused("no code")
    nanogpt_file(path, checkpoint)
    whole = path.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        refused("ckpt.pt")
    numbers = checkpoint.weights["blocks.0.mlp.up.weight"].tobytes()
    path.write_bytes(whole.replace(numbers, bytes(len(numbers))))  # the checksum differs
    refused("damaged")
    nanogpt_file(path, checkpoint, model_args=None)
    refused("model_args")
    arguments = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 10, "bias": True}
    for changes, problem in [
        ({"vocab_size": 12}, "name the text"),
        ({"vocab_size": checkpoint.tokenizer.vocab_size, "n_layer": 10**9}, "n_layer"),
        ({"vocab_size": checkpoint.tokenizer.vocab_size, "n_embd": "16"}, "n_embd"),
        ({"vocab_size": torch.ones(3)}, "vocab_size"),
        ({"vocab_size": checkpoint.tokenizer.vocab_size, "n_embd": 90_000}, "shape"),
        ({"vocab_size": checkpoint.tokenizer.vocab_size, "n_layer": 3}, "missing"),
        ({"vocab_size": checkpoint.tokenizer.vocab_size, "n_layer": 1}, "no counterpart"),
    ]:
        nanogpt_file(path, checkpoint, model_args=arguments | changes)
        refused(problem)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("transformer.wpe.weight", lambda tensor: tensor.T, r"shape \(16, 10\)"),
        (
            "transformer.ln_f.weight",
            lambda tensor: tensor / 0,
            r"transformer\.ln_f\.weight has values that are not finite",
        ),
        ("lm_head.weight", lambda tensor: tensor + 1, "the output matrix is not the token embedding"),
    ],
)
def test_tensors_that_are_not_those_of_the_model_are_named(
    name: str, change: Callable[[torch.Tensor], torch.Tensor], problem: str, text: Scan
) -> None:
    checkpoint = made(**NANOGPT)
    tensors = nanogpt_tensors(checkpoint)
    tensors[f"_orig_mod.{name}"] = change(tensors[f"_orig_mod.{name}"])
    path = nanogpt_file(Path("ckpt.pt"), checkpoint, model=tensors)
    with pytest.raises(UserError, match=problem):
        nanogpt.read(path, text)
