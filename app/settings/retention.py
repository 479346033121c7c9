"""Settings of what is kept, and for how long."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from app.settings.groups import Group


class RetentionSettings(Group):
    """How long things are kept. What is changed here counts for what is made from then on."""

    short_days: int = Field(7, ge=1, description="Artifacts of class short.")
    normal_days: int = Field(90, ge=1, description="Artifacts of class normal.")
    long_days: int = Field(400, ge=1, description="Artifacts of class long.")
    log_class: Literal["short", "normal", "long"] = Field(
        "normal", description="Class of the objects that hold logs."
    )
    heartbeats_days: int = Field(30, ge=2, description="Heartbeats, removed by whole days.")
    events_days: int | None = Field(
        None, ge=60, description="Timelines, removed by whole months; unset: they stay."
    )
    runner_days: int = Field(30, ge=1, description="Rows of runners that nobody heard of since.")
    session_days: int = Field(30, ge=1, description="Sessions of runners after their end.")
    orphan_hours: int = Field(
        24, ge=24, description="Age from which an object that nothing points at may be removed."
    )

    @property
    def class_days(self) -> dict[str, int]:
        """Days by class; what is not in it stays for good."""
        return {"short": self.short_days, "normal": self.normal_days, "long": self.long_days}

    @model_validator(mode="after")
    def _classes_in_order(self) -> Self:
        if not self.short_days <= self.normal_days <= self.long_days:
            raise ValueError("short_days, normal_days and long_days must not descend in this order")
        return self
