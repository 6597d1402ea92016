"""Import of models from nanoGPT and transformers, and of files that try to do harm."""

import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exports import SETTINGS, made, nanogpt_file, nanogpt_tensors
from forgery import entry, safetensors
from random_models import TEXT
from safetensors.torch import load_file, save_file

from minigpt.errors import UserError
from minigpt.interop import hf_import, nanogpt
from minigpt.interop.export import export
from minigpt.interop.imported import create_run, read_text
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.metadata import verify
from minigpt.text.tokenizer import ByteTokenizer
from minigpt.training.setup import prepare_resume

NANOGPT = {"family": "classic", "activation": "gelu_exact"}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("byte", [False, True], ids=["char", "byte"])
def test_an_export_of_an_imported_export_is_the_same_files(
    settings: dict[str, Any], byte: bool, empty_folder: Path
) -> None:
    export(made(ByteTokenizer() if byte else None, **settings), "hf", Path("out"))
    run = create_run(hf_import.read(Path("out")), None, None, "utf-8", None, "out")
    loaded = load_checkpoint(run)
    verify(loaded.path)
    assert loaded.metadata.imported
    export(loaded, "hf", Path("again"))
    for path in Path("out").iterdir():
        assert path.read_bytes() == Path("again", path.name).read_bytes(), path.name


def test_a_model_of_700_files_can_be_imported_again(empty_folder: Path) -> None:
    names = tuple(f"a/folder/chapter {number:04d}.txt" for number in range(700))
    model = made()
    corpus = model.metadata.model_copy(update={"corpus": " + ".join(names)})
    data = model.config.data.model_copy(update={"source": names})
    config = model.config.model_copy(update={"data": data})
    export(replace(model, config=config, metadata=corpus), "hf", Path("out"))
    run = create_run(hf_import.read(Path("out")), None, None, "utf-8", None, "out")
    assert load_checkpoint(run).metadata.corpus.endswith(" + chapter 0698.txt + chapter 0699.txt")


def test_the_text_of_a_run_that_left_characters_out_can_be_named(empty_folder: Path) -> None:
    model = made()
    data = model.config.data.model_copy(update={"unknown": "skip"})
    corpus = model.metadata.model_copy(update={"corpus": "my/books/"})
    export(replace(model, config=model.config.model_copy(update={"data": data}), metadata=corpus), "hf", Path("out"))
    found = hf_import.read(Path("out"))
    assert found.about is not None
    assert found.about.corpus == "books"
    Path("text.txt").write_text(TEXT + "Ω", encoding="utf-8")
    create_run(found, read_text("text.txt", "utf-8"), "text.txt", "utf-8", "mine", "text")


def test_an_error_names_the_shape_in_the_file(empty_folder: Path) -> None:
    model = made(family="classic")
    export(model, "hf", Path("out"))
    weights, path = load_file("out/model.safetensors"), Path("out/model.safetensors")
    for name in ("transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight"):
        save_file({**weights, name: torch.zeros(3, 5)}, path)
        with pytest.raises(UserError, match=rf"{name} has shape \(3, 5\)"):
            hf_import.read(Path("out"))


@pytest.mark.parametrize("bias", [False, True])
def test_nanogpt_has_the_same_weights(bias: bool, empty_folder: Path) -> None:
    checkpoint = made(**NANOGPT, bias=bias)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    text = read_text("text.txt", "utf-8")
    found = nanogpt.read(nanogpt_file(Path("ckpt.pt"), checkpoint), text)
    run = create_run(found, text, "text.txt", "utf-8", "mine", "text")
    loaded = load_checkpoint(run)
    assert loaded.weights.keys() == checkpoint.weights.keys()
    assert all(np.array_equal(loaded.weights[name], array) for name, array in checkpoint.weights.items())
    assert loaded.config.model == checkpoint.config.model
    assert (loaded.metadata.step, loaded.config.train.batch_size, loaded.metadata.imported) == (7, 24, "nanoGPT")
    with pytest.raises(UserError, match="no optimizer state"):
        prepare_resume(run, [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_nanogpt_may_have_half_precision(dtype: torch.dtype, empty_folder: Path) -> None:
    checkpoint = made(**NANOGPT)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    half = {name: tensor.to(dtype) for name, tensor in nanogpt_tensors(checkpoint).items()}
    path = nanogpt_file(Path("ckpt.pt"), checkpoint, model=half)
    found = nanogpt.read(path, read_text("text.txt", "utf-8")).weights["token_embedding.weight"]
    assert found.dtype == np.float32
    expected = torch.tensor(checkpoint.weights["token_embedding.weight"]).to(dtype).float()
    assert np.array_equal(found, expected.numpy())


class Trap:
    """An object whose unpickling creates a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("trapped",)


def test_hostile_files_of_nanogpt_are_refused_and_run_nothing(empty_folder: Path) -> None:
    checkpoint, path = made(**NANOGPT), Path("ckpt.pt")
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    text = read_text("text.txt", "utf-8")

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
        ({"vocab_size": 50304}, "BPE"),
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


def test_hostile_folders_are_refused(empty_folder: Path) -> None:
    export(made(), "hf", Path("good"))

    def refused(problem: str) -> None:
        with pytest.raises(UserError, match=problem):
            hf_import.read(Path("bad"))

    def change(name: str, content: bytes | dict[str, Any] | None) -> None:
        shutil.rmtree("bad", ignore_errors=True)
        shutil.copytree("good", "bad")
        if isinstance(content, dict):
            content = json.dumps(json.loads(Path("good", name).read_bytes()) | content).encode()
        Path("bad", name).unlink()
        if content is not None:
            Path("bad", name).write_bytes(content)

    weights = Path("good/model.safetensors").read_bytes()
    huge = {"model.norm.weight": entry(shape=(1 << 40,), offsets=(0, 1 << 42))}
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    twice = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2}
    for name, content, problem in [
        ("config.json", None, "config.json"),
        ("config.json", b"[" * 100_000, "JSON"),
        ("config.json", b"[]", "object"),
        ("config.json", {"model_type": "llama"}, "model_type"),
        ("config.json", {"hidden_size": 10**9}, "hidden_size"),
        ("config.json", {"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        ("config.json", b" " * (1 << 20), "larger"),
        ("config.json", {"rope_scaling": linear}, "rope_scaling"),
        ("config.json", {"rope_parameters": linear}, "rope_parameters"),
        ("config.json", {"is_causal": False}, "is_causal .false.; remove it"),
        ("config.json", {"is_causal": None}, "is_causal"),
        ("config.json", {"quantization_config": {"quant_method": "x"}}, "quantization_config"),
        ("config.json", {"sliding_window": 2}, "sliding_window is 2, and minigpt needs null"),
        ("config.json", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("config.json", {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "auto_map"),
        ("config.json", b'{"model_type": "apertus", "model_type": "gpt2"}', "appears twice"),
        ("tokenizer_config.json", {"bos_token": "B"}, "bos_token"),
        ("tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"}, "tokenizer_class"),
        ("tokenizer_config.json", {"tokenizer_class": None}, "tokenizer_class is null"),
        ("tokenizer_config.json", None, "tokenizer_config.json"),
        ("tokenizer_config.json", {"add_prefix_space": True}, "add_prefix_space"),
        ("tokenizer.json", {"post_processor": {"type": "BertProcessing", "sep": ["a", 0], "cls": ["b", 1]}}, "post"),
        ("tokenizer.json", {"post_processor": twice}, "post_processor"),
        ("tokenizer.json", {"more": 1}, "more is not that"),
        ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}, "normalizer"),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}, "characters or bytes"),
        ("tokenizer.json", {"model": {"type": "WordLevel", "vocab": {"b": 0, "a": 1}}}, "tokenizer"),
        ("minigpt.json", {"step": -1}, "step"),
        ("minigpt.json", {"settings": {"model": {"n_layer": 10**12}}}, "n_layer"),
        ("model.safetensors", weights[:1000], "safetensors"),
        ("model.safetensors", safetensors(huge), "safetensors"),
        ("model.safetensors", safetensors({"x": entry(shape=[0] * 70, offsets=(0, 0))}), "safetensors"),
        ("model.safetensors", weights + b"x" * (3 << 20), "larger"),
    ]:
        change(name, content)
        refused(problem)
    change("model.safetensors", None)
    Path("bad/model.safetensors").symlink_to(Path("good/model.safetensors").absolute())
    refused("link")
    change("README.md", None)
    Path("bad/added_tokens.json").write_text('{"<x>": 99}')
    refused("added_tokens")
    change("config.json", {"initializer_range": "x", "use_cache": 1, "attention_bias": 0, "torch_dtype": "x"})
    assert hf_import.read(Path("bad")).model == made().config.model


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_types_are_converted_or_named(dtype: torch.dtype, tmp_path: Path) -> None:
    export(made(), "hf", tmp_path / "out")
    path = tmp_path / "out/model.safetensors"
    weights = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(weights, path)
    if dtype == torch.float64:
        with pytest.raises(UserError, match="numbers of type F64, and minigpt reads F32, F16, BF16"):
            hf_import.read(tmp_path / "out")
        return
    found = hf_import.read(tmp_path / "out").weights["token_embedding.weight"]
    assert found.dtype == np.float32
    assert np.array_equal(found, weights["model.embed_tokens.weight"].float().numpy())


def test_a_model_with_other_logits_in_transformers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(config: object, arrays: object) -> None:
        raise ImportError

    export(made(), "hf", tmp_path / "out")
    for value in (0, np.nan):
        monkeypatch.setattr(hf_import, "rebuild", lambda config, arrays, logit=value: lambda ids: np.float32([[logit]]))
        with pytest.raises(UserError, match="logits of transformers differ"):
            hf_import.read(tmp_path / "out")
    monkeypatch.setattr(hf_import, "rebuild", absent)
    assert hf_import.read(tmp_path / "out").compared is None
