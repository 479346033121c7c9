"""Registration of runners and their sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.commands import ends
from app.domain import jsontext
from app.domain.commands import RegisterRunner, ReportStatus
from app.domain.errors import (
    RunnerIdContested,
    RunnerNotFound,
    ServiceError,
    SessionReplaced,
    SessionReused,
    SessionUnknown,
)
from app.store import runners
from app.store.database import Connection
from app.store.ends import End, Rules

_MAX_SESSIONS_A_MINUTE = 3


@dataclass(frozen=True, slots=True)
class Registration:
    """Whether a new session began, and what became of the leases of the one before."""

    began: bool
    ended: tuple[End, ...] = ()


async def register(
    conn: Connection, rules: Rules, command: RegisterRunner
) -> Registration | ServiceError:
    """Register a runner, or a new session of it, which ends the leases of the session before.

    The current session again is a no-op. A refusal is an outcome and not raised, since the note
    that an id is contested must be kept: SessionReused, SessionReplaced or RunnerIdContested.
    """
    profile = runners.Profile(
        command.runner_kind.value,
        command.version,
        list(command.capabilities),
        command.zone,
        jsontext.dumps(dict(command.labels)),
    )
    runner_id, session_id = command.runner_id, command.session_id
    # Before a removed runner's row would be made anew: its sessions are remembered.
    replaced, _ = await runners.session_history(conn, runner_id, session_id)
    if replaced:
        return SessionReplaced(action="stop")
    if not await runners.add_once(conn, runner_id, session_id, profile):
        registered = await runners.lock(conn, runner_id, profile)
        if registered.session_id == session_id:
            if not registered.same_profile:
                return SessionReused()
            await runners.mark_seen(conn, runner_id)
            return Registration(began=False)
        replaced, recent = await runners.session_history(conn, runner_id, session_id)
        if replaced:
            return SessionReplaced(action="stop")
        if recent > _MAX_SESSIONS_A_MINUTE:
            await runners.mark_contested(conn, runner_id)
            return RunnerIdContested()
    leases = await runners.list_live_leases(conn, runner_id)
    await runners.begin_session(conn, runner_id, session_id, profile, command.capacity_total)
    ended = await ends.revoke(conn, rules, leases, "session-replaced") if leases else []
    return Registration(began=True, ended=tuple(ended))


async def report_status(
    conn: Connection, commands: Sequence[ReportStatus]
) -> list[bool | ServiceError]:
    """Store reports, at most one a runner; False by position for one that a newer has overtaken."""
    stored = await runners.report(
        conn,
        [
            runners.Report(
                command.runner_id,
                command.session_id,
                command.sequence,
                command.status.value,
                command.capacity_total,
                command.last_error,
            )
            for command in commands
        ],
    )
    missed = [command for command in commands if command.runner_id not in stored]
    found = await runners.find_sessions(
        conn, [(command.runner_id, command.session_id) for command in missed]
    )
    return [
        command.runner_id in stored
        or session_refusal(found.get(command.runner_id), command)
        or False
        for command in commands
    ]


def session_refusal(found: runners.Session | None, command: ReportStatus) -> ServiceError | None:
    """Why this session may not speak for the runner; None if it may."""
    if found is None:
        return RunnerNotFound()
    if found.session_id == command.session_id:
        return None
    return SessionReplaced(action="stop") if found.known else SessionUnknown()
