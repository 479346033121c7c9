"""Audits the store against the database: every artifact has its object, as it was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from app.commands.audit import Finding, Violation
from app.objects.store import ObjectStore
from app.settings import Settings
from app.store import audit_artifacts
from app.store.audit import Check
from app.store.audit_artifacts import Expected
from app.store.database import Connection, Database

OBJECTS_THERE = Check(
    "objects-there", "Every artifact's object is in the store, as it was recorded.", statement=""
)

_PAGE = 500
_AT_ONCE = 16


async def find_lost(database: Database, objects: ObjectStore, *, limit: int) -> Finding:
    """Ask the store for each object: is it there, with its size, and its digest where it is kept.

    Artifacts may be removed while this runs; what is removed in between is not told. Raises
    ObjectStoreUnavailable or DatabaseUnavailable.
    """
    bucket, after = objects.settings.bucket, ""
    found: list[Violation] = []
    while len(found) < limit:
        page = await database.run(_page_of(bucket, after))
        if not page:
            break
        after = page[-1].key
        lost = await _look_all(objects, page)
        if lost:
            named = await database.run(_named_of(bucket, list(lost)))
            found += [violation for key, violation in lost.items() if key in named]
    return Finding(OBJECTS_THERE, tuple(found[:limit]))


def _page_of(bucket: str, after: str) -> Callable[[Connection], Awaitable[list[Expected]]]:
    return lambda conn: audit_artifacts.list_objects(conn, bucket, after, _PAGE)


def _named_of(bucket: str, keys: list[str]) -> Callable[[Connection], Awaitable[set[str]]]:
    """The second look, after that at the store: what was removed meanwhile is not lost."""
    return lambda conn: audit_artifacts.list_named(conn, bucket, keys)


async def _look_all(objects: ObjectStore, page: Sequence[Expected]) -> dict[str, Violation]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def look(one: Expected) -> Violation | None:
        async with places:
            return await _look(objects, one)

    seen = await asyncio.gather(*map(look, page))
    return {one.key: bad for one, bad in zip(page, seen, strict=True) if bad is not None}


async def audit_store(settings: Settings, *, limit: int) -> Finding:
    """`find_lost` with a pool and a client of its own."""
    database, objects = Database(settings.database), ObjectStore(settings.objects)
    await objects.start()
    try:
        return await find_lost(database, objects, limit=limit)
    finally:
        await objects.stop()
        await database.close()


async def _look(objects: ObjectStore, one: Expected) -> Violation | None:
    head = await objects.head(one.key)
    if head is None:
        return Violation(one.subject, f"its object {one.key} is not there")
    if head.byte_size != one.byte_size:
        return Violation(one.subject, f"its object has {head.byte_size}, not {one.byte_size} bytes")
    if head.sha256 is not None and f"sha256:{head.sha256}" != one.digest:
        return Violation(one.subject, f"its object {one.key} has another digest")
    return None
