"""The scripts of scripts/lab as modules."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

LAB = Path(__file__).resolve().parents[2] / "scripts/lab"
sys.path.insert(0, str(LAB))


def script(name: str) -> Any:
    """Import a script, whose name has no `.py`."""
    loader = SourceFileLoader(f"lab_{name}", str(LAB / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    sys.modules[loader.name] = module = module_from_spec(spec)
    loader.exec_module(module)
    return module
