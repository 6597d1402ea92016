"""The experiment harness: same cost, same seeds, no look at the last tenth, no look at the future."""

import json
import math
import os
import subprocess
import sys
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from minigpt.config.resolve import flatten, resolve
from minigpt.config.schema import OptimConfig, RunConfig, TrainConfig
from minigpt.model.gpt import GPT
from minigpt.training.optim import Muon

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/lab"))
import tweaks  # noqa: E402


def script(name: str) -> Any:
    """Return a script of the experiments as a module."""
    loader = SourceFileLoader(f"experiments_{name}", str(ROOT / "scripts/lab" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    sys.modules[loader.name] = module = module_from_spec(spec)
    loader.exec_module(module)
    return module


harness, report = script("run"), script("report")
pytestmark = pytest.mark.alone
PLAIN = SimpleNamespace(autocast=nullcontext, torch_dtype=torch.float32)
"""What a run computes with, where no loop is there to choose."""
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
        "large": {"train": {"batch_size": 512}},
        "mixed": {"tweaks": {"bigrams": True}},
        "lower rate": {"optim": {"lr": 1e-4}},
    },
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    (folder / "batch.yaml").write_text(yaml.safe_dump(QUESTION))
    (folder / "text.txt").write_text("to be or not to be " * 100 + "ZZZZ" * 50)
    command = [sys.executable, str(ROOT / "scripts/lab/run"), "batch.yaml", "text.txt", "--out", "out"]
    done = subprocess.run([*command, "--seconds", "0.05"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    again = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert "has all of it" in again.stderr
    lines = (folder / "out/batch.jsonl").read_text().splitlines()
    return folder, [json.loads(line) for line in lines]


def test_every_variant_has_a_run_with_every_seed_and_says_how_it_was_made(
    found: tuple[Path, list[dict[str, Any]]],
) -> None:
    _, lines = found
    made = sorted((line["variant"], line["seed"]) for line in lines)
    assert made == [(name, seed) for name in ("baseline", "large", "lower rate", "mixed") for seed in (1, 2)]
    for line in lines:
        assert line["settings"]["train.seed"] == line["seed"]
        assert line["settings"]["train.steps"] == line["steps"] == line["curve"][-1][0]
        assert line["loss"] == line["curve"][-1][2]
        assert line["leak"] == 0
        assert line["torch"] == torch.__version__
        assert line["settings"].keys() == flatten(RunConfig()).keys() - {"data.source"}
        assert line["settings"]["runtime.threads"] == 1
        assert 0 < line["seconds"] < 60
        assert f"{os.cpu_count()} cores" in line["machine"]
        assert datetime.now(timezone.utc) - datetime.fromisoformat(line["date"]) < timedelta(hours=1)
        assert line["part"] == 0.9
    assert len({line["loss"] for line in lines}) == 8


def test_what_costs_more_gets_fewer_steps(found: tuple[Path, list[dict[str, Any]]]) -> None:
    steps = {line["variant"]: line["steps"] for line in found[1]}
    assert steps["baseline"] == 6
    assert steps["large"] < 6


def test_variants_that_differ_in_rates_share_one_timing(found: tuple[Path, list[dict[str, Any]]]) -> None:
    times = {line["variant"]: line["ms_per_step"] for line in found[1]}
    assert times["lower rate"] == times["baseline"]
    _, variants = harness.read(found[0] / "batch.yaml")
    work = {variant.name: harness.work(variant) for variant in variants}
    assert work["lower rate"] == work["baseline"]
    assert len(set(work.values())) == 3  # and none of the others shares it


@pytest.mark.parametrize("key", ["model.dropout", "train.ema"])
def test_a_step_costs_by_whether_there_is_dropout_or_an_average_and_not_by_how_much(key: str) -> None:
    without, zero, some, more = (harness.work(harness.Variant("", s)) for s in ({}, {key: 0}, {key: 0.5}, {key: 0.9}))
    assert without == zero != some == more


def test_what_earlier_runs_took_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for a variant of the same work. A new one is timed beside the baseline, now three times as fast."""
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
    asked = []

    def step_costs(timed: list[harness.Variant], *_: object) -> dict[str, float]:
        asked.append([variant.name for variant in timed])
        return {"baseline": 10.0, "new": 5.0}

    monkeypatch.setattr(harness, "step_costs", step_costs)
    earlier = {"baseline": (100, 30.0), "slow, decayed": (40, 75.0)}
    assert harness.lengths([base, decayed], variants, done, Path(), 0.0) == earlier
    assert asked == []
    assert harness.lengths([base, decayed, new], variants, done, Path(), 0.0) == earlier | {"new": (200, 15.0)}
    assert asked == [["baseline", "new"]]


def test_a_table_is_in_the_order_of_the_differences() -> None:
    """A variant that only the luckier seed was run of does not stand above the baseline for that."""
    line = {"parameters": 1, "steps": 1, "leak": 0.0}
    losses = {"baseline": (1.0, 2.0), "half": (1.1,), "better": (0.9, 1.9)}
    found = {name: {n: line | {"loss": x, "best": x} for n, x in enumerate(xs)} for name, xs in losses.items()}
    rows = report.table(found).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| better", "| baseline", "| half"]


def test_on_a_busy_machine_nothing_is_timed(found: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = found
    run = [sys.executable, str(ROOT / "scripts/lab/run"), "batch.yaml", "text.txt", "--out", "untimed"]
    subprocess.run([*run, "--steps-as-given", "--only", "large", "--seeds", "1"], cwd=folder, check=True)
    lines = [json.loads(line) for line in (folder / "untimed/batch.jsonl").read_text().splitlines()]
    assert {line["variant"]: line["steps"] for line in lines} == {"baseline": 6, "large": 6}
    report = [sys.executable, str(ROOT / "scripts/lab/report"), "--out", "untimed"]
    done = subprocess.run(report, cwd=folder, capture_output=True, text=True, check=True)
    best = {line["variant"]: line["best"] for line in lines}
    assert f"| {best['large']:.4f} | 1 | " in done.stdout


def test_a_run_that_fails_costs_no_other_its_result(found: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = found
    failing = {
        **QUESTION,
        "variants": {"failing": {"tweaks": {"no_such_tweak": True}}, "batch": {"train": {"batch_size": 2}}},
    }
    (folder / "failing.yaml").write_text(yaml.safe_dump(failing))
    run = [sys.executable, str(ROOT / "scripts/lab/run"), "failing.yaml", "text.txt", "--steps-as-given"]
    done = subprocess.run([*run, "--seeds", "1", "--out", "failing"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1
    assert "failing, seed 1 failed: KeyError('no_such_tweak')" in done.stderr
    assert done.stderr.endswith("1 of 3 runs failed\n")
    lines = [json.loads(line) for line in (folder / "failing/failing.jsonl").read_text().splitlines()]
    assert {line["variant"] for line in lines} == {"baseline", "batch"}


@pytest.mark.parametrize("change", ["settings", "tweaks", "name", "text", "steps", "timing"])
def test_results_of_other_conditions_are_not_gone_on_with(
    found: tuple[Path, list[dict[str, Any]]], tmp_path: Path, change: str
) -> None:
    folder, lines = found
    question: dict[str, Any] = json.loads(json.dumps(QUESTION))
    if change == "settings":
        question["variants"]["large"]["train"]["batch_size"] = 256
    if change == "tweaks":
        question["variants"]["mixed"]["tweaks"] = {"shift": True}
    if change == "steps":
        question["settings"] = {"train": {"steps": 7}}
    (tmp_path / "batch.yaml").write_text(yaml.safe_dump(question))
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))
    text = tmp_path / ("other.txt" if change == "name" else "text.txt")
    text.write_bytes((folder / "text.txt").read_bytes() + b"Z" * (change == "text"))
    before = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "batch.jsonl").write_text(before)
    run = [sys.executable, str(ROOT / "scripts/lab/run"), "batch.yaml", str(text), "--seeds", "3", "--out", "."]
    run += ["--steps-as-given"] * (change == "timing")
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "with other settings, tweaks, text or timing; move it away" in done.stderr
    assert (tmp_path / "batch.jsonl").read_text() == before


def test_results_of_other_code_are_told_of(found: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    folder, lines = found
    for name in ("batch.yaml", "base.yaml", "text.txt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    kept = [{**line, "commit": "0123456789", "uncommitted": True} for line in lines]
    (tmp_path / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    run = [sys.executable, str(ROOT / "scripts/lab/run"), "batch.yaml", "text.txt", "--out", "."]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    uncommitted, note, refusal = done.stderr.splitlines()
    assert uncommitted == "note: batch.jsonl has results of code that was not committed"
    assert note == "note: batch.jsonl has results of the code of 0123456789: which is not in this repository"
    assert "has all of it" in refusal


def test_what_is_misspelt_is_refused(found: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = found
    commands = [["run", "batch.yaml", "text.txt", "--only", "larg"], ["report", "bach"]]
    for script, *arguments in commands:
        command = [sys.executable, str(ROOT / "scripts/lab" / script), *arguments, "--out", "out"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert arguments[-1] in done.stderr.splitlines()[-1]


def test_the_report_compares_seed_by_seed(found: tuple[Path, list[dict[str, Any]]]) -> None:
    pytest.importorskip("matplotlib")
    folder, lines = found
    command = [sys.executable, str(ROOT / "scripts/lab/report"), "--out", "out"]
    (folder / "out/a-begun.jsonl").touch()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    (folder / "out/a-begun.jsonl").unlink()
    assert done.returncode == 0, done.stderr
    loss = {(line["variant"], line["seed"]): line["loss"] for line in lines}
    difference = sum(loss["large", seed] - loss["baseline", seed] for seed in (1, 2)) / 2
    (row,) = [row for row in done.stdout.splitlines() if row.startswith("| large")]
    assert f"| {difference:.4f} ±" in row
    assert (folder / "out/batch.png").stat().st_size > 10_000


def model() -> GPT:
    torch.manual_seed(0)
    return GPT(resolve(("test", {"model.n_layer": 2, "model.n_embd": 16, "model.zero_init": False})).config.model, 9)


def test_a_look_at_the_future_is_found() -> None:
    """By as little as the mean of all tokens, added to each."""

    class Peeking(torch.nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = super().forward(ids)
            return x + 1e-3 * x.mean(1, keepdim=True)

    honest = model()
    assert tweaks.leak(honest) == 0
    peeking = model()
    peeking.token_embedding = Peeking(9, 16)
    assert tweaks.leak(peeking) > 0


ARGUMENTS: dict[str, Any] = {
    "untied": True,
    "bigrams": True,
    "shift": {"before": ["norm1", "norm2"], "taps": 2},
    "dropout_kinds": {"embedding": 0.1},
    "sharpness": {"factor": 2.0},
    "rotary_base": 100.0,
    "values_of_the_first": True,
    "stream_of_the_start": True,
    "masks_over_time": True,
    "gated_heads": 12,
    "noise": 0.1,
    "further_ahead": 0.5,
    "random_windows": True,
    "short_first": [[0.5, 2]],
    "small_batches_first": [[0.5, 0.5]],
}


def test_every_tweak_is_asked_for_a_leak() -> None:
    assert ARGUMENTS.keys() == tweaks.TWEAKS.keys()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_no_tweak_leaks(name: str) -> None:
    changed = training_run(**{name: ARGUMENTS[name]}).model
    for parameter in changed.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # what begins at zero would hide a leak
    assert tweaks.leak(changed) == 0


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("sharpness", {"factor": 2.0}),
        ("sharpness", {"factor": 2.0, "learned": True}),
        ("rotary_base", 100.0),
        ("values_of_the_first", True),
        ("stream_of_the_start", True),
        ("gated_heads", 12),
    ],
)
def test_a_tweak_changes_the_model_and_does_not_leak(name: str, argument: Any) -> None:
    run = SimpleNamespace(model=model().train(), config=RunConfig(model=model().config), runtime=PLAIN)
    ids = torch.arange(8)[None] % 9
    before = run.model(ids)
    tweaks.TWEAKS[name](run, argument)
    for key, parameter in run.model.named_parameters():
        if key.endswith(("share", "gates")):
            torch.nn.init.constant_(parameter, 0.5)
    assert not torch.equal(run.model(ids), before)
    assert tweaks.leak(run.model) == 0


def test_one_mask_serves_all_positions_of_a_sequence() -> None:
    run = SimpleNamespace(model=model(), config=RunConfig(model=model().config), runtime=PLAIN)
    torch.manual_seed(0)
    tweaks.TWEAKS["masks_over_time"](run, True)
    for block in run.model.blocks:
        kernels = block.attention.kernels
        dropped = kernels.dropout(torch.ones(2, 5, 16), 0.5)
        assert set(dropped.unique().tolist()) == {0.0, 2.0}
        assert torch.equal(dropped, dropped[:, :1].expand(2, 5, 16)), "the same channels at all positions"
        assert not torch.equal(dropped[0], dropped[1]), "others in another sequence"
        nothing = torch.zeros(1, 1, 8, 8)  # queries and keys that attend to all alike
        attended = kernels.sdpa(nothing, nothing, torch.eye(8)[None, None], 0.5)[0, 0]
        last = attended[-1] > 0
        assert 0 < last.sum() < 8
        assert torch.equal(attended > 0, last.expand(8, 8).tril()), "a dropped key is dropped for all queries"


def muon_after(**wanted: Any) -> Muon:
    run = SimpleNamespace(model=model(), config=RunConfig(model=model().config), runtime=PLAIN)
    tweaks.apply(run, wanted)
    (rule,) = (rule for rule in run.optimizer.rules if isinstance(rule, Muon))
    return rule


def test_tweaks_of_muon_reach_the_optimizer_of_the_run() -> None:
    assert muon_after(size_decay=0.5).size_decay == 0.5
    updates = torch.randn(1, 2, 4)
    assert torch.equal(muon_after(plain_muon=True).equalize_columns(updates, []), updates)
    assert not torch.equal(muon_after(plain_muon=False).equalize_columns(updates, [torch.zeros(1, 4)]), updates)
    of_adamw = SimpleNamespace(model=model(), config=RunConfig(optim=OptimConfig(name="adamw")), runtime=PLAIN)
    with pytest.raises(ValueError, match="unpack"):
        tweaks.apply(of_adamw, {"size_decay": 0.5})


@pytest.mark.parametrize(("name", "of_all"), [("rows_of_square_matrices", False), ("rows_of_all_matrices", True)])
def test_other_vectors_can_be_made_alike(name: str, of_all: bool) -> None:
    """At the first step, where the average size is that of the step itself."""
    rule = muon_after(**{name: True})
    rule.weight_decay = 0.0
    before = [matrix.detach().clone() for matrix in rule.parameters]
    for matrix in rule.parameters:
        matrix.grad = torch.randn_like(matrix)
    rule.step(0.1)
    seen = set()
    for matrix, was in zip(rule.parameters, before, strict=True):
        moved = matrix.detach() - was
        standing, square = len(moved) > moved.size(1), len(moved) == moved.size(1)
        across = 1 if of_all or standing or square else 0
        sizes = moved.norm(dim=across)
        torch.testing.assert_close(sizes, sizes.mean().expand_as(sizes), atol=1e-5, rtol=1e-3)
        seen.add((standing, square))
    assert seen == {(True, False), (False, True), (False, False)}


def test_cautious_decay_spares_the_weights_that_the_update_makes_larger() -> None:
    plain, cautious = (muon_after(**wanted) for wanted in ({"plain_muon": False}, {"cautious_decay": True}))
    for rule in (plain, cautious):
        rule.weight_decay *= rule is cautious  # the plain one decays nothing
        torch.manual_seed(1)
        for matrix in rule.parameters:
            matrix.data = torch.randn_like(matrix)
            matrix.grad = torch.randn_like(matrix)
    before = [matrix.detach().clone() for matrix in plain.parameters]
    for rule in (plain, cautious):
        rule.step(0.1)
    for was, update_alone, both in zip(before, plain.parameters, cautious.parameters, strict=True):
        smaller = (update_alone - was) * was < 0
        assert 0 < smaller.sum() < smaller.numel()
        decayed = torch.where(smaller, update_alone - 0.1 * 0.1 * was, update_alone)
        torch.testing.assert_close(both.detach(), decayed.detach())


def test_other_polynomials_bring_singular_values_nearer_to_one() -> None:
    usual, other = (
        muon_after(**wanted) for wanted in ({"plain_muon": True}, {"plain_muon": True, "polar_express": True})
    )
    spread = []
    for rule in (usual, other):
        rule.weight_decay = 0.0
        torch.manual_seed(1)
        before = [matrix.detach().clone() for matrix in rule.parameters]
        for matrix in rule.parameters:
            matrix.grad = torch.randn_like(matrix)
        rule.step(1.0)
        moved = [m.detach() - was for m, was in zip(rule.parameters, before, strict=True)]
        spread.append(
            max((torch.linalg.svdvals(m / math.sqrt(max(1, m.size(0) / m.size(1)))) - 1).abs().max() for m in moved)
        )
    assert spread[1] < spread[0]


def training_run(**wanted: Any) -> Any:
    """What the tweaks of batches and of the loss look at of a run."""
    of = model()
    run = SimpleNamespace(
        model=of, config=RunConfig(model=of.config), state=SimpleNamespace(step=0), steps=10,
        data=SimpleNamespace(train=np.arange(1000, dtype=np.uint16)), step=lambda: None,
        runtime=PLAIN,
    )  # fmt: skip
    run.loss = run._loss = lambda x, y: F.cross_entropy(of(x).flatten(0, 1), y.flatten())
    tweaks.apply(run, wanted)
    return run


def test_the_character_after_the_next_counts_less_and_less() -> None:
    run = training_run(further_ahead=0.5)
    x = torch.randint(9, (2, 8))
    y = torch.randint(9, (2, 8))
    plain = F.cross_entropy(run.model(x).flatten(0, 1), y.flatten())
    losses = []
    for run.state.step in (0, 5, 10):
        losses.append((run.loss(x, y) - plain).item())
    with torch.no_grad():
        hidden = {}
        run.model.norm.register_forward_hook(lambda norm, given, out: hidden.update(h=out))
        run.model(x)
        later = F.cross_entropy((hidden["h"][:, :-1] @ run.model.ahead.T).flatten(0, 1), y[:, 1:].flatten()).item()
    assert losses == pytest.approx([0.5 * later, 0.25 * later, 0.0], abs=1e-5)
    assert any(parameter is run.model.ahead for rule in run.optimizer.rules for parameter in rule.parameters)


def test_the_workers_of_a_run_that_is_killed_end_with_it(tmp_path: Path) -> None:
    endless = {"question": "When does it end?", "base": "base.yaml", "settings": {"train": {"steps": 10**9}}}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))
    (tmp_path / "endless.yaml").write_text(yaml.safe_dump(endless | {"variants": {"short": {"train": {"steps": 1}}}}))
    (tmp_path / "text.txt").write_text("to be or not to be " * 100)
    command = [sys.executable, str(ROOT / "scripts/lab/run"), "endless.yaml", "text.txt", "--steps-as-given"]
    with subprocess.Popen(
        [*command, "--seeds", "1", "--out", "."], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        assert run.stderr.readline().startswith("short, seed 1: ")  # the other worker has begun as well
        run.kill()
        run.communicate(timeout=20)  # until nobody holds the pipe, which the workers inherited


def test_a_share_of_the_inputs_is_wrong_and_no_target() -> None:
    run = training_run()
    seen = []
    run.loss = run._loss = lambda x, y: seen.append((x, y))
    tweaks.apply(run, {"noise": 0.25})
    x, y = torch.arange(4000).view(4, 1000), torch.arange(4000).view(4, 1000)
    run.loss(x, y)
    ((inputs, targets),) = seen
    assert torch.equal(targets, y)
    assert run._loss is run.loss, "what would be compiled is what the tweak made"
    assert 0.2 < (inputs != x).float().mean() < 0.3


def test_windows_at_random_places_are_windows_of_the_text() -> None:
    run = training_run()
    seen = []
    run.loss = run._loss = lambda x, y: seen.append((x, y))
    tweaks.apply(run, {"random_windows": True})
    context = run.config.model.context
    given = torch.zeros(64, context, dtype=torch.long)
    run.loss(given, given)
    ((x, y),) = seen
    assert x.shape == y.shape == given.shape
    assert torch.equal(y, x + 1)  # the text counts from 0
    assert torch.equal(x, x[:, :1] + torch.arange(context))
    assert len(x[:, 0].unique()) > 50


def test_characters_that_are_left_out_of_a_batch_are_not_counted() -> None:
    run = training_run()
    seen: list[int] = []
    batch, context, run.state.tokens_seen = run.config.train.batch_size, run.config.model.context, 0
    run.loss = run._loss = lambda x, y: seen.append(x.size(0))

    def step() -> None:
        x = torch.zeros(batch, context)
        run._loss(x, x)
        run.state.step += 1
        run.state.tokens_seen += x.numel()

    run.step = step
    tweaks.apply(run, {"small_batches_first": [[0.3, 0.25], [0.5, 0.5]]})
    for _ in range(run.steps):
        run.step()
    assert seen == [batch // 4] * 3 + [batch // 2] * 2 + [batch] * 5
    assert run.state.tokens_seen == context * sum(seen)


@pytest.mark.parametrize("name", ["gated_heads", "values_of_the_first"])
def test_a_tweak_that_an_average_of_the_weights_would_miss_is_refused(name: str) -> None:
    run = SimpleNamespace(
        model=model(), config=RunConfig(model=model().config, train=TrainConfig(ema=0.5)), runtime=PLAIN
    )
    with pytest.raises(ValueError, match=f"{name} does not go with train.ema"):
        tweaks.TWEAKS[name](run, 12)
