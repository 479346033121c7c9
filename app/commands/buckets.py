"""The bucket's marker: an object that says which installation the bucket's prefix belongs to.

Whatever deletes objects asks `check_marker` first: a service that was given the address of another
database must not take everything in the bucket for orphans.
"""

from __future__ import annotations

import json
from contextlib import suppress
from uuid import UUID

import structlog

from app.domain.errors import BucketNotOurs
from app.domain.ids import new_id
from app.objects.store import ObjectStore
from app.store import installation
from app.store.database import Database

MARKER = "installation.json"
"""Key of the marker, without the prefix."""

_LOG = structlog.get_logger(__name__)
_MARKER_BYTES = 4096


async def check_marker(database: Database, objects: ObjectStore) -> None:
    """Return only if the bucket's marker names this database's installation.

    Raises BucketNotOurs when there is none or it names another one, ObjectStoreUnavailable or
    DatabaseUnavailable when that cannot be found out. Call it before each run that deletes.
    """
    ours = await _own_id(database)
    found = await read_marker(objects)
    if found != ours:
        raise BucketNotOurs(
            None if found else "The bucket has no marker; nothing in it may be deleted."
        )


async def mark_bucket_once(database: Database, objects: ObjectStore) -> bool:
    """Write the marker of a bucket that has none. True: it names this installation.

    A prefix that already holds objects, none of which this database knows, is left unmarked: it
    may be another installation's. Raises ObjectStoreUnavailable or DatabaseUnavailable.
    """
    ours = await _own_id(database)
    found = await read_marker(objects)
    if found is None and await _may_be_ours(database, objects):
        body = json.dumps({"installation_id": str(ours)}).encode()
        await objects.put_once(MARKER, body)
        found = await read_marker(objects)
    if found != ours:
        _LOG.error(
            "objects.bucket_not_ours",
            bucket=objects.settings.bucket,
            prefix=objects.settings.prefix,
            marked=found is not None,
            consequence="nothing in it is deleted",
        )
    return found == ours


async def read_marker(objects: ObjectStore) -> UUID | None:
    """The installation that the marker names; None: no marker, or none that can be read."""
    body = await objects.find(objects.full_key(MARKER), _MARKER_BYTES)
    if body is None:
        return None
    with suppress(ValueError, KeyError, TypeError):
        return UUID(json.loads(body)["installation_id"])
    # Whatever stands there was not written by us: no id equals it.
    return UUID(int=0)


async def _own_id(database: Database) -> UUID:
    return await database.run(lambda conn: installation.get_or_make(conn, new_id()))


async def _may_be_ours(database: Database, objects: ObjectStore) -> bool:
    listed = await objects.list_objects("", limit=100)
    keys = [one.key for one in listed]
    if not keys:
        return True
    bucket = objects.settings.bucket
    return await database.run(lambda conn: installation.knows_objects(conn, bucket, keys))
