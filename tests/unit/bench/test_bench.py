"""The benchmarks: all sides compute the same, and the results are consistent."""

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench import data, sample
from click.testing import Result
from exports import made
from lab_scripts import LAB, script
from typer.testing import CliRunner

from minigpt.cli.app import app
from minigpt.config.resolve import parse_overrides, resolve
from minigpt.config.schema import SampleConfig
from minigpt.errors import UserError
from minigpt.storage.checkpoint import Checkpoint

pytestmark = pytest.mark.nightly

SHAPE = ["-s", "model.n_layer=1", "-s", "model.n_head=1", "-s", "model.n_embd=16", "-s", "model.context=16"]
RUN = script("run", LAB.parent / "bench")
MIXED = "Grüße, 世界 🎉\r\nthe quick brown fox\n" * 200


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(RUN.app, [*map(str, arguments)])


def found(*arguments: object) -> Any:
    """Return the JSON document of a benchmark."""
    done = bench(*arguments, "--json")
    if done.exception:
        raise done.exception
    return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def check(document: Any, rate: str, rounds: int) -> None:
    """Check the summaries and ratios against the rounds."""
    for comparison in document["comparisons"]:
        ours, *others = comparison["sides"]
        for side in comparison["sides"].values():
            assert len(side["rounds"]) == rounds
            values = sorted(one[rate] for one in side["rounds"])
            assert values[0] <= side["summary"][rate] <= values[-1]
        assert list(comparison["ratios"]) == others
        for name, ratio in comparison["ratios"].items():
            pairs = zip(comparison["sides"][ours]["rounds"], comparison["sides"][name]["rounds"], strict=True)
            assert ratio["rounds"] == pytest.approx([ours[rate] / other[rate] for ours, other in pairs])
            assert ratio["min"] <= ratio["median"] <= ratio["max"]


def test_training_computes_the_same_on_both_sides(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(MIXED, encoding="utf-8")
    settings = ["-s", "train.batch_size=4", "-s", "runtime.dtype=float32", "-s", "runtime.compile=false"]
    # The run has only two steps, fewer than a round.
    document = found("train", text, *SHAPE, *settings, "-s", "train.steps=2", "--rounds", 2, "--seconds", 0.05)
    check(document, "characters_per_second", 2)
    (comparison,) = document["comparisons"]
    ours, plain = comparison["sides"]["minigpt"], comparison["sides"]["plain loop"]
    assert ours["loss_at_start"] == pytest.approx(plain["loss_at_start"], abs=1e-5)
    assert (ours["dtype"], plain["dtype"]) == ("float32", "float32")
    for one in [*ours["rounds"], *plain["rounds"]]:
        per_second = one["steps"] / one["seconds"]
        assert one["ms_per_step"] * per_second == pytest.approx(1000)
        assert one["characters_per_second"] == pytest.approx(4 * 16 * per_second)
        assert one["share_of_matmul"] == pytest.approx(one["flops_per_second"] / one["matmul_flops_per_second"])
    flops = [
        side["rounds"][0]["flops_per_second"] / side["rounds"][0]["characters_per_second"] for side in (ours, plain)
    ]
    assert flops[0] == pytest.approx(flops[1])


def untrained() -> Checkpoint:
    """Return a small model with random weights."""
    return sample.new_checkpoint(resolve(sample.DEFAULTS, parse_overrides(SHAPE[1::2])).config)


def test_each_round_of_sampling_has_its_own_seed() -> None:
    checksums = []
    for _ in range(2):
        measure, facts = sample.build_minigpt(untrained(), 16, 2, print)
        rounds = [measure() for _ in range(3)]
        assert {one["characters"] for one in rounds} == {2 * 16}
        checksums.append([one["crc32"] for one in rounds])
    assert checksums[0] == checksums[1]
    assert len(set(checksums[0])) == 3
    assert "NumPy" in facts["about"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of a short run in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("to be or not to be, that is the question\n" * 20, encoding="utf-8")
    settings = [*SHAPE, "-s", "train.steps=2", "-s", "runtime.device=cpu", "-s", "runtime.compile=false"]
    assert CliRunner().invoke(app, ["train", "text.txt", "--name", "small", *settings]).exit_code == 0
    return "small"


def test_a_trained_run_is_sampled_up_to_its_context(monkeypatch: pytest.MonkeyPatch, trained: str) -> None:
    monkeypatch.setattr(sample, "find_spec", lambda name: None)
    lines: list[str] = []
    document = sample.run(trained, [], 2, None, 2, lines.append)
    for name in sample.OTHERS:
        assert f"{name} is not installed, so the comparison does not include {name}" in lines
    assert document["settings"]["length"] == 16  # the context, which is shorter than 256
    (rounds,) = (side["rounds"] for side in document["comparisons"][0]["sides"].values())
    assert {one["characters"] for one in rounds} == {2 * 16}


def test_a_recurrent_network_is_sampled_beyond_its_context() -> None:
    settings = ["-s", "model.family=lstm", "-s", "model.n_embd=8", "-s", "model.context=16"]
    (comparison,) = found("sample", *settings, "--length", 20, "--rounds", 1)["comparisons"]
    ((name, side),) = comparison["sides"].items()
    assert (name, side["rounds"][0]["characters"]) == ("minigpt", 20)


def test_transformers_samples_as_many_characters_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        measure, facts = sample.build_transformers(untrained(), 16, 2, print)
        assert measure()["characters"] == 2 * 16  # up to the end of the context
    assert "GPT-2" in facts["about"]
    assert capfd.readouterr() == ("", "")


def test_llama_cpp_samples_an_export_with_the_same_greedy_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr(sample, "SampleConfig", partial(SampleConfig, temperature=0.0))
    checkpoint = made(family="classic")
    length = checkpoint.config.model.context
    ours, theirs = (one(checkpoint, length, 1, print)[0]() for one in (sample.build_minigpt, sample.build_llama))
    assert (theirs["characters"], theirs["crc32"]) == (length, ours["crc32"])


def test_llama_cpp_has_no_row_for_several_samples() -> None:
    with pytest.raises(UserError, match="one sample at a time"):
        sample.build_llama(untrained(), 16, 2, print)


def test_encoding_gives_the_same_tokens_on_both_sides(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\ufeff" + MIXED, encoding="utf-8", newline="")
    document = found("data", text, "--rounds", 2)
    check(document, "megabytes_per_second", 2)
    rounds = [one for side in document["comparisons"][0]["sides"].values() for one in side["rounds"]]
    lines = MIXED.replace("\r\n", "\n").replace("\r", "\n")
    assert {one["tokens"] for one in rounds} == {len(lines)}
    assert {one["crc32"] for one in rounds} == {rounds[0]["crc32"]}
    assert document["comparisons"][0]["bytes"] == len(lines.encode())


def test_each_generated_text_has_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "GENERATED", [(name, 1, letters) for name, _, letters in data.GENERATED])
    done = bench("data", "--rounds", 1)
    assert done.exit_code == 0, done.exception
    tables = done.stdout.split("\n\n")
    for table, name in zip(tables, ("ASCII", "mixed UTF-8"), strict=False):
        head, ours, plain, ratio, *about = table.splitlines()
        assert head.startswith(f"{name}, 1.0 MB")
        assert ours.split()[0] == "minigpt"
        assert plain.startswith("plain Python ")
        assert "x as fast as plain Python (" in ratio
        assert len(about) == 2
    assert "torch" in tables[2]
    assert done.stderr.count("round 1 of 1") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "--seconds", "nan"], "rounds of nan seconds: expected 0 to 3600"),
        (["train", "-c", "shakespear"], "no preset or file"),
        (["train", "nowhere.txt"], "nowhere.txt"),
        (["train", "-s", "model.n_layr=1"], "did you mean model.n_layer"),
        (["sample", "--length", "300"], "a length of 300 exceeds the context of 256"),
        (["sample", "-s", "train.steps=3"], "train.steps has no effect on this benchmark"),
        (["sample", "-s", "model.n_head=5"], "must be divisible"),
        (["data", "nowhere.txt"], "nowhere.txt"),
        (["data", "empty.txt"], "empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_impossible_measurement_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    done = bench(*arguments)
    assert isinstance(done.exception, UserError)
    assert says in str(done.exception)
    assert "\n" not in str(done.exception)
