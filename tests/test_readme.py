"""The README does what it says: its shell lines are run as they stand, against a real stack."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture
def stack(tmp_path):
    """`make run`, with its data elsewhere."""
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "dev", "up", "--home", tmp_path / "home", "--output=jsonl"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        facts = {"event": ""}
        while facts["event"] not in {"stack_ready", "failed"}:
            facts = json.loads(process.stdout.readline())
        assert facts["event"] == "stack_ready", facts
        yield tmp_path / "home"
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        process.wait(30)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder with the two programs that the README calls, whether `make` has made them or not."""
    programs = tmp_path / "checkout" / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, arguments in (("execution-plane", "-m app "), ("python", "")):
        program = programs / name
        line = f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -P {arguments}"$@"'
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    return tmp_path / "checkout"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's steps are curl's")
def test_each_step_by_hand_works_as_written(stack, checkout):
    [block] = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)

    done = subprocess.run(
        ["sh", "-eu"],
        cwd=checkout,
        env={**os.environ, "DEV_HOME": str(stack)},
        input=block,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "No runner of its kind is registered.",
        "ready",
        "continue",
        "continue",
        "19",
        "succeeded",
        "hello from by-hand",
        "succeeded",
    ]


def test_the_first_screen_fits_one():
    first = README.split("\n## ", 1)[0].rstrip().splitlines()

    assert len(first) <= 24
    assert {"make demo", "make test"} <= {line.split("  ")[0] for line in first}


def test_code_that_the_documentation_names_exists():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    names = {
        name
        for page in pages
        for name in re.findall(r"`((?:app|tests|alembic|docs|charts)/[\w./-]+)`", page.read_text())
    }

    assert names
    assert not [name for name in sorted(names) if not (ROOT / name).exists()]
