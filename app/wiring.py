"""The only place that makes pools and clients, and ends them in the right order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import structlog

from app import failpoints
from app.auth.tokens import TokenVerifier
from app.callbacks.sender import Sender
from app.commands.claims import Offers, PlacementClasses
from app.commands.gathered import Gathered
from app.commands.leadership import Leadership
from app.domain.keys import KeyRing
from app.domain.masking import Masker
from app.failpoints import Failpoint
from app.objects.store import ObjectStore
from app.services import Services
from app.settings import DatabaseSettings, Settings, TestingSettings
from app.store.database import Database
from app.store.signals import Signals
from app.telemetry import Metrics
from app.topics import Publisher

_LOG = structlog.get_logger(__name__)


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """All services of a process, for as long as the block lasts.

    Nothing needs to be reachable for it: a database or bucket that is away shows in `/readyz` and
    as 503, and is used as soon as it is back.
    """
    arm_failpoints(settings.testing)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(follow_redirects=False))
        tokens = TokenVerifier(settings.identity, http)
        stack.push_async_callback(tokens.close)
        database = Database(settings.database)
        stack.push_async_callback(database.close)
        election = Database(for_election(settings))
        stack.push_async_callback(election.close)
        objects = ObjectStore(settings.objects)
        await objects.start()
        stack.push_async_callback(objects.stop)
        signals = Signals(settings.database)
        await signals.start()
        stack.push_async_callback(signals.stop)
        masker = await _prepared_masker()
        keys = _keys_of(settings)
        metrics = Metrics()
        classes = PlacementClasses()
        gathered = Gathered.of(
            settings,
            database,
            keys,
            classes,
            lambda name, size: metrics.batches.labels(name).observe(size),
        )
        stack.push_async_callback(gathered.drain)
        yield Services(
            settings=settings,
            database=database,
            objects=objects,
            signals=signals,
            http=http,
            tokens=tokens,
            keys=keys,
            masker=masker,
            gathered=gathered,
            classes=classes,
            offers=Offers(),
            callbacks=Sender(settings.callbacks, keys),
            metrics=metrics,
            leadership=Leadership(settings.scheduler),
            election=election,
            publisher=Publisher(settings.scheduler, http),
        )


def for_election(settings: Settings) -> DatabaseSettings:
    """The same database by one connection, given up early enough to try again before the expiry."""
    longest = settings.scheduler.leader_ttl_seconds / 4
    return settings.database.model_copy(
        update={
            "pool_min_size": 0,
            "pool_size": 1,
            "connect_timeout_seconds": longest,
            "acquire_timeout_seconds": longest,
            "statement_timeout_seconds": longest,
            "lock_timeout_seconds": longest,
        }
    )


def _keys_of(settings: Settings) -> KeyRing:
    """The ring of server keys."""
    return KeyRing(
        settings.keys.current,
        {
            key_id: secret.get_secret_value().encode()
            for key_id, secret in settings.keys.secrets.items()
        },
    )


def arm_failpoints(testing: TestingSettings) -> None:
    """Arm what the settings name, and nothing else."""
    failpoints.arm(
        {name: Failpoint(**point.model_dump()) for name, point in testing.failpoints.items()}
    )


async def _prepared_masker() -> Masker:
    """The masker, its rules compiled; without them it withholds all, and readyz says so."""
    masker = Masker()
    health = await asyncio.to_thread(masker.prepare)
    if health.problem:
        _LOG.warning("masking.problem", engine=health.engine, problem=health.problem)
    return masker
