"""Which runner can take which attempt: kind, capability, zone and required labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID, uuid5

from app.domain.keys import canonical

_NAMESPACE = UUID("6f0b51a6-6b0a-5a0e-9d3b-5a1c7a52c1f4")


@dataclass(frozen=True, slots=True)
class Demands:
    """What one placement class demands of a runner."""

    runner_kind: str
    job_type: str
    zone: str | None
    labels: Mapping[str, str]

    @property
    def class_id(self) -> UUID:
        """The id of this set of demands: a function of its content, so that all agree on it."""
        return _class_id(
            self.runner_kind, self.job_type, self.zone, tuple(sorted(self.labels.items()))
        )


@lru_cache(maxsize=10_000)
def _class_id(
    runner_kind: str, job_type: str, zone: str | None, labels: tuple[tuple[str, str], ...]
) -> UUID:
    content = [runner_kind, job_type, zone, dict(labels)]
    return uuid5(_NAMESPACE, canonical(content).decode())


@dataclass(frozen=True, slots=True)
class Offer:
    """What a runner has to offer."""

    runner_kind: str
    capabilities: frozenset[str]
    zone: str | None
    labels: frozenset[tuple[str, str]]


def can_do(capabilities: Iterable[str], job_type: str) -> bool:
    """Whether one capability names the job type, exactly or by a prefix that ends in `.*`."""
    return any(
        capability == job_type
        or (capability.endswith(".*") and job_type.startswith(capability[:-1]))
        for capability in capabilities
    )


def satisfies(offer: Offer, demands: Demands) -> bool:
    """Whether a runner with this offer may take attempts with these demands."""
    return (
        offer.runner_kind == demands.runner_kind
        and can_do(offer.capabilities, demands.job_type)
        and demands.zone in {None, offer.zone}
        and demands.labels.items() <= offer.labels
    )
