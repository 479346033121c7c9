"""The auditor asks the store: no artifact without its object."""

import base64
import hashlib

import pytest

from app.commands.audit_objects import find_lost


async def lost(instance) -> list[str]:
    services = instance.services
    finding = await find_lost(services.database, services.objects, limit=100)
    return [one.detail for one in finding.violations]


@pytest.fixture
async def keys(here, sql, monkeypatch) -> list[str]:
    """Objects of artifacts and of a log, more than one page of them."""
    monkeypatch.setattr("app.commands.audit_objects._PAGE", 2)
    held = await here.held()
    await held.log(b"a line\n", 0)
    for number in range(4):
        artifact_id = await held.upload(bytes([number]) * 10)
        await held.output(f"output-{number}", artifact_id)
    return [row["key"] for row in await sql.fetch("SELECT key FROM artifact_refs ORDER BY key")]


async def test_store_that_has_everything_is_not_complained_of(here, keys):
    assert len(keys) == 5
    assert await lost(here) == []


@pytest.mark.parametrize("fault", ["deleted", "longer", "changed"])
async def test_object_that_is_not_as_recorded_is_found(here, keys, fault):
    objects = here.services.objects
    if fault == "deleted":
        await objects.delete([keys[3]])
    else:
        body = b"other bytes" if fault == "longer" else b"ten bytes!"
        checksum = base64.b64encode(hashlib.sha256(body).digest()).decode()
        await objects.put_at(keys[3], body, checksum, "text/plain")

    [detail] = await lost(here)

    assert {"deleted": "is not there", "longer": "11, not 10", "changed": "another digest"}[
        fault
    ] in detail


async def test_what_is_being_removed_is_not_lost(here, keys, sql):
    await here.services.objects.delete(keys)
    await sql.execute("UPDATE artifact_refs SET state = 'removing'")

    assert await lost(here) == []
