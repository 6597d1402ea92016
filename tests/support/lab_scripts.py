"""Scripts as modules."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

LAB = Path(__file__).resolve().parents[2] / "scripts/lab"


def script(name: str, folder: Path = LAB) -> Any:
    """Import a script, whose name has no `.py`."""
    loader = SourceFileLoader(f"{folder.name}_{name}", str(folder / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    sys.modules[loader.name] = module = module_from_spec(spec)
    loader.exec_module(module)
    return module
