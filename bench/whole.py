"""`make bench`: one measurement after the other, and one table of what is to be reached.

Each program prints its own figures and its own header; those that have figures to reach hand them
on, and all of them stand in one table at the end. What needs the grown database is not among them:
`make bench-data` builds it once, `make bench-growth` compares claims and heartbeats on it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import aims

TIMED = ("lifecycles", "routes", "heartbeats")
"""These take `--seconds`."""
OTHERS = ("claim", "push", "pushes", "logs", "callbacks", "placement", "start")


def main() -> int:
    """Run them; the number of those that failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, help="of each measurement of lives, routes, beats")
    seconds = parser.parse_args().seconds
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "aims"
        path.touch()
        for name in TIMED + OTHERS:
            options = ["--seconds", str(seconds)] if seconds and name in TIMED else []
            print(f"\n=== {name}: make bench-{name}", flush=True)
            command = [sys.executable, "-m", f"bench.{name}", *options]
            environment = os.environ | {aims.VARIABLE: str(path)}
            if subprocess.run(command, env=environment, check=False).returncode:  # noqa: S603
                failed.append(name)
        print("\n=== all of it")
        aims.show(aims.noted(path))
    for name in failed:
        print(f"  bench-{name} failed; what it said is above")
    print("  claims and heartbeats beside millions of rows: make bench-growth")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
