"""What the repository promises: what is shipped, what is pinned, who imports whom, what is never called."""

import ast
import graphlib
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "minigpt"
SOURCES = sorted(PACKAGE.rglob("*.py"))
SET_UP = [ROOT / "scripts" / name for name in ("environment.py", "quickstart", "test")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# ---- scripts ----


@pytest.mark.skipif(os.name == "nt", reason="Windows has no executable bit")
def test_scripts_with_a_shebang_are_executable() -> None:
    started = [file for file in (ROOT / "scripts").iterdir() if file.is_file() and file.read_bytes()[:2] == b"#!"]
    assert {"quickstart", "test"} <= {file.name for file in started}
    assert [file.name for file in [*started, ROOT / ".ci/run"] if not os.access(file, os.X_OK)] == []


@pytest.mark.parametrize("script", SET_UP, ids=lambda path: path.name)
def test_set_up_needs_nothing_but_a_python_and_an_old_one_reads_as_far_as_its_refusal(script: Path) -> None:
    tree = ast.parse(script.read_text(encoding="utf-8"), feature_version=(3, 7))
    imported = {name.split(".")[0] for name, _ in imports(tree, [])}
    assert imported <= {*sys.stdlib_module_names, "environment"}


# ---- pins ----


def pins() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


def pinned_here() -> dict[str, str]:
    """Version by name, for the Python and system that run this."""
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in pins()
        if pin.marker is None or pin.marker.evaluate()
    }


def declared() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(line) for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]]


def test_constraints_are_exact_versions_for_every_system() -> None:
    for pin in pins():
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), f"{pin} is not an exact public version"
        assert pin.url is None
        assert not pin.name.startswith(("nvidia", "cuda", "triton")), f"{pin.name} exists on Linux only"
    assert pinned_here()["torch"] == "2.13.0"


def test_every_dependency_is_pinned_within_its_range() -> None:
    by_name = {canonicalize_name(pin.name) for pin in pins()}
    here = pinned_here()
    for requirement in declared():
        name = canonicalize_name(requirement.name)
        assert name in by_name, f"constraints.txt has no line for {name}"
        if requirement.marker is None or requirement.marker.evaluate():
            assert requirement.specifier.contains(here[name]), f"{requirement} excludes the pinned {here[name]}"


def test_what_the_dependencies_need_is_pinned_too() -> None:
    here = pinned_here()
    to_visit = [requirement for requirement in declared() if not requirement.marker or requirement.marker.evaluate()]
    seen = set()
    while to_visit:
        requirement = to_visit.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or name.startswith(("nvidia", "cuda", "triton")):  # torch brings its own, by system
            continue
        seen.add(name)
        assert name in here, f"constraints.txt has no line for {name}"
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for extra in requirement.extras or {""}:
            to_visit += [r for r in map(Requirement, needed) if not r.marker or r.marker.evaluate({"extra": extra})]
    assert len(seen) > len(declared())


# ---- the wheel ----


def test_wheel_holds_the_package_its_presets_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    presets = {f"minigpt/shipped/configs/{preset.name}" for preset in (ROOT / "configs").glob("*.yaml")}
    assert "minigpt/shipped/configs/quickstart.yaml" in presets
    here = [file for file in PACKAGE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    data = {"minigpt/shipped/data/registry.yaml"}
    about = f"minigpt-{PROJECT['version']}.dist-info/"
    of_the_wheel = {name for name in names if name.startswith(about)}
    assert names - of_the_wheel == {file.relative_to(ROOT).as_posix() for file in here} | presets | data
    assert f"{about}licenses/LICENSE" in of_the_wheel


# ---- who imports whom ----

LAYERS = [
    {  # without torch
        *("errors", "seeds", "shipped", "plain_yaml", "config", "presets"),
        *("tokenizer", "draft", "corpus", "download", "files", "memory", "meta", "runs", "terminal"),
    },
    {"kernels"},
    {"runtime", "data", "model", "metrics", "verify", "room"},
    {"decode"},
    {"optim", "sample", "evaluate", "checkpoint", "parallel"},
    {"train", "start"},
    {"inside", "interop", "serve"},
    {"bench"},
    {"cli"},
    {"__main__"},
]
LAYER = {unit: number for number, units in enumerate(LAYERS) for unit in units}
IMPORTS_TORCH = {"torch", "transformers", "tensorboard", "safetensors.torch"}


def imports(tree: ast.AST, package: list[str]) -> Iterator[tuple[str, bool]]:
    """Each imported name in full, for a file of `package`, and whether importing the file imports it."""
    later = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING"))
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        at_import = id(node) not in later
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((f"{prefix}.{alias.name}", at_import) for alias in node.names)


def forbidden_edge(importer: str, imported: str, at_import: bool) -> str | None:
    """Why a file of the unit `importer` may not import the full name `imported`; None if it may."""
    if LAYER[importer] == 0 and any(f"{imported}.".startswith(f"{name}.") for name in IMPORTS_TORCH):
        return "layer 0 is without torch"
    top, _, rest = imported.partition(".")
    if top != "minigpt" or rest == "__version__":
        return None
    unit = rest.split(".")[0]
    if unit not in LAYER:
        return "names of the package itself go round the layers: import the module"
    if unit == importer or LAYER[importer] == LAYER[unit] == 0:
        return None
    if importer == "cli" and at_import and LAYER[unit] > 0:
        return "cli imports what may need torch inside its functions"
    if LAYER[unit] >= LAYER[importer]:
        return f"{unit} is no lower layer"
    if unit in LAYERS[LAYER["inside"]] and importer != "cli":
        return f"only cli imports {unit}"
    if unit == "train" and importer in LAYERS[LAYER["inside"]]:
        return f"{importer} serves what was trained, and does not train"
    return None


def unit_of(file: Path) -> str:
    """The module or sub-package of minigpt that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def minigpt_imports() -> Iterator[tuple[Path, str, bool]]:
    for file in SOURCES:
        package = list(file.relative_to(ROOT).parent.parts)
        tree = ast.parse(file.read_text(encoding="utf-8"))
        yield from ((file, name, at_import) for name, at_import in imports(tree, package))


def test_every_module_has_a_layer() -> None:
    assert {unit_of(file) for file in SOURCES} - {"__init__"} <= LAYER.keys()


def test_no_forbidden_import() -> None:
    found = []
    for file, imported, at_import in minigpt_imports():
        if unit_of(file) == "__init__" or unit_of(file) not in LAYER:
            continue
        reason = forbidden_edge(unit_of(file), imported, at_import)
        if reason:
            found.append(f"{file.relative_to(ROOT)} imports {imported}: {reason}")
    assert found == []


def test_layer_0_has_no_circle() -> None:
    graph: dict[str, set[str]] = {unit: set() for unit in LAYERS[0]}
    for file, imported, _ in minigpt_imports():
        importer, parts = unit_of(file), imported.split(".")
        if importer in graph and parts[0] == "minigpt" and parts[1:2] != [importer]:
            graph[importer] |= {*parts[1:2]} & LAYERS[0]
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("importer", "source", "allowed"),
    [
        ("corpus", "from minigpt.errors import UserError", True),
        ("data", "from .corpus import read", True),
        ("data", "import torch", True),
        ("runs", "from minigpt import __version__", True),
        ("cli", "def f():\n    from minigpt import train", True),
        ("cli", "if TYPE_CHECKING:\n    from minigpt.model import GPT", True),
        ("serve", "from minigpt.serve.page import HTML", True),
        ("bench", "from minigpt.train import Training", True),
        ("corpus", "import torch.nn", False),
        ("corpus", "def f():\n    from safetensors.torch import load_file", False),
        ("seeds", "from .data import batch_at", False),
        ("data", "from minigpt.model import GPT", False),
        ("sample", "from . import checkpoint", False),
        ("train", "from minigpt import inside", False),
        ("model", "def f():\n    import minigpt.train", False),
        ("serve", "from minigpt.train import train", False),
        ("serve", "from minigpt.inside import page", False),
        ("optim", "from minigpt import GPT", False),
        ("optim", "import minigpt", False),
        ("train", "from minigpt.bench import sides", False),
        ("cli", "from minigpt.train import train", False),
        ("__main__", "from minigpt import serve", False),
    ],
)
def test_the_layers_are_judged_as_meant(importer: str, source: str, allowed: bool) -> None:
    verdicts = [forbidden_edge(importer, name, top) for name, top in imports(ast.parse(source), ["minigpt"])]
    assert verdicts
    assert (verdicts == [None] * len(verdicts)) is allowed


@pytest.mark.parametrize("modules", [["minigpt"], sorted(f"minigpt.{unit}" for unit in LAYERS[0] | {"cli"})])
def test_torch_is_not_loaded_before_it_is_needed(modules: list[str]) -> None:
    code = f"import sys, {', '.join(modules)}; sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- what is never called ----

CODE_IN_DATA = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def unsafe(tree: ast.AST, importer: bool = False) -> Iterator[str]:
    """What could run code found in data; an `importer` of foreign files may use torch.load's safe mode."""
    for name, _ in imports(tree, ["minigpt"]):
        if name.split(".")[0] in CODE_IN_DATA or name in ("torch.load", "torch.save"):
            yield f"import of {name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
        safe_load = importer and called == "torch.load" and keywords.get("weights_only") == "True"
        if called in ("eval", "exec", "torch.load", "torch.save") and not safe_load:
            yield f"call of {called}"
        if keywords.get("allow_pickle", "False") != "False":
            yield f"allow_pickle in a call of {called}"


def test_nothing_runs_code_found_in_data() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {what}"
        for file in SOURCES
        for what in unsafe(ast.parse(file.read_text(encoding="utf-8")), importer=unit_of(file) == "interop")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "importer", "safe"),
    [
        ("model.eval()", False, True),
        ("import pickled", False, True),
        ("torch.load(path, weights_only=True)", True, True),
        ("torch.load(path, weights_only=True)", False, False),
        ("torch.load(path)", True, False),
        ("torch.load(path, weights_only=False)", True, False),
        ("from torch import load", True, False),
        ("torch.save(model, path)", False, False),
        ("eval('1')", False, False),
        ("def f():\n    exec(text)", False, False),
        ("from pickle import loads", False, False),
        ("import pickle as p", True, False),
        ("numpy.load(path, allow_pickle=True)", False, False),
    ],
)
def test_unsafe_calls_are_judged_as_meant(source: str, importer: bool, safe: bool) -> None:
    assert (list(unsafe(ast.parse(source), importer)) == []) is safe
