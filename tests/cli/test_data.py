"""`minigpt data`."""

from pathlib import Path

import pytest
from command_line import Cli

from minigpt.config.presets import fit
from minigpt.config.schema import DataConfig
from minigpt.paths import cache_folder
from minigpt.text.dataset import load_dataset
from minigpt.text.download import downloads
from minigpt.text.sources import BUILTINS


def test_list_prints_every_named_text(cli: Cli) -> None:
    names = [line.split()[0] for line in cli("data", "list").out.splitlines()[1:]]
    assert names == [*(f"builtin:{name}" for name in BUILTINS), *(f"download:{name}" for name in downloads())]


def test_get_prints_the_path_and_the_license(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.text.download.download", lambda name: Path(f"{name}.zip"))
    done = cli("data", "get", "download:text8")
    assert (done.code, done.out) == (0, "text8.zip\n")
    assert downloads()["text8"].license in done.err


def test_info_prints_rare_characters_and_fitted_settings(cli: Cli) -> None:
    text = b"ab" * 50 + b"z"
    shown = cli("data", "info", "-", stdin=text).out
    assert "'z'" in next(line for line in shown.splitlines() if line.startswith("rare "))
    fitted = fit(101, gpu=False)[1]
    assert all(f"{key.split('.')[1]} {value}" in shown for key, value in fitted.items())
    assert cli("data", "info", "-", "--json", stdin=text).json["fitted"] == fitted


@pytest.mark.parametrize("text", ["a", "one\ntwo\n", "春眠不覺曉", "👩‍🚀 e\u0301"])
def test_info_counts_every_character(cli: Cli, text: str) -> None:
    facts = cli("data", "info", "-", "--json", stdin=text.encode()).json
    assert facts["characters"] == len(text)
    assert facts["counts"] == {char: text.count(char) for char in text}
    assert cli("data", "info", "-", stdin=text.encode()).code == 0


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_info_reads_the_text_and_its_cached_tokens(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Training trusts the times of files. A failing disk can change a file but not its times."""
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("minigpt.text.dataset.CLOCK_NS", -1_000_000_000)
    monkeypatch.setattr("minigpt.text.dataset.file_state", lambda file: (0, 0, 0, 0, 0))
    text = tmp_path / "my.txt"
    text.write_text("aabb", encoding="utf-8")
    load_dataset(DataConfig(source=(str(text),), tokenizer=kind))
    (tokens,) = (cache_folder() / "tokens").iterdir()
    assert "removed" not in cli("data", "info", str(text)).err
    tokens.write_bytes(b"\1" + tokens.read_bytes()[1:])
    shown = cli("data", "info", str(text))
    assert (shown.code, shown.err) == (0, "removed 1 damaged file from the cache; training encodes the text again\n")
    assert not tokens.exists()
    text.write_text("abab", encoding="utf-8")
    assert cli("data", "info", str(text), "--json").json["counts"] == {"a": 2, "b": 2}
    assert load_dataset(DataConfig(source=(str(text),))).train.tolist() == [0, 1], "info corrects the record"


def test_info_reads_the_copy_of_the_stories(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("minigpt.text.cache.file_state", lambda file: (0, 0, 0, 0, 0))
    before = cli("data", "info", "builtin:stories:500")
    assert (before.code, before.err) == (0, "")
    with open(cache_folder() / "stories/500-1.txt", "r+b") as file:
        file.write(b"#")
    after = cli("data", "info", "builtin:stories:500")
    assert after.out == before.out
    assert after.err == "the copy of builtin:stories:500 in the cache was damaged; wrote it again\n"
