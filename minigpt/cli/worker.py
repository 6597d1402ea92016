"""A process that launch.py started: run the same command line, and receive signals from the launcher."""

import os
import signal
import threading

from minigpt.cli.main import main
from minigpt.training.signals import raise_in_main_thread, stop


def _follow() -> None:
    """Receive a signal from the launcher. If it ends, receive SIGTERM, or end at once after a signal."""
    received = os.read(0, 1)
    number = received[0] if received else signal.SIGTERM
    raise_in_main_thread(number)
    if received:
        os.read(0, 1)
        os._exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop)  # until main() handles it
    threading.Thread(target=_follow, daemon=True).start()
    main()
