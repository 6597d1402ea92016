"""Experiments: equal cost, equal seeds, comparable results, and no use of the unseen part of the text."""

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command_line import HANG
from lab_scripts import LAB, script

from minigpt.config.resolve import flatten
from minigpt.config.schema import RunConfig

pytestmark = pytest.mark.nightly

harness = script("run")
BASE = {
    "settings": {
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "context": 16},
        "train": {"batch_size": 4, "steps": 6},
        "runtime": {"device": "cpu", "dtype": "float32"},
    }
}
QUESTION = {
    "question": "Does a larger batch help?",
    "base": "base.yaml",
    "seeds": 2,
    "evaluations": 2,
    "variants": {
        "large": {"train": {"batch_size": 2048}},
        "bigrams": {"patches": {"bigram_embeddings": True}},
        "taught": {"patches": {"teacher": {"steps": 2, "weight": 0.5}}},
        "lower rate": {"optim": {"lr": 1e-4}},
    },
}
Lines = list[dict[str, Any]]


def lab(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    name, *rest = arguments
    command = [sys.executable, str(LAB / name), *rest]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def read_lines(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lines]:
    """A folder with a question, a text and results."""
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    (folder / "batch.yaml").write_text(yaml.safe_dump(QUESTION))
    (folder / "text.txt").write_text("to be or not to be " * 100 + "ZZZZ" * 50)
    done = lab(folder, "run", "batch.yaml", "text.txt", "--out", "out/runs.jsonl", "--seconds", "0.05")
    assert done.returncode == 0, done.stderr
    return folder, read_lines(folder / "out/runs.jsonl")


def test_each_variant_has_a_complete_line_for_each_seed(results: tuple[Path, Lines]) -> None:
    folder, lines = results
    found = sorted((line["variant"], line["seed"]) for line in lines)
    names = ("baseline", "bigrams", "large", "lower rate", "taught")
    assert found == [(name, seed) for name in names for seed in (1, 2)]
    for line in lines:
        assert line["question"] == "batch"
        assert line["settings"].keys() == flatten(RunConfig()).keys() - {"data.source"}
        assert line["settings"]["train.seed"] == line["seed"]
        assert line["settings"]["train.steps"] == line["steps"] == line["curve"][-1][0]
        assert line["settings"]["runtime.threads"] == 1
        assert line["loss"] == line["curve"][-1][2]
        assert line["leak"] == 0
        assert line["torch"] == torch.__version__
        assert line["part"] == 0.9
        assert 0 < line["seconds"] < 60
        assert f"{os.cpu_count()} cores" in line["machine"]
        assert datetime.now(timezone.utc) - datetime.fromisoformat(line["date"]) < timedelta(hours=1)
    assert len({line["loss"] for line in lines}) == 10
    assert "batch is complete" in lab(folder, "run", "batch.yaml", "text.txt", "--out", "out/runs.jsonl").stderr


def test_costly_variants_have_fewer_steps_and_equal_work_shares_a_timing(results: tuple[Path, Lines]) -> None:
    folder, lines = results
    steps, times = ({line["variant"]: line[key] for line in lines} for key in ("steps", "ms_per_step"))
    assert steps["large"] < steps["baseline"] == 6
    assert times["lower rate"] == times["baseline"]
    _, variants = harness.read(folder / "batch.yaml")
    work = {variant.name: harness.work(variant) for variant in variants}
    assert work["lower rate"] == work["baseline"]
    assert len(set(work.values())) == 4


def test_the_work_depends_on_whether_dropout_is_used() -> None:
    settings: list[dict[str, Any]] = [{}, *({"model.dropout": probability} for probability in (0, 0.5, 0.9))]
    unset, zero, some, more = (harness.work(harness.Variant("", each)) for each in settings)
    assert unset == zero != some == more


def test_earlier_timings_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new variant is timed against the baseline, on a machine that is three times as fast now."""
    base, _, decayed, new = variants = [
        harness.Variant("baseline", {"train.steps": 100}),
        harness.Variant("slow", {"train.steps": 100, "model.n_layer": 8}),
        harness.Variant("slow, decayed", {"train.steps": 100, "model.n_layer": 8, "optim.weight_decay": 0.5}),
        harness.Variant("new", {"train.steps": 100, "model.n_layer": 2}),
    ]
    done = [
        {"variant": "baseline", "steps": 100, "ms_per_step": 30.0},
        {"variant": "slow", "steps": 40, "ms_per_step": 75.0},
    ]
    timed_names = []

    def step_costs(timed: list[harness.Variant], *_: object) -> dict[str, float]:
        timed_names.append([variant.name for variant in timed])
        return {"baseline": 10.0, "new": 5.0}

    monkeypatch.setattr(harness, "step_costs", step_costs)
    earlier = {"baseline": (100, 30.0), "slow, decayed": (40, 75.0)}
    assert harness.lengths([base, decayed], variants, done, Path(), 0.0) == earlier
    assert timed_names == []
    assert harness.lengths([base, decayed, new], variants, done, Path(), 0.0) == earlier | {"new": (200, 15.0)}
    assert timed_names == [["baseline", "new"]]


def test_a_failed_run_does_not_affect_the_others(results: tuple[Path, Lines]) -> None:
    """Two questions share a file of results. Variant "large" of one does not count for the other."""
    folder, lines = results
    variants = {"failing": {"patches": {"unknown": True}}, "large": {"train": {"batch_size": 2}}}
    (folder / "failing.yaml").write_text(yaml.safe_dump({**QUESTION, "variants": variants}))
    (folder / "both.jsonl").write_text((folder / "out/runs.jsonl").read_text())
    done = lab(folder, "run", "failing.yaml", "text.txt", "--steps-as-given", "--seeds", "1", "--out", "both.jsonl")
    assert done.returncode == 1
    assert "failing, seed 1 failed: KeyError('unknown')" in done.stderr
    assert done.stderr.endswith("1 of 3 runs failed\n")
    every = read_lines(folder / "both.jsonl")
    assert every[: len(lines)] == lines
    assert {line["variant"]: line["steps"] for line in every[len(lines) :]} == {"baseline": 6, "large": 6}


@pytest.mark.parametrize("change", ["settings", "patches", "name", "text", "steps", "timing", "nothing"])
def test_incomparable_results_are_refused(results: tuple[Path, Lines], tmp_path: Path, change: str) -> None:
    _, lines = results
    question: dict[str, Any] = json.loads(json.dumps(QUESTION))
    if change == "settings":
        question["variants"]["large"]["train"]["batch_size"] = 256
    if change == "patches":
        question["variants"]["bigrams"]["patches"] = {"untied_embeddings": True}
    if change == "steps":
        question["settings"] = {"train": {"steps": 7}}
    (tmp_path / "batch.yaml").write_text(yaml.safe_dump(question))
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))
    _, variants = harness.read(tmp_path / "batch.yaml")
    about = {key: lines[0][key] for key in ("text", "text_sha256", "part")}
    about |= {"text": "other.txt"} if change == "name" else {"text_sha256": "0"} if change == "text" else {}

    def check() -> None:
        for line in lines:
            harness.refuse_incomparable(line, variants, about, change != "timing", Path("runs.jsonl"))

    if change == "nothing":
        check()
    else:
        with pytest.raises(SystemExit, match="with different settings, patches, text or timing"):
            check()


def test_results_of_other_code_are_reported(results: tuple[Path, Lines], capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{**line, "commit": "0123456789", "uncommitted": True} for line in results[1]]
    harness.report_other_code(lines, "batch")
    assert capsys.readouterr().err.splitlines() == [
        "note: batch has results from uncommitted code",
        "note: batch has results from commit 0123456789: not in this repository",
    ]


def test_workers_end_if_their_parent_is_killed(tmp_path: Path) -> None:
    endless = {"question": "When does it end?", "base": "base.yaml", "settings": {"train": {"steps": 10**9}}}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))
    (tmp_path / "endless.yaml").write_text(yaml.safe_dump(endless | {"variants": {"short": {"train": {"steps": 1}}}}))
    (tmp_path / "text.txt").write_text("to be or not to be " * 100)
    command = [sys.executable, str(LAB / "run"), "endless.yaml", "text.txt", "--steps-as-given"]
    with subprocess.Popen(
        [*command, "--seeds", "1", "--out", "runs.jsonl"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},  # a killed process removes no temporary files
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stderr is not None
        assert run.stderr.readline().startswith("short, seed 1: ")  # so the other worker has started as well
        run.kill()
        run.communicate(timeout=HANG)  # returns when no worker holds the inherited pipe


def test_an_unknown_variant_is_refused(results: tuple[Path, Lines]) -> None:
    done = lab(results[0], "run", "batch.yaml", "text.txt", "--only", "larg", "--out", "out/runs.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert "larg" in done.stderr.splitlines()[-1]


def test_attention_outside_the_line_ignores_the_first_character() -> None:
    characters = list("ab\nc\nd")  # the lines start at 0, 3 and 5
    weights = torch.zeros(2, 6, 6)
    weights[:, :3, 0] = 1
    weights[0, 3:, 0], weights[0, 3:, 1] = 0.5, 0.5
    weights[1, 3], weights[1, 4] = torch.tensor([0.2, 0.2, 0, 0.6, 0, 0]), torch.tensor([0, 0, 0, 0.5, 0.5, 0])
    weights[1, 5] = torch.tensor([0, 0, 0, 0.5, 0, 0.5])
    measures = harness.without_first(weights, characters)
    assert measures["outside_line"].tolist() == pytest.approx([1, (0.25 + 0 + 0.5) / 3])
    assert measures["distance_without_first"][0].item() == pytest.approx((2 + 3 + 4) / 3)
