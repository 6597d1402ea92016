"""What an installation contains, and which versions it is tested with."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from minigpt import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "minigpt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
def test_scripts_are_executable() -> None:
    files = [file for file in (ROOT / "scripts").rglob("*") if file.is_file()]
    scripts = [file for file in [*files, ROOT / ".ci/run"] if file.read_bytes()[:2] == b"#!"]
    assert len(scripts) > 3
    assert [file.name for file in scripts if not os.access(file, os.X_OK)] == []


@pytest.mark.parametrize("script", ["environment.py", "quickstart", "test"])
def test_an_old_python_can_parse_the_setup_scripts(script: str) -> None:
    """The scripts tell users of an old Python to use a newer one, so it must get that far."""
    ast.parse((ROOT / "scripts" / script).read_text(encoding="utf-8"), feature_version=(3, 7))


def test_the_citation_names_the_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__


# --- constraints.txt ---------------------------------------------------------------------------------


def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


def constrained_versions() -> dict[str, str]:
    """Version by name, for the Python and system that run this test."""
    return {
        canonicalize_name(line.name): str(line.specifier).removeprefix("==")
        for line in constraints()
        if line.marker is None or line.marker.evaluate()
    }


def declared_requirements() -> list[Requirement]:
    """The requirements of minigpt, its documentation and its tests, for this Python and system."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in ("docs", "test") for line in extras[extra])]
    requirements = [Requirement(line) for line in lines]
    return [line for line in requirements if line.marker is None or line.marker.evaluate()]


def is_of_one_system(name: str) -> bool:
    """Return whether torch installs this package on some systems only."""
    return name.startswith(("nvidia", "cuda", "triton"))


def test_constraints_are_exact_versions_for_every_system() -> None:
    for line in constraints():
        (specifier,) = line.specifier
        assert (specifier.operator, "*" in specifier.version, line.url) == ("==", False, None), line
        assert not is_of_one_system(line.name)


def test_constraints_are_within_the_declared_ranges() -> None:
    versions = constrained_versions()
    for line in declared_requirements():
        assert line.specifier.contains(versions[canonicalize_name(line.name)]), line


def test_pre_commit_uses_the_constrained_ruff() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert {*re.findall(r"ruff==([\d.]+)", hooks)} == {constrained_versions()["ruff"]}


def test_constraints_include_indirect_dependencies() -> None:
    versions, found, queue = constrained_versions(), set[str](), declared_requirements()
    while queue:
        line = queue.pop()
        name = canonicalize_name(line.name)
        if name in found or is_of_one_system(name):
            continue
        found.add(name)
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for extra in line.extras or {""}:
            queue += [r for r in map(Requirement, required) if not r.marker or r.marker.evaluate({"extra": extra})]
    assert found - versions.keys() == set()


# --- the wheel ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_contains_the_package_presets_and_registry_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    left_out = {"__pycache__", "web"}  # web: the sources of the scripts in viewer/page.js
    package = [file for file in PACKAGE.rglob("*") if file.is_file() and not left_out & set(file.parts)]
    resources = [*ROOT.glob("configs/*.yaml"), ROOT / "data/registry.yaml", *ROOT.glob("data/stories/*")]
    shipped = {f"minigpt/shipped/{path.relative_to(ROOT).as_posix()}" for path in resources}
    about = f"minigpt_lm-{__version__}.dist-info/"
    expected = {file.relative_to(ROOT).as_posix() for file in package} | shipped
    assert {name for name in names if not name.startswith(about)} == expected
    assert f"{about}licenses/LICENSE" in names


def test_an_installed_wheel_works_far_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """`minigpt import stories` reads a model that the wheel contains, and `minigpt config list` the presets."""
    venv.create(tmp_path / "venv", symlinks=os.name != "nt")
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    site = next((tmp_path / "venv").rglob("site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    others = next(path for path in sys.path if path.endswith("site-packages"))  # for the dependencies
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = f"import sys; sys.path.append({others!r}); import minigpt.cli.main as cli"
    code += "; assert cli.__file__.startswith(sys.prefix), cli.__file__; cli.main()"

    def printed(*words: str) -> str:
        command = [scripts / "python", "-c", code, *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "speedrun" in printed("config", "list")
    printed("import", "stories")
    assert "stories-1" in printed("runs")
