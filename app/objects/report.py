"""What `check-config --objects` prints: each trial, what follows, and whose the bucket is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.objects.probe import Finding, needed_here, probe
from app.objects.store import ObjectStore
from app.settings import ObjectSettings


@dataclass(frozen=True, slots=True)
class Report:
    """The lines for a person, and whether the store will do under these settings."""

    lines: tuple[str, ...]
    usable: bool


async def report_on(settings: ObjectSettings) -> Report:
    """Try what the store can do. Raises ObjectStoreUnavailable if it does not answer."""
    store = ObjectStore(settings)
    await store.start()
    try:
        findings = await probe(store)
    finally:
        await store.stop()
    broken = [one for one in findings if _is_broken(one, settings)]
    return Report(tuple(_lines(settings, findings)), not broken)


def _lines(settings: ObjectSettings, findings: Sequence[Finding]) -> Iterator[str]:
    place = settings.endpoint_url or f"AWS S3 in {settings.region}"
    yield f"{place}, bucket {settings.bucket}, prefix {settings.prefix}"
    for one in findings:
        word = "works" if one.works else "broken" if _is_broken(one, settings) else "lacks"
        yield f"{word:<7} {one.name:<13} {one.sentence}"
    broken = sum(1 for one in findings if _is_broken(one, settings))
    yield f"{len(findings)} trials, {broken or 'none'} in the way of the service as it is set"


def _is_broken(finding: Finding, settings: ObjectSettings) -> bool:
    return not finding.works and needed_here(finding, checksum=settings.checksum)
