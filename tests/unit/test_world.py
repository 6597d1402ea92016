"""How minigpt starts other processes."""

import subprocess
from pathlib import Path

from minigpt.course.check import python_command


def test_another_process_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("platform", "runpy"):
        (tmp_path / f"{name}.py").write_text("print('from the current folder')")
    result = subprocess.run([*python_command("platform"), "--terse"], cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()
    assert "current folder" not in result.stdout
