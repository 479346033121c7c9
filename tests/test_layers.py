"""Imports point downwards only, and the rule that says so bites."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [linter, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path) -> Path:
    """The package and its rules, where they may be broken."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__", "static")
    shutil.copytree(ROOT / "app", tmp_path / "app", ignore=ignored)
    return tmp_path


def test_imports_point_downwards():
    linted = _lint(ROOT)

    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("store/attempts.py", "from app.commands import attempts as upwards"),
        ("domain/errors.py", "from app import settings as upwards"),
        ("api/control.py", "from app.loops import tick as sideways"),
        ("nowhere.py", "from app.domain import errors as unlisted"),
    ],
)
def test_an_import_that_points_elsewhere_is_found(copy, module, line):
    with (copy / "app" / module).open("a") as file:
        file.write(f"\n{line}\n")

    linted = _lint(copy)

    assert linted.returncode == 1
    assert module.removesuffix(".py").replace("/", ".") in linted.stdout.replace("app.", "")
