"""The settings of the leader, its sweeps and schedules."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from app.settings.groups import Group, TrustedUrl


class SchedulerSettings(Group):
    """The election of the leader, its sweeps, and what schedules may do."""

    MARGIN: ClassVar[float] = 0.2
    """Part of the expiry that a leader does not use, for clocks that differ in rate."""

    leader_ttl_seconds: float = Field(
        10.0, ge=1, le=300, description="A leader that is not heard of so long is replaced."
    )
    label: str = Field(
        "", max_length=100, description="Shown with the leader: a region or a zone, for people."
    )
    handlers: tuple[str, ...] = Field(
        ("attempt.create", "attempt.cancel"), description="Handlers that schedules may call."
    )
    late_after_seconds: float = Field(
        60.0, ge=1, description="A due time older than this is a misfire."
    )
    history_days: int = Field(90, ge=1, description="How long fires of schedules are kept.")
    topic: str | None = Field(
        None,
        pattern=r"^projects/[^/]+/topics/[^/]+$",
        description="Pub/Sub topic for what schedules send; unset: handled by this service.",
    )
    pubsub_url: TrustedUrl = Field(
        "https://pubsub.googleapis.com", description="Where Pub/Sub's REST API is."
    )
    pubsub_credentials: Literal["google", "none"] = Field(
        "google", description="google: the service's own identity; none: a local Pub/Sub."
    )
    publish_timeout_seconds: float = Field(10.0, gt=0, description="Longest single publication.")

    @property
    def renew_seconds(self) -> float:
        """How often a leader renews."""
        return self.leader_ttl_seconds * 0.25

    @property
    def poll_seconds(self) -> float:
        """How often the others look whether there is a leader."""
        return min(0.5, self.leader_ttl_seconds / 10)
