"""`make bench-start`: how long `make run` takes to be ready, on a cold and a warm data folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from time import perf_counter

from bench.parts import described_machine

ROUNDS = 3


def start(home: str) -> float:
    """Seconds from the start of the stack to its word that it is ready; then it is stopped."""
    began = perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "dev", "up"],
        env={**os.environ, "DEV_HOME": home},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    ready = 0.0
    shown = []
    for text in process.stdout:
        shown.append(text)
        if re.search(r"^Ready in", text):
            ready = perf_counter() - began
            process.send_signal(signal.SIGINT)
    process.wait()
    assert ready, "".join(shown)
    return ready


def main() -> None:
    """Print cold and warm starts side by side."""
    print(described_machine())
    cold, warm = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as home:
            cold.append(start(home))
            warm.append(start(home))
    for name, seconds in (("cold data folder", cold), ("warm data folder", warm)):
        print(f"  {name:<18} ready in {', '.join(f'{one:.1f}' for one in seconds)} s")


if __name__ == "__main__":
    main()
