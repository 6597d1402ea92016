"""`minigpt train --processes N`: start this command in several processes, with the launcher of torchrun."""

import logging
import os
import sys
from uuid import uuid4

from minigpt.cli.output import notice


def launch(processes: int) -> int:
    """Run this process's command line in `processes` processes. Return the exit code of the first that fails."""
    import torch
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from minigpt.model.device import available_cores

    cores = available_cores()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    os.environ["PYTHONSAFEPATH"] = "1"  # do not import from the current folder, as `minigpt` does not either
    if processes > cores and not torch.cuda.is_available():
        notice(f"{processes} processes on {cores} core{'s' * (cores > 1)} take turns: fewer would be faster")
    logging.disable(logging.ERROR)  # the workers say what happens
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        run_id=uuid4().hex, max_restarts=0,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "minigpt", *sys.argv[1:])
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        return next((code if code > 0 else 128 - code for code in codes), 1)
    except SignalException as error:
        return 128 + error.sigval
    return 0
