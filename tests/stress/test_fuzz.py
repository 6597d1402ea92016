"""A short form of scripts/stress/fuzz, without its guidance: each target gets its real inputs and random changes."""

import importlib.machinery
import importlib.util
import random
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from forgery import STEPS

ROOT = Path(__file__).resolve().parents[2]


def load_script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("fuzz", str(ROOT / "scripts/stress/fuzz"))
    spec = importlib.util.spec_from_loader("fuzz", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


fuzz = load_script()


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_no_input_raises_anything_but_a_user_error(finished_run: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(finished_run / f"checkpoints/step-{STEPS[-1]:08d}", tmp_path / "checkpoint"))
    target, generator = fuzz.TARGETS[name](folder), random.Random(name)
    inputs = fuzz.seed_inputs(name, folder)
    for data in inputs[:25]:
        fuzz.check(target, data)
        for _ in range(20):
            at, changed = generator.randrange(len(data)), bytearray(data)
            changed[at : at + generator.randrange(3)] = generator.randbytes(generator.randrange(3))
            fuzz.check(target, bytes(changed))
    # The real input is valid, so the changes reach the code behind the first check.
    fuzz.TARGETS[name](folder)(inputs[0])
