"""Audits a database: runs the checks in one read-only snapshot and returns what breaks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import asyncpg
from pydantic_settings import EnvSettingsSource

from app.settings import PREFIX, LeaseSettings, Settings
from app.store import audit as attempts
from app.store import audit_artifacts, audit_callbacks, audit_feed, audit_logs
from app.store.audit import Check
from app.store.database import Connection

CHECKS = (
    *attempts.CHECKS,
    *audit_artifacts.CHECKS,
    *audit_callbacks.CHECKS,
    *audit_feed.CHECKS,
    *audit_logs.CHECKS,
)
"""All checks, in their order."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings that some checks depend on."""

    lease_time: timedelta
    log_grace: timedelta
    key_hold: timedelta
    max_started_leases: int

    @classmethod
    def of(cls, settings: LeaseSettings) -> Terms:
        """The terms that the settings give."""
        return cls(
            timedelta(seconds=settings.lease_seconds),
            timedelta(seconds=settings.log_grace_seconds),
            timedelta(seconds=settings.key_hold_seconds),
            settings.max_started_leases,
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Terms:
        """The terms that the service's environment gives; the other settings may be missing."""
        reader = EnvSettingsSource(Settings)
        reader.env_vars = {k.lower(): v for k, v in environ.items() if k.startswith(PREFIX)}
        return cls.of(LeaseSettings(**reader().get("leases", {})))


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that should not be."""

    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A check and what breaks it, at most as many as were asked for."""

    check: Check
    violations: tuple[Violation, ...]


async def run_checks(
    conn: Connection, terms: Terms, *, checks: Sequence[Check] = CHECKS, limit: int = 20
) -> list[Finding]:
    """Run the checks; one finding each, in their order, with at most `limit` violations."""
    findings = []
    for check in checks:
        values = [getattr(terms, name) for name in check.needs]
        rows = await conn.fetch(check.statement, limit, *values)
        violations = tuple(Violation(row["subject"], row["detail"]) for row in rows)
        findings.append(Finding(check, violations))
    return findings


async def audit(dsn: str, terms: Terms, *, limit: int = 20) -> list[Finding]:
    """Run all checks on a database, in one read-only snapshot of it."""
    conn = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        async with conn.transaction(isolation="repeatable_read", readonly=True):
            return await run_checks(conn, terms, limit=limit)
    finally:
        await conn.close()


def lines(findings: Sequence[Finding]) -> Iterable[str]:
    """The findings for people: one line a check, and under it what breaks it."""
    width = max(len(finding.check.name) for finding in findings)
    for finding in findings:
        word = "broken" if finding.violations else "holds"
        yield f"{word:<7} {finding.check.name:<{width}}  {finding.check.sentence}"
        for one in finding.violations:
            yield f"        {one.subject}: {one.detail}"
    broken = sum(1 for finding in findings if finding.violations)
    yield f"{len(findings)} checks, {broken or 'none'} broken"


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """The same as one JSON document."""
    return {
        "checks": [
            {
                "name": finding.check.name,
                "sentence": finding.check.sentence,
                "violations": [asdict(one) for one in finding.violations],
            }
            for finding in findings
        ],
        "broken": sum(1 for finding in findings if finding.violations),
    }
