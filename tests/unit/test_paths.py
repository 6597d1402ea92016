"""The cache folder and the packaged files."""

import os
from pathlib import Path

import pytest

from minigpt.paths import cache_folder, resource_path


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for chosen, expected in (("here", tmp_path / "here"), ("~/there", Path.home() / "there")):
        monkeypatch.setenv("MINIGPT_CACHE", chosen)
        assert cache_folder() == expected


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX")
def test_the_cache_is_in_the_users_cache_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder().is_relative_to(tmp_path)
    assert cache_folder().name == "minigpt"
    assert not cache_folder().exists()


def test_packaged_files_are_found() -> None:
    assert resource_path("configs", "speedrun.yaml").is_file()
    assert resource_path("data", "registry.yaml").is_file()
