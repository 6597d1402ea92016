"""The recorded measurements against the length, their exponents, and the quantities that claims use."""

import json
from pathlib import Path

import pytest
import records

pytestmark = pytest.mark.nightly


def test_the_exponent_is_that_of_the_last_four_lengths(tmp_path: Path) -> None:
    points = [
        {"family": family, "length": n, "train_ms": (n if n > 32 else 99) ** power, "generate_ms": n}
        for n in (16, 32, 64, 128, 256, 512)
        for family, power in (("a", 1.5), ("b", 2.0))
    ]
    (tmp_path / "lengths.jsonl").write_text("\n".join(map(json.dumps, points)), encoding="utf-8")
    first, second = records.lengths(tmp_path / "lengths.jsonl")
    assert (first["variant"], second["variant"]) == ("a", "b")
    assert first["train_ms"][2:] == [n**1.5 for n in (64, 128, 256, 512)]
    exponents = [run[f"{name}_ms exponent"] for run in (first, second) for name in ("train", "generate")]
    assert exponents == pytest.approx([1.5, 1, 2, 1])


RUNS = [
    {"variant": variant, "seed": seed, "loss": loss, "best": loss - 1, "far": [4.0, loss, 3 * loss]}
    for variant, losses in {"baseline": [1.5, 2.5], "a - b": [2.0], "muon 0.3/4": [3.0, 5.0]}.items()
    for seed, loss in enumerate(losses)
]


@pytest.mark.parametrize(
    ("quantity", "values"),
    [
        ("baseline", [1.5, 2.5]),
        ("baseline/best", [0.5, 1.5]),
        ("muon 0.3/4", [3.0, 5.0]),
        ("muon 0.3/4/best", [2.0, 4.0]),
        ("a - b", [2.0]),
        ("muon 0.3/4 - baseline", [1.5, 2.5]),
        ("baseline - muon 0.3/4/best", [-0.5, -1.5]),
        ("baseline/far[1:1]", [4.0, 4.0]),
        ("baseline/far[2:3]", [3.0, 5.0]),
        ("muon 0.3/4/far[2:3] / baseline/far[1:1]", [1.5, 2.5]),
        ("baseline/far[2:2] - baseline/best", [1.0, 1.0]),
    ],
)
def test_a_quantity_has_one_value_for_each_seed(quantity: str, values: list[float]) -> None:
    assert records.measure(quantity, RUNS) == values


def test_a_difference_pairs_the_seeds_that_both_have() -> None:
    runs = [*RUNS, {"variant": "half", "seed": 1, "loss": 2.0}]
    assert records.measure("half - baseline", runs) == [-0.5]


@pytest.mark.parametrize("quantity", ["nothing", "nothing - baseline", "baseline/nothing", "baseline/nothing[1:2]"])
def test_a_quantity_that_no_run_has_is_an_error(quantity: str) -> None:
    with pytest.raises(KeyError, match="nothing"):
        records.measure(quantity, RUNS)
