"""GGUF: what the file says, and what llama.cpp computes from it, if it is installed."""

import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exports import made

from minigpt.errors import NoCounterpartError
from minigpt.interop import gguf
from minigpt.interop.export import check, export
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer

reader = pytest.importorskip("gguf")
ALPHABET = "\n !?ABCé漢🎉\u0301\\'\"\t"
MODELS: dict[str, dict[str, Any]] = {
    "apertus": {"family": "modern"},
    "qwen3": {"family": "modern", "activation": "swiglu"},
    "gpt2": {"family": "classic"},
    "gpt2 without biases": {"family": "classic", "bias": False},
}


def read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the metadata and the tensors of a file."""
    file = reader.GGUFReader(folder / "model.gguf")
    return {key: field.contents() for key, field in file.fields.items()}, {t.name: t.data for t in file.tensors}


@pytest.mark.parametrize("name", MODELS)
def test_the_file_has_the_weights_and_settings(name: str, tmp_path: Path) -> None:
    loaded = made(CharTokenizer(ALPHABET), **MODELS[name])
    gguf.write(loaded, tmp_path)
    fields, tensors = read(tmp_path)
    ours, arch, config = loaded.weights, name.split()[0], loaded.config.model
    assert fields["general.architecture"] == arch
    named = {"context_length": config.context, "block_count": 2, "embedding_length": 16, "attention.head_count": 2}
    assert {key: fields[f"{arch}.{key}"] for key in named} == named
    assert fields[f"{arch}.feed_forward_length"] == len(ours["blocks.0.mlp.up.weight"])
    assert (tensors["output.weight"] == ours["token_embedding.weight"]).all()
    qkv = ours["blocks.1.attention.qkv.weight"]
    if arch == "gpt2":
        assert (tensors["blk.1.attn_qkv.weight"] == qkv).all()
        biases = [array for key, array in tensors.items() if key.endswith(".bias")]
        assert len(biases) == 2 * 6 + 1
        assert any(bias.any() for bias in biases) == config.bias
    else:
        assert (np.concatenate([tensors[f"blk.1.attn_{part}.weight"] for part in "qkv"]) == qkv).all()
        assert (tensors["blk.0.attn_k_norm.weight"] == ours["blocks.0.attention.qk_norm.weight"]).all()
    if arch == "apertus":  # xIELU for x > 0: (beta + softplus(alpha_p)) x^2 + beta x
        assert fields["xielu.beta"] == [0, 0]
        x, scale = np.float32([0.1, 3.7, 1e3]), np.logaddexp(0, np.float32(fields["xielu.alpha_p"][1]))
        ratio = (tensors["blk.1.ffn_up.weight"] / ours["blocks.1.mlp.up.weight"]).max()
        assert (scale * (x * ratio) ** 2 == x**2).all()
        assert np.logaddexp(0, np.float32(fields["xielu.alpha_n"][1])) < 1e-30


def test_tokens_are_escaped_bytes(tmp_path: Path) -> None:
    gguf.write(made(CharTokenizer(ALPHABET)), tmp_path)
    fields, _ = read(tmp_path)
    tokens = [bytes.fromhex(token.replace("\\x", "")) for token in fields["tokenizer.ggml.tokens"]]
    assert b"".join(tokens).decode() == "".join(sorted(ALPHABET))
    assert tokens[fields["tokenizer.ggml.unknown_token_id"]] == b" "


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"family": "modern", "bias": True}, "model.bias=true"),
        ({"family": "modern", "activation": "gelu"}, "model.activation=gelu"),
        ({"family": "modern", "position": "none"}, "model.position=none"),
        ({"family": "classic", "activation": "gelu_exact"}, "model.activation=gelu_exact"),
        ({"family": "classic", "position": "rotary"}, "model.norm=layernorm with model.position=rotary"),
        ({"family": "lstm"}, "model.family=lstm"),
    ],
    ids=str,
)
def test_a_setting_without_a_counterpart_is_named(settings: dict[str, Any], names: str, tmp_path: Path) -> None:
    with pytest.raises(NoCounterpartError, match=f"llama.cpp has no counterpart of {names}"):
        export(made(CharTokenizer(ALPHABET), **settings), "gguf", tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("context", "length"), [(1, 1), (16, 15), (256, 100)])
def test_the_printed_lines_stay_within_the_context(
    context: int, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export(made(CharTokenizer(ALPHABET), context=context), "gguf", tmp_path / "out")
    seen: list[dict[str, Any]] = []

    def llama(path: str, **options: Any) -> Any:
        assert Path(path).is_file()
        seen.append(options)
        return lambda prompt, **options: seen.append(options) or {"choices": [{"text": "a text"}]}

    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=llama))
    exec(gguf.usage(tmp_path / "out", "\n"), {})  # noqa: S102 - our own lines
    assert [seen[0]["n_ctx"], seen[1]["max_tokens"]] == [context, length]
    assert capsys.readouterr().out == "a text\n"


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_computes_the_same(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llama_cpp")
    loaded = made(ByteTokenizer() if name == "qwen3" else CharTokenizer(ALPHABET), **MODELS[name])
    export(loaded, "gguf", tmp_path / "out")
    agreement = check(loaded, "gguf", tmp_path / "out")
    assert agreement
    # llama.cpp looks up GELU in a table of float16: https://github.com/ggml-org/llama.cpp (ggml-cpu/vec.h)
    assert agreement.difference < (1e-2 if name.startswith("gpt2") else 1e-4)
    assert agreement.same_text
    assert agreement.tokens == loaded.config.model.context
    logits = gguf.load(tmp_path / "out")
    assert logits([1]).shape == (1, loaded.tokenizer.vocab_size)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("byte", [False, True])
def test_llama_cpp_reads_every_text_as_minigpt_does(byte: bool, tmp_path: Path) -> None:
    llama = pytest.importorskip("llama_cpp").Llama
    loaded = made(ByteTokenizer() if byte else CharTokenizer(ALPHABET))
    gguf.write(loaded, tmp_path)
    model = llama(str(tmp_path / "model.gguf"), vocab_only=True, verbose=False)
    letters = random.Random(0)
    texts = ["".join(letters.choices(ALPHABET, k=letters.randrange(1, 40))) for _ in range(1000)]
    for text in [*ALPHABET, *texts, "".join(map(chr, range(1, 0x3000))) if byte else ALPHABET]:
        ids = model.tokenize(text.encode(), add_bos=False, special=False)
        assert ids == loaded.tokenizer.encode(text).tolist()
        assert model.detokenize(ids) == text.encode()
    assert isinstance(loaded.tokenizer, ByteTokenizer) == byte
