"""The regression check of the presets' final losses in scripts/lab/expected."""

from pathlib import Path

import pytest
import yaml
from lab_scripts import LAB, script

from minigpt.config.presets import read_preset
from minigpt.config.resolve import parse_overrides, resolve

pytestmark = pytest.mark.nightly

expected = script("expected")
MEASURED = yaml.safe_load((LAB / "expected.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MEASURED)
def test_losses_are_known_for_the_settings_and_text_of_a_preset_only(name: str) -> None:
    layers, text = read_preset(name), MEASURED[name]["text"]
    assert expected.settings_digest(resolve(*layers).config) == MEASURED[name]["settings"], "measure the preset again"
    known = expected.expectation(resolve(*layers).config, text)
    low, high = known.range
    assert (known.preset, list(known.losses)) == (name, MEASURED[name]["losses"])
    assert low < min(known.losses) <= max(known.losses) < high
    for same in ("train.seed=7", "data.source=other-name.txt", "sample.preview=0", "runtime.threads=1"):
        assert expected.expectation(resolve(*layers, parse_overrides([same])).config, text) == known
    for other in ("train.steps=77", "model.n_head=1", "optim.lr=0.5", "data.val_fraction=0.3"):
        assert expected.expectation(resolve(*layers, parse_overrides([other])).config, text) is None
    assert expected.expectation(resolve(*layers).config, text[::-1]) is None


def test_the_range_is_the_prediction_interval_of_student() -> None:
    """The numbers were computed by hand for 99 %."""
    five = (1.0, 2.0, 3.0, 4.0, 5.0)
    assert expected.Expectation("few", five).range == pytest.approx((3 - 7.9743, 3 + 7.9743), abs=1e-3)
    assert expected.Expectation("many", five * 6).range == pytest.approx((3 - 4.0293, 3 + 4.0293), abs=1e-3)


def test_a_run_is_compared_with_the_losses_of_its_settings(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not expected.check(finished_run)
    assert "no losses were measured" in capsys.readouterr().out
    for spread, is_inside in ((9.0, True), (0.001, False)):
        losses = expected.Expectation(
            "tiny", (0.0, 1.0, 2.0, 3.0, 3.0 + spread) if is_inside else (0.0,) * 4 + (spread,)
        )
        monkeypatch.setattr(expected, "expectation", lambda *_, found=losses: found)
        assert expected.check(finished_run) is is_inside
