"""Settings of callbacks."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from app.domain.addresses import Rules
from app.settings.groups import Group, TrustedUrl


def _networks(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        ip_network(text)
    return texts


class CallbackSettings(Group):
    """Callbacks: where they may go, and how patiently they are sent."""

    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Receivers (`.suffix`: all below it) that may have private addresses, any port "
        "and plain http://; metadata and link-local addresses stay refused.",
    )
    allowed_networks: Annotated[tuple[str, ...], AfterValidator(_networks)] = Field(
        (), description="CIDRs that receivers may be in beside public addresses, as JSON."
    )
    allowed_ports: tuple[int, ...] = Field(
        (443, 8443), description="Ports of receivers that are not allowed by name or network."
    )
    ca_file: Path | None = Field(
        None, description="CA bundle that receivers are trusted by, beside the public ones."
    )
    secrets: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Header values by name, for `settings://name`; whoever may change "
        "subscriptions may send each of them anywhere.",
    )
    secrets_folder: Path | None = Field(
        None, description="Folder of mounted files, one header value each, for `file://name`."
    )
    max_subscriptions: int = Field(100, ge=1, le=10_000, description="Then 422.")
    max_concurrency: int = Field(
        8, ge=1, le=256, description="Requests at once to one receiver, by one instance."
    )
    tries_before_parking: int = Field(
        3, ge=1, le=20, description="Refusals of one event, while others are accepted."
    )
    try_again_seconds: float = Field(
        0.3, gt=0, le=60, description="Pause before the second of these tries; then doubled."
    )
    max_parked: int = Field(
        1000, ge=1, le=100_000, description="Attempts parked at a subscription; then it pauses."
    )
    max_backoff_seconds: float = Field(
        7200.0, ge=1, le=86_400, description="Longest pause between tries of what was refused."
    )
    lease_seconds: float = Field(
        15.0, ge=3, le=600, description="How soon another instance takes over a subscription."
    )
    delivery_log_days: int = Field(7, ge=1, le=400, description="Life of the log of deliveries.")
    pubsub_endpoint: TrustedUrl = Field(
        "https://pubsub.googleapis.com", description="Pub/Sub's REST API."
    )
    pubsub_identity: Literal["google", "none"] = Field(
        "google", description="none: the embedded Pub/Sub, which asks nobody who they are."
    )

    @property
    def rules(self) -> Rules:
        """Where callbacks may go."""
        return Rules(
            tuple(ip_network(text) for text in self.allowed_networks),
            tuple(name.rstrip(".").lower() for name in self.allowed_hosts),
            frozenset(self.allowed_ports),
        )
