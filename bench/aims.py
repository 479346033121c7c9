"""Ratios within one run, beside what they are to reach."""

from __future__ import annotations

from dataclasses import dataclass


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
        if self.value is None:
            return f"  {self.what:<66}{'':>7}{self._bound():>14}  not measured"
        met = self.value >= self.bound if self.at_least else self.value <= self.bound
        word = "reached" if met else "MISSED"
        return f"  {self.what:<66}{self.value:>7.2f}{self._bound():>14}  {word}"

    def _bound(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}"


def share(one: float, other: float | None) -> float | None:
    """One over the other, None where that was not measured."""
    return one / other if other else None


def show(aims: list[Aim]) -> None:
    """All of them."""
    print(f"\n  {'figures to reach, within this run':<66}{'here':>7}{'aim':>14}", flush=True)
    for aim in aims:
        print(aim.line())
