"""`make demo` as a person runs it, without a terminal."""

import re
import subprocess
import sys
from pathlib import Path

from app.embedded.demo_scenes import DEMONSTRATIONS

ROOT = Path(__file__).parents[2]


def demo(*args):
    return subprocess.run(
        [sys.executable, "-m", "app", "dev", "demo", *map(str, args)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_demo_starts_a_stack_shows_the_job_and_leaves_nothing_behind(tmp_path):
    shown = demo("--home", tmp_path / ".dev")

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "stdout | step 4 of 4" in shown.stdout
    assert "stderr | warning: *** expires soon" in shown.stdout
    assert "ghp_" not in shown.stdout
    assert shown.stdout.count("the same in script, API and bucket") == 1
    assert shown.stdout.count("in API and bucket alike, with ***") == 1
    assert re.search(r"ended +succeeded, exit code 0 +8\.\d s", shown.stdout)
    assert not (tmp_path / ".dev" / "stack.json").exists()
    long = [line for line in shown.stdout.splitlines() if len(line) > 80]
    assert not [line for line in long if str(tmp_path) not in line]


def test_demonstrations_have_names():
    assert re.findall(r"^\w+", demo("list").stdout, re.MULTILINE) == list(DEMONSTRATIONS)


def test_demonstration_that_does_not_exist_is_refused_with_those_that_do():
    refused = demo("losst")

    assert refused.returncode == 2
    assert "job, lost, cancel, stuck" in refused.stderr
