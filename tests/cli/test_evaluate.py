"""`minigpt eval`."""

import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import VERSE, Cli

from minigpt.paths import cache_folder
from minigpt.text.corpus import Part
from minigpt.training.evaluate import EvalResult

pytestmark = pytest.mark.usefixtures("at_home")


@pytest.mark.parametrize("run", ["verse-1", "cjk"])
def test_eval_repeats_the_best_loss_of_training_to_the_last_digit(cli: Cli, run: str) -> None:
    found = cli("eval", run, "--json").json
    metadata = json.loads((Path(found["checkpoint"]) / "metadata.json").read_text(encoding="utf-8"))
    assert found["loss"] == metadata["state"]["validation_loss"] == metadata["state"]["best_loss"]
    assert found["perplexity"] == math.exp(found["loss"])
    assert cli("eval", run, "--json").json == found


def test_json_has_no_infinity_and_text_names_the_unit(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    result = EvalResult(loss=701.0, bits_per_character=1011.3, perplexity=math.inf, characters=5)
    monkeypatch.setattr("minigpt.training.evaluate.evaluate", lambda *_, **__: result)
    found = cli("eval", "--json").json
    assert (found["loss"], found["perplexity"]) == (701.0, None)
    assert "701.0000 nats per character\n" in cli("eval").out
    assert "701.0000 nats per byte\n" in cli("eval", "cjk").out


def test_bits_per_character_count_characters_and_not_bytes(cli: Cli) -> None:
    text = "春眠不覺曉" * 4  # three bytes per character
    found = cli("eval", "cjk", "--file", "-", "--json", stdin=text.encode()).json
    tokens = 3 * len(text) - 1
    assert found["characters"] == len(text) - 1
    assert found["bits_per_character"] == pytest.approx(found["loss"] * tokens / math.log(2) / found["characters"])


def test_the_training_text_of_a_run_gives_the_loss_of_its_validation_split(cli: Cli, tmp_path: Path) -> None:
    """Otherwise, the model would have been trained on 90% of the evaluated text."""
    copy = tmp_path / "another name.txt"
    copy.write_text(VERSE, encoding="utf-8")
    found, own = cli("eval", "verse-1", "--file", copy, "--json"), cli("eval", "verse-1", "--json").json
    assert {key: value for key, value in found.json.items() if key != "text"} == {
        key: value for key, value in own.items() if key != "text"
    }
    assert "the text that the run was trained on" in found.err
    shutil.rmtree(cache_folder() / "tokens")
    assert cli("eval", "verse-1", "--file", "-", "--json", stdin=VERSE.encode()).json["loss"] == own["loss"]
    copy.write_text(VERSE[:-1], encoding="utf-8")
    assert cli("eval", "verse-1", "--file", copy, "--json").json["characters"] == len(VERSE) - 2


def test_simple_methods_are_compared_on_the_validation_split_only(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cli("eval", "verse-1", "--json").json
    losses = [method["loss"] for method in found["simple"]]
    assert losses[0] == math.log(26)
    assert len(losses) == 5
    shown = cli("eval", "verse-1").out
    rows = shown[shown.index("method ") :].splitlines()[1:]
    assert [float(row.split()[-1]) for row in rows] == sorted(
        (round(loss, 4) for loss in [*losses, found["loss"]]), reverse=True
    )
    (tmp_path / "other.txt").write_text("summer winds ", encoding="utf-8")
    assert "method" not in cli("eval", "verse-1", "--file", tmp_path / "other.txt").out
    monkeypatch.setattr("minigpt.interpret.simple.MOST_TOKENS", 10)
    assert cli("eval", "verse-1", "--json").json["simple"] == []


@pytest.mark.parametrize(("unknown", "characters"), [("skip", 5), ("replace", 7)])
def test_unknown_characters_are_skipped_or_replaced_on_request(
    cli: Cli, tmp_path: Path, unknown: str, characters: int
) -> None:
    text = tmp_path / "strange.txt"
    text.write_text("the☃☃ see", encoding="utf-8")
    error = cli("eval", "verse-1", "--file", text).error
    assert "'☃'" in error
    assert "--unknown skip" in error
    found = cli("eval", "verse-1", "--file", text, "--unknown", unknown, "--json").json
    assert found["characters"] == characters + 1
    assert {"skip": "skipped", "replace": "replaced"}[unknown] in found["text"]


def test_stride_changes_the_windows_but_not_the_characters(cli: Cli) -> None:
    whole, sliding = cli("eval", "--json").json, cli("eval", "--stride", 4, "--json").json
    assert "stride 4" in sliding["protocol"]
    assert sliding["characters"] == whole["characters"]
    assert sliding["loss"] != whole["loss"]
    assert cli("eval", "--stride", 16, "--json").json == whole
    assert "16" in cli("eval", "--stride", 17).error


def test_by_position_adds_a_table_and_changes_nothing_else(cli: Cli) -> None:
    plain, found = cli("eval", "--json").json, cli("eval", "--by-position", "--json").json
    losses = [position["loss"] for position in found["by_position"]]
    assert found | {"by_position": []} == plain
    assert len(losses) == 16
    *_, last, summary = cli("eval", "--by-position").out.splitlines()
    assert last.split() == ["9-16", f"{sum(losses[8:]) / 8:.4f}"]
    assert re.fullmatch(
        r"the loss (falls by 0\.\d{4} from position 1 to 9-16, 90% of that .*|does not fall .*)", summary
    )
    assert "stride of 16" in cli("eval", "--by-position", "--stride", 4).error
    assert "shorter than one window of 16" in cli("eval", "--file", "-", "--by-position", stdin=b"the sun").error


def test_eval_of_another_text_opens_no_file_that_the_checkpoint_names(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint may come from a stranger."""
    chunks, opened = Part.chunks, set[str]()

    def noted(self: Part, *size: int) -> Iterator[bytes]:
        opened.add(self.path.name)
        return chunks(self, *size)

    monkeypatch.setattr(Part, "chunks", noted)
    (tmp_path / "mine.txt").write_text("summer winds", encoding="utf-8")
    assert cli("eval", "--file", tmp_path / "mine.txt").code == 0
    assert opened == {"mine.txt"}


def test_a_copied_checkpoint_needs_the_text_of_its_run(
    cli: Cli, at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (at_home / "runs/verse-1/checkpoints/step-00000004").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert cli("eval", ".").code == 0, "the text is cached"
    monkeypatch.setenv("MINIGPT_CACHE", "empty")
    assert "verse.txt" in cli("eval", ".").error
