"""Ratios within one run, beside what they are to reach."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "BENCH_AIMS"
"""Names the file that figures are handed on by, where somebody collects them."""


@dataclass(frozen=True)
class Aim:
    """One figure, the bound it is to keep, and which side of it is good."""

    what: str
    value: float | None
    """None: not measured in this run."""
    bound: float
    at_least: bool = True

    def line(self) -> str:
        """One row of the table."""
        bound = f"{'at least' if self.at_least else 'at most'} {self.bound:g}"
        shown = "" if self.value is None else f"{self.value:.2f}"
        return f"  {self.what:<66}{shown:>8}{bound:>15}  {self.word}"

    @property
    def word(self) -> str:
        """Whether it is reached."""
        if self.value is None:
            return "not measured"
        met = self.value >= self.bound if self.at_least else self.value <= self.bound
        return "reached" if met else "MISSED"


def share(one: float, other: float | None) -> float | None:
    """One over the other, None where that was not measured."""
    return one / other if other else None


def show(found: Sequence[Aim]) -> None:
    """All of them."""
    print(f"\n  {'figures to reach, within this run':<66}{'here':>8}{'aim':>15}", flush=True)
    for aim in found:
        print(aim.line(), flush=True)


def tell(found: Sequence[Aim]) -> None:
    """Show them, and hand them on where somebody collects them."""
    show(found)
    if VARIABLE in os.environ:
        with Path(os.environ[VARIABLE]).open("a") as file:
            file.writelines(json.dumps(asdict(aim)) + "\n" for aim in found)


def noted(path: Path) -> list[Aim]:
    """What was handed on."""
    return [Aim(**json.loads(line)) for line in path.read_text().splitlines()]
