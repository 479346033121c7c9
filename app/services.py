"""What edges are given: every pool, client and setting of the process, made in `wiring` alone."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from app.auth.tokens import TokenVerifier
from app.callbacks.sender import Sender
from app.commands.claims import Offers, PlacementClasses
from app.commands.ends import rules_of
from app.commands.gathered import Gathered
from app.commands.leadership import Leadership
from app.commands.leases import Terms
from app.domain.keys import KeyRing
from app.domain.masking import Masker
from app.objects.store import ObjectStore
from app.settings import Settings
from app.store.database import Database
from app.store.ends import Rules
from app.store.signals import Signals
from app.telemetry import Metrics
from app.topics import Publisher


@dataclass(frozen=True)
class Services:
    """The process's resources. Edges use them; nothing else makes any."""

    settings: Settings
    database: Database
    objects: ObjectStore
    signals: Signals
    http: httpx.AsyncClient
    tokens: TokenVerifier
    keys: KeyRing
    masker: Masker
    gathered: Gathered
    classes: PlacementClasses
    offers: Offers
    callbacks: Sender
    metrics: Metrics
    leadership: Leadership
    """What this process knows of its own leadership."""
    election: Database
    """One connection of its own for the election, which must not wait behind requests."""
    publisher: Publisher

    @property
    def terms(self) -> Terms:
        """Durations of leases."""
        return Terms.of(self.settings.leases)

    @property
    def rules(self) -> Rules:
        """What follows the end of a lease."""
        return rules_of(self.settings.leases)
