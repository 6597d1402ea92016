"""Device, precision, threads and compilation: what is chosen, what a resumed run keeps, and what happens without it."""

import os
import subprocess
import sys
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command_line import environment
from small_runs import make_config, make_data, same, tensors

from minigpt.config.schema import RuntimeConfig
from minigpt.errors import UserError
from minigpt.model import device as runtime
from minigpt.model.device import Runtime, choose, pick_device, sampling_threads
from minigpt.model.memory import peak_memory
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.metadata import Environment
from minigpt.training.compilation import compile_loss
from minigpt.training.loop import train

ON_CPU: dict[str, Any] = {"device": "cpu", "dtype": "float32", "compile": False, "threads": 1}

pytestmark = pytest.mark.usefixtures("quick_and_clean")


def config(**changes: Any) -> RuntimeConfig:
    return RuntimeConfig.model_validate({"device": "cpu", **changes})


# --- choosing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("compile", [True, False])
def test_what_is_said_is_done(dtype: str, threads: int, compile: bool) -> None:
    chosen = choose(config(dtype=dtype, threads=threads, compile=compile))
    assert chosen == Runtime("cpu", dtype, compile, threads, "cpu")
    assert torch.get_num_threads() == threads
    assert torch.are_deterministic_algorithms_enabled() is compile
    with chosen.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == getattr(torch, dtype)
    where, how = f"cpu ({threads} thread{'s' if threads > 1 else ''})", "compiled" if compile else "not compiled"
    assert chosen.describe() == f"{where}, {dtype}, cpu kernels, {how}"


def test_what_is_left_open_fits_this_machine() -> None:
    torch.set_num_threads(2)
    chosen = choose(config())
    assert chosen.threads == 2
    assert chosen.dtype == ("bfloat16" if runtime.has_fast_bfloat16("cpu") else "float32")
    assert chosen.compile is False, "nothing is to be computed, so nothing can be saved"
    assert choose(RuntimeConfig()).device == runtime.best_device()


@pytest.mark.parametrize(
    ("has_it", "single", "half", "expected"),
    [(True, 2.0, 0.5, "bfloat16"), (True, 0.5, 1.0, "float32"), (False, 2.0, 0.5, "float32")],
)
def test_bfloat16_is_chosen_where_it_is_in_hardware_and_faster(
    has_it: bool, single: float, half: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Intel processor without AMX has the instructions, and takes twice as long with them."""
    seconds = {torch.float32: single, torch.bfloat16: half}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_it}, raising=False)
    monkeypatch.setattr(runtime, "_product_seconds", seconds.__getitem__)
    monkeypatch.setattr(runtime, "has_fast_bfloat16", runtime.has_fast_bfloat16.__wrapped__)
    assert choose(config()).dtype == expected


def test_what_is_timed_is_the_same_on_a_busy_machine() -> None:
    """A seed must give the same run whatever else is computed: the two precisions keep their distance and order.

    A processor without the instructions is not asked, and would take longer for a product than it is left alone.
    """
    other_precision = torch.bfloat16 if runtime.has_bfloat16_instructions() else torch.float64

    def ratio() -> float:
        return runtime._product_seconds(other_precision) / runtime._product_seconds(torch.float32)

    idle = ratio()
    with ExitStack() as others:
        for _ in range(2 * (os.cpu_count() or 1)):
            other = others.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            others.callback(other.kill)
        busy = [ratio() for _ in range(5)]
    assert all(idle / 1.6 < found < 1.6 * idle for found in busy)


def test_compilation_is_chosen_only_where_it_saves_more_than_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "measure_matmul", lambda _: 3e9)  # so that 1e9 FLOP take a second of training
    monkeypatch.setattr(runtime, "_has_compiler", lambda kind: True)
    limit = runtime.COMPILE_SECONDS["cpu"] / runtime.COMPILE_SAVES
    for seconds, expected in ((1.0, False), (0.9 * limit, False), (1.1 * limit, True)):
        assert choose(config(), run_flops=seconds * 1e9).compile is expected
        assert choose(config(), run_seconds=seconds).compile is expected
    monkeypatch.setattr(runtime, "_has_compiler", lambda kind: False)
    assert choose(config(), run_seconds=10 * limit).compile is False


def test_a_compiler_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert not runtime._has_compiler("cpu")


def test_a_resumed_run_keeps_its_choices_but_for_those_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another precision, or sums split among another number of threads, would not be the same run."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    saved = Environment(device="cpu", dtype="bfloat16", compile=True, threads=3)
    assert choose(RuntimeConfig(), saved) == Runtime("cpu", "bfloat16", True, 3)
    assert choose(config(), saved, run_flops=1.0) == Runtime("cpu", "bfloat16", True, 3)
    assert choose(config(dtype="float32"), saved) == Runtime("cpu", "float32", True, 3)
    assert choose(config(compile=False), saved) == Runtime("cpu", "bfloat16", False, 3)
    assert choose(config(threads=1), saved) == Runtime("cpu", "bfloat16", True, 1)
    assert choose(config(), choose(config(), saved).facts()) == choose(config(), saved)


def test_the_threads_of_a_much_larger_machine_are_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Environment(device="cpu", dtype="bfloat16", compile=False, threads=64)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert choose(config(), saved).threads == 2


def test_a_resumed_run_stays_on_its_device_and_a_new_one_takes_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_devices", lambda: ["cuda:0", "cpu"])
    saved = Environment(device="cpu", dtype="float32", compile=False, threads=1)
    gone = saved.model_copy(update={"device": "mps"})
    assert (pick_device("auto"), pick_device("auto", saved), pick_device("auto", gone)) == ("cuda:0", "cpu", "cuda:0")
    assert pick_device("mps", saved) == "mps"


def test_nothing_is_measured_where_there_is_no_run_to_compile_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `minigpt sample`, which starts sooner for it."""
    monkeypatch.setattr(runtime, "_has_compiler", lambda kind: True)
    monkeypatch.setattr(runtime, "measure_matmul", lambda runtime: pytest.fail("measured"))
    assert choose(config()).compile is False


@pytest.mark.parametrize(("parameters", "streams", "threads"), [(10**6, 1, 1), (10**7, 1, "auto"), (10**6, 2, "auto")])
def test_one_stream_of_a_small_model_is_drawn_by_one_thread(parameters: int, streams: int, threads: int | str) -> None:
    assert sampling_threads(parameters, streams) == threads


def test_a_run_from_a_device_that_is_not_here_chooses_anew() -> None:
    saved = Environment(device="cuda:7", dtype="bfloat16", compile=True, threads=1)
    chosen = choose(RuntimeConfig(), saved)
    assert chosen.device == runtime.best_device() != "cuda:7"
    assert chosen.compile is False


@pytest.mark.parametrize("device", ["cuda:99", "mps", "cuda"])
def test_a_device_that_is_not_here_is_one_line(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError) as error:
        choose(RuntimeConfig(device=device), Environment(**ON_CPU))
    assert str(error.value) == f"runtime.device {device} is not available here; torch finds: cpu"


def test_a_resume_goes_on_as_chosen_at_first_unless_told_otherwise(tmp_path: Path) -> None:
    auto = {"runtime__dtype": "auto", "runtime__threads": "auto", "runtime__device": "auto"}
    train(make_config(train__steps=2, runtime__dtype="bfloat16", runtime__threads=1), tmp_path, make_data())
    torch.set_num_threads(2)
    path = tmp_path / "checkpoints/step-00000002"
    kept = train(make_config(train__steps=4, **auto), tmp_path, make_data(), resume=path).runtime
    assert kept == Runtime("cpu", "bfloat16", False, 1, "cpu")
    assert torch.get_num_threads() == 1
    path = tmp_path / "checkpoints/step-00000004"
    anew = train(
        make_config(train__steps=6, **auto | {"runtime__dtype": "float32"}), tmp_path, make_data(), resume=path
    )
    assert anew.runtime.dtype == "float32"
    assert load_checkpoint(anew.checkpoint).metadata.runtime == anew.runtime.facts()


# --- compilation that fails --------------------------------------------------------------------------


def fails(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no such instruction: bf16cvt\nand forty lines of generated code")


def broken_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile with a backend that raises, as the real one does where the compiler is broken."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda loss: real(loss, backend=fails))


def test_a_failed_compilation_is_one_warning_and_the_plain_function(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_compile(monkeypatch)
    weight = torch.ones(2, requires_grad=True)
    said: list[str] = []

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x * weight - y) ** 2).sum()

    found, compiled = compile_loss(loss, (torch.ones(2), torch.ones(2)), said.append)
    assert (found, compiled) == (loss, False)
    (warning,) = said
    assert warning.startswith("compilation failed, going on without (")
    assert "no such instruction" in warning
    assert "\n" not in warning


def test_training_goes_on_without_it_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the run is not called compiled in its checkpoint, so a resume does not become another run elsewhere."""
    for name in ("plain", "failed"):
        (tmp_path / name).mkdir()
    train(make_config(model__dropout=0.1), tmp_path / "plain", make_data())
    capsys.readouterr()
    broken_compile(monkeypatch)
    outcome = train(make_config(model__dropout=0.1, runtime__compile=True), tmp_path / "failed", make_data())
    assert capsys.readouterr().err.count("compilation failed, going on without") == 1
    assert same(tensors(tmp_path / "plain", 12), tensors(tmp_path / "failed", 12))
    assert outcome.runtime.compile is False
    assert load_checkpoint(outcome.checkpoint).metadata.runtime.compile is False


@pytest.mark.parametrize(("wanted", "keeps"), [("auto", False), (True, True)])
def test_compilation_that_does_not_pay_is_left_out_unless_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wanted: Any, keeps: bool
) -> None:
    """It once made a step of 10.7 M parameters 1.3 times as long, on a processor with fast products."""

    def slower(loss: Any) -> Any:
        def compiled(x: torch.Tensor, y: torch.Tensor) -> Any:
            time.sleep(0.05)
            return loss(x, y)

        return compiled

    for name in ("plain", "tried"):
        (tmp_path / name).mkdir()
    train(make_config(runtime__compile=False), tmp_path / "plain", make_data())
    monkeypatch.setattr(torch, "compile", slower)
    monkeypatch.setattr(runtime, "_compilation_pays", lambda *_: True)
    outcome = train(make_config(runtime__compile=wanted), tmp_path / "tried", make_data())
    assert outcome.runtime.compile is torch.are_deterministic_algorithms_enabled() is keeps
    assert ("times as long here; going on without" in capsys.readouterr().err) is not keeps
    assert same(tensors(tmp_path / "plain", 12), tensors(tmp_path / "tried", 12))


def test_running_out_of_memory_is_no_failed_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda loss: exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        compile_loss(exhausted, (torch.ones(2), torch.ones(2)), print)


# --- memory and speed --------------------------------------------------------------------------------


def test_memory_and_speed_are_measured_here() -> None:
    here = Runtime(**ON_CPU)
    used = runtime.memory_bytes(here)
    assert used is None or 10_000_000 < used < 1 << 44
    assert used == pytest.approx(peak_memory(), rel=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert 1e8 < runtime.measure_matmul(here) < 1e14


@pytest.mark.skipif(sys.platform == "win32", reason="this system does not say")
def test_the_most_memory_is_what_was_taken_and_given_back() -> None:
    """64 MiB more, and for good. In a process of its own: this one may have had more before."""
    program = (
        "from minigpt.memory import peak_memory; peaks = [peak_memory()]\n"
        "held = b'.' * (1 << 26); peaks.append(peak_memory())\n"
        "del held; print(*peaks, peak_memory())"
    )
    done = subprocess.check_output([sys.executable, "-c", program], env=environment())
    before, holding, after = (int(peak) for peak in done.split())
    assert before > 1_000_000
    for peak in (holding, after):
        assert peak - before == pytest.approx(1 << 26, rel=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_matrix_speed_is_that_of_the_fastest_product(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """By a clock that stands still but for products. The first also sets up; the last begins within 0.1 s."""
    now, work = 0.0, 0
    seconds = iter([1e-3, 0.03, 0.02, 0.04, 0.05, 1e-3])

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        nonlocal now, work
        assert a.dtype is b.dtype is getattr(torch, dtype)
        now, work = now + next(seconds), 2 * a.size(0) * a.size(1) * b.size(1)
        return a

    monkeypatch.setattr(torch.Tensor, "__matmul__", product)
    monkeypatch.setattr(runtime, "time", SimpleNamespace(perf_counter=lambda: now))
    speed = runtime.measure_matmul(Runtime(**{**ON_CPU, "dtype": dtype}))
    assert speed == pytest.approx(work / 0.02)
    assert next(seconds) == 1e-3


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").is_file(), reason="this system does not say")
def test_the_time_waited_for_a_core_is_that_which_another_process_had() -> None:
    """Two processes on one core: each waits about half of the time."""
    busy = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    waiting = (
        f"{busy}import time; from minigpt.runtime import seconds_waited; "
        "before, end = seconds_waited(), time.perf_counter() + 1\n"
        "while time.perf_counter() < end: pass\n"
        "print(seconds_waited() - before)"
    )
    with subprocess.Popen([sys.executable, "-c", f"{busy}\nwhile True: pass"]) as other:
        try:
            waited = float(subprocess.check_output([sys.executable, "-c", waiting]))
        finally:
            other.kill()
    assert 0.2 < waited < 5
