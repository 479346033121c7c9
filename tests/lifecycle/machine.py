"""Random lives: commands, exact repeats, lost answers, sweeps and time, over the real database.

The machine knows only what callers and runners know: what they asked and which answers reached
them. What must hold is read from the database after every step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID, uuid4

import asyncpg
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from app.commands import audit
from app.domain import commands
from app.domain.errors import ServiceError
from app.domain.lifecycle import Outcome, Phase, RunnerKind, RunnerStatus
from app.handlers import attempts, fleet, leases, runners
from app.loops.end_due import EndDue
from app.loops.keep_keys import KeepKeys
from app.loops.tick import Tick
from app.services import Services
from tests.lifecycle.clock import Clock
from tests.lifecycle.world import breaches
from tests.store.sweeps import picture

T = TypeVar("T")
KEYS = ("host-a", "host-b")
JOBS = ("ssh.command.run", "verify.http", "opentofu.apply")
FLEET = (*JOBS, "verify.http")
KIND = {
    "ssh": RunnerKind.SSH,
    "verify": RunnerKind.VERIFICATION,
    "opentofu": RunnerKind.OPENTOFU,
}
NUMBERS = st.integers(0, len(FLEET) - 1)
KEY_HOLD = timedelta(seconds=300)
EMPTIED = (
    "attempt_events, attempt_heartbeats, concurrency_holds, runner_leases, execution_attempts, "
    "placement_classes, runner_instances, runner_statuses, runner_sessions"
)

FREED = commands.GiveReason(reason="looked at the host")


class Bridge:
    """An event loop of its own in a thread of its own, for a machine that knows none."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(eq=False)
class Runner:
    """A runner, as its newest process knows itself."""

    id: str
    job_type: str
    session: UUID = field(default_factory=uuid4)
    reports: int = 0

    @property
    def prefix(self) -> str:
        return self.job_type.split(".", 1)[0]


@dataclass(eq=False)
class Lease:
    """A lease that some runner was told of."""

    id: UUID
    attempt_id: UUID
    token: str
    job_type: str
    session: UUID
    sequence: int = 0
    began: bool = False
    """A start was answered with 200, so the work may have begun."""
    gave_word: bool = False
    """It said how the work ended, or gave it back, and that was taken."""


@dataclass
class Answer:
    """What came back: an outcome, or the reason of a refusal."""

    outcome: Any = None
    reason: str | None = None
    action: str | None = None


async def never_gone() -> bool:
    """The client is still there."""
    return False


class LifecycleMachine(RuleBasedStateMachine):
    """What may happen to attempts, in any order."""

    bridge: ClassVar[Bridge]
    services: ClassVar[Services]
    sql: ClassVar[asyncpg.Connection]

    created = Bundle("created")
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(self.sql)
        self.fleet = [Runner(f"runner-{number}", job) for number, job in enumerate(FLEET)]
        self.leases: list[Lease] = []
        self.ended: dict[UUID, Mapping[str, Any]] = {}
        self.freed: set[UUID] = set()
        self.run(self.sql.execute(f"TRUNCATE {EMPTIED} CASCADE"))
        self.run(self.clock.stop())
        for runner in self.fleet:
            assert self._register(runner).reason is None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.bridge.run(coroutine)

    def ask(self, coroutine: Coroutine[Any, Any, Any]) -> Answer:
        """What a caller gets to hear; a refusal is an answer, any other error a bug."""
        try:
            return Answer(outcome=self.run(coroutine))
        except ServiceError as error:
            return Answer(reason=error.reason(), action=error.context.get("action"))

    # --- callers ---

    @rule(
        target=created,
        job_type=st.sampled_from(JOBS),
        key=st.sampled_from([None, *KEYS]),
        priority=st.sampled_from([10, 100]),
        queue_limit=st.sampled_from([None, None, 40]),
        run_limit=st.sampled_from([60, 1000]),
        lost=st.booleans(),
    )
    def create(self, job_type, key, priority, queue_limit, run_limit, lost) -> UUID:
        fields = {
            **{name: str(uuid4()) for name in ("operation_id", "plan_id")},
            **{name: str(uuid4()) for name in ("plan_node_id", "node_run_id")},
            "idempotency_key": uuid4().hex,
            "job_type": job_type,
            "job_spec_ref": {},
            "priority": priority,
            "timeout_seconds": run_limit,
            "queue_timeout_seconds": queue_limit,
            "concurrency_key": key,
        }
        command = commands.CreateAttempt.model_validate(fields)
        first = self.run(attempts.create_attempt(self.services, command, fields))
        if lost:
            again = self.run(attempts.create_attempt(self.services, command, fields))
            assert (again.attempt.id, again.replayed) == (first.attempt.id, True)
        return first.attempt.id

    @rule(
        attempt_id=st.one_of(created, held.map(lambda lease: lease.attempt_id)),
        repeated=st.booleans(),
    )
    def cancel(self, attempt_id, repeated) -> None:
        command = commands.CancelAttempt(attempt_id=attempt_id, reason="")
        first = self.ask(attempts.cancel_attempt(self.services, command))
        assert first.reason in {None, "already-terminal"}
        if repeated:
            again = self.ask(attempts.cancel_attempt(self.services, command))
            assert again == first

    def free(self, key: str) -> None:
        answer = self.ask(fleet.free_key(self.services, key, FREED, "machine"))
        if answer.reason is None:
            self.freed.add(answer.outcome)
        assert answer.reason in {None, "key-in-use", "concurrency-key-not-found"}

    # --- runners ---

    @initialize(target=held, key=st.sampled_from([None, *KEYS]), other=st.sampled_from(KEYS))
    def first_work(self, key, other) -> Any:
        """Something is always at work, mostly under a key."""
        found: list[Lease] = []
        for number, its_key in enumerate((key, None, other, other)):
            found += self.take(number, its_key, 1000, begins=True).values
        return multiple(*found)

    def _register(self, runner: Runner) -> Answer:
        command = commands.RegisterRunner(
            runner_id=runner.id,
            session_id=runner.session,
            runner_kind=KIND[runner.prefix],
            version="1.0.0",
            capabilities=[f"{runner.prefix}.*"],
            capacity_total=3,
        )
        return self.ask(runners.register_runner(self.services, command))

    def restart(self, runner: Runner) -> None:
        """A new process takes over; the one before gets nothing any more."""
        before, runner.session = runner.session, uuid4()
        answer = self._register(runner)
        assert answer.reason in {None, "runner-id-contested"}
        if answer.reason:
            runner.session = before
        else:
            old = self._claim(runner, 1, session=before)
            assert old.reason == "session-replaced"

    def disturb(self, runner: Runner, capacity: int, *, draining: bool, drained: bool) -> None:
        """Its own reports and the operator's drain, for a moment: then it is given no more."""
        self._report(runner, RunnerStatus.DRAINING if draining else RunnerStatus.READY, capacity)
        self.run(fleet.set_drained(self.services, runner.id, "ops", drained=drained))
        given = self._claim(runner, 4).outcome
        assert len(given) <= capacity
        assert not given or not (drained or draining)
        self._report(runner, RunnerStatus.READY, 3)
        self.run(fleet.set_drained(self.services, runner.id, "ops", drained=False))

    def _report(self, runner: Runner, status: RunnerStatus, capacity: int) -> None:
        runner.reports += 1
        command = commands.ReportStatus(
            runner_id=runner.id,
            session_id=runner.session,
            sequence=runner.reports,
            status=status,
            capacity_total=capacity,
        )
        assert self.run(runners.report_status(self.services, command))

    def remove(self, runner: Runner) -> None:
        """Also the process of a runner that was removed may register again."""
        answer = self.ask(fleet.remove(self.services, runner.id))
        assert answer.reason in {None, "runner-busy"}
        assert self._register(runner).reason is None

    @rule(
        kind=st.sampled_from(["restart", "disturb", "remove", "free", "keep_keys", "away"]),
        number=NUMBERS,
        key=st.sampled_from(KEYS),
        capacity=st.integers(0, 4),
        seconds=st.sampled_from([4, 40, 400]),
        draining=st.booleans(),
        drained=st.booleans(),
    )
    def trouble(self, kind, number, key, capacity, seconds, draining, drained) -> None:
        """What befalls a fleet now and then."""
        runner = self.fleet[number]
        match kind:
            case "restart":
                self.restart(runner)
            case "disturb":
                self.disturb(runner, capacity, draining=draining, drained=drained)
            case "remove":
                self.remove(runner)
            case "free":
                self.free(key)
            case "keep_keys":
                self.keep_keys()
            case "away":
                self.be_away(seconds)

    def _claim(
        self,
        runner: Runner,
        wanted: int,
        *,
        session: UUID | None = None,
        request_id: UUID | None = None,
    ) -> Answer:
        command = commands.ClaimLeases(
            runner_id=runner.id,
            session_id=session or runner.session,
            request_id=request_id or uuid4(),
            max_leases=wanted,
        )
        return self.ask(leases.claim_leases(self.services, command, never_gone))

    @rule(target=held, number=NUMBERS, wanted=st.integers(1, 3), lost=st.booleans())
    def claim(self, number, wanted, lost) -> Any:
        runner = self.fleet[number]
        request_id = uuid4()
        answer = self._claim(runner, wanted, request_id=request_id)
        if lost and answer.outcome:
            first = {claim.leased.lease.id: claim.token for claim in answer.outcome}
            answer = self._claim(runner, wanted, request_id=request_id)
            assert {claim.leased.lease.id: claim.token for claim in answer.outcome} == first
        given = [
            Lease(
                claim.leased.lease.id,
                claim.leased.attempt.id,
                claim.token,
                runner.job_type,
                runner.session,
            )
            for claim in answer.outcome
        ]
        assert len(given) <= wanted
        self.leases += given
        return multiple(*given)

    @rule(
        target=held,
        number=NUMBERS,
        key=st.sampled_from([None, *KEYS]),
        run_limit=st.sampled_from([60, 1000]),
        begins=st.sampled_from([True, True, False]),
    )
    def take(self, number, key, run_limit, begins) -> Any:
        """Work that is there is claimed, and mostly begun: what else is a fleet for?"""
        self.create(FLEET[number], key, 1, None, run_limit, lost=False)
        given = self.claim(number, 1, lost=False)
        for lease in given.values if begins else ():
            self.start(lease, lost=False)
        return given

    @rule(target=held, key=st.sampled_from([None, *KEYS]))
    def take_over(self, key) -> Any:
        """One falls silent over work that may be begun again, and another goes on."""
        first = self.take(1, key, 1000, begins=True)
        self.pass_time_in_silence(30)
        second = self.claim(3, 1, lost=False)
        for lease in second.values:
            self.start(lease, lost=False)
        return multiple(*first.values, *second.values)

    @rule(lease=held, lost=st.booleans())
    def start(self, lease, lost) -> None:
        command = commands.StartLease(lease_id=lease.id, lease_token=lease.token)
        if lost:
            self._under(lease, lambda: leases.start_lease(self.services, command))
        answer = self._under(lease, lambda: leases.start_lease(self.services, command))
        if answer.reason is None:
            lease.began = True
            row = self._lease_row(lease)
            assert (row["status"], row["attempt_status"]) == ("active", "running")
            assert row["cancel_requested_at"] is None
        else:
            assert answer.action == "stop"

    @rule(
        lease=held,
        newer=st.booleans(),
        phase=st.sampled_from([None, Phase.EXECUTING, Phase.COMPLETING]),
    )
    def beat(self, lease, newer, phase) -> None:
        lease.sequence += newer or lease.sequence == 0
        command = commands.Heartbeat(
            lease_id=lease.id,
            lease_token=lease.token,
            session_id=lease.session,
            sequence=lease.sequence,
            phase=phase,
        )
        answer = self._under(lease, lambda: leases.heartbeat(self.services, command))
        assert (answer.reason is None) == (self._lease_row(lease)["status"] == "active")

    @rule(lease=held, outcome=st.sampled_from(Outcome), repeated=st.booleans())
    def complete(self, lease, outcome, repeated) -> None:
        fields: dict[str, Any] = {"outcome": outcome.value}
        if outcome is Outcome.FAILED:
            fields["failure_category"] = "command_failed"
        command = commands.CompleteLease(lease_id=lease.id, lease_token=lease.token, **fields)
        before = self._lease_row(lease)
        answer = self._under(
            lease, lambda: leases.complete_lease(self.services, command, fields), word=True
        )
        after = self._lease_row(lease)
        if before["status"] == "active":
            assert (answer.reason, after["attempt_status"]) == (None, outcome.value)
        lease.gave_word |= after["completion_digest"] is not None
        lease.gave_word |= after["late_word_at"] is not None
        if repeated:
            again = self._under(
                lease, lambda: leases.complete_lease(self.services, command, fields), word=True
            )
            assert (again.reason, again.action) == (answer.reason, answer.action)

    @rule(lease=consumes(held), repeated=st.booleans())
    def release(self, lease, repeated) -> None:
        command = commands.ReleaseLease(lease_id=lease.id, lease_token=lease.token, reason="")
        answer = self._under(lease, lambda: leases.release_lease(self.services, command))
        lease.gave_word |= self._lease_row(lease)["status"] == "released"
        if repeated:
            again = self._under(lease, lambda: leases.release_lease(self.services, command))
            assert (again.reason, again.action) == (answer.reason, answer.action)

    @rule(lease=held)
    def use_a_wrong_token(self, lease) -> None:
        proof = {"lease_id": lease.id, "lease_token": "lt_guessed"}
        before = self.run(picture(self.sql))
        answers = [
            self.ask(leases.start_lease(self.services, commands.StartLease(**proof))),
            self.ask(leases.release_lease(self.services, commands.ReleaseLease(**proof))),
            self.ask(
                leases.complete_lease(
                    self.services, commands.CompleteLease(**proof, outcome="succeeded"), {}
                )
            ),
        ]
        assert {answer.reason for answer in answers} == {"lease-token-invalid"}
        assert self.run(picture(self.sql)) == before

    def _under(self, lease: Lease, command: Any, *, word: bool = False) -> Answer:
        """A command under a lease. Under one that has ended it writes nothing but a late word."""
        row = self._lease_row(lease)
        before = None if row["status"] == "active" else self.run(picture(self.sql))
        answer = self.ask(command())
        if before is not None:
            after = self.run(picture(self.sql))
            if word:
                before.pop("concurrency_holds")
                after.pop("concurrency_holds")
                for one in (before, after):
                    one["execution_attempts"] = [
                        {k: v for k, v in attempt.items() if k != "claimable"}
                        for attempt in one["execution_attempts"]
                    ]
            assert after == before
        return answer

    def _lease_row(self, lease: Lease) -> asyncpg.Record:
        row = self.run(
            self.sql.fetchrow(
                "SELECT l.status, l.completion_digest, l.late_word_at, a.status AS attempt_status, "
                "a.cancel_requested_at FROM runner_leases l "
                "JOIN execution_attempts a ON a.id = l.attempt_id WHERE l.id = $1",
                lease.id,
            )
        )
        assert row is not None
        return row

    # --- what happens by itself ---

    def sweep(self) -> None:
        self.run(EndDue().run_once(self.services))

    def keep_keys(self) -> None:
        self.run(KeepKeys().run_once(self.services))
        self._lines_move()

    @rule(seconds=st.sampled_from([5, 15, 30, 60, 300, 600]))
    def pass_time_in_silence(self, seconds) -> None:
        self.run(self.clock.forward(seconds))
        self.sweep()

    @rule(times=st.integers(1, 6), lease=held)
    def pass_time_while_one_is_alive(self, times, lease) -> None:
        for _ in range(times):
            self.run(self.clock.forward(20))
            self.beat(lease, newer=True, phase=None)
            self.sweep()

    def be_away(self, seconds: int) -> None:
        """Our own outage: nothing ends by it."""
        count = "SELECT count(*) FROM runner_leases WHERE status = 'active'"
        before = self.run(self.sql.fetchval(count))
        self.run(self.clock.forward(seconds, serving=False))
        self.sweep()
        self.run(Tick().run_once(self.services))
        self.sweep()
        assert self.run(self.sql.fetchval(count)) == before

    def _lines_move(self) -> None:
        """The first in line of every free key can be claimed, and nobody else of it."""
        wrong = self.run(
            self.sql.fetch(
                "SELECT a.id FROM execution_attempts a WHERE status = 'queued' "
                "AND concurrency_key IS NOT NULL AND claimable <> (NOT EXISTS ("
                "SELECT FROM concurrency_holds h WHERE h.concurrency_key = a.concurrency_key) "
                "AND NOT EXISTS (SELECT FROM execution_attempts b WHERE b.status = 'queued' "
                "AND b.concurrency_key = a.concurrency_key AND (b.priority, b.created_at, b.id) "
                "< (a.priority, a.created_at, a.id)))"
            )
        )
        assert wrong == []

    # --- what always holds ---

    @invariant()
    def auditor_accepts_everything(self) -> None:
        terms = audit.Terms.of(self.services.settings.leases)
        checks = [check for check in audit.CHECKS if check.name != "overdue"]
        found = breaches(self.run(audit.run_checks(self.sql, terms, checks=checks)))
        found.pop("hold-justified", None)  # until the sweep comes by; see `teardown`
        assert found == {}

    @invariant()
    def terminal_never_changes(self) -> None:
        rows = self.run(
            self.sql.fetch("SELECT * FROM execution_attempts WHERE finished_at IS NOT NULL")
        )
        late = {"last_event_number", "last_event_at", "last_feed_epoch", "last_feed_xid"}
        late |= {"stop_confirmed", "unconfirmed_leases"}
        for row in rows:
            now = {name: value for name, value in row.items() if name not in late}
            assert self.ended.setdefault(row["id"], now) == now

    @invariant()
    def work_that_must_not_be_begun_again_began_once(self) -> None:
        once: dict[UUID, int] = {}
        for lease in self.leases:
            if lease.began and not lease.job_type.startswith("verify."):
                once[lease.attempt_id] = once.get(lease.attempt_id, 0) + 1
        assert set(once.values()) <= {1}

    @invariant()
    def no_key_is_free_while_its_ex_holder_may_be_at_work(self) -> None:
        silent = [lease.attempt_id for lease in self.leases if lease.began and not lease.gave_word]
        rows = self.run(
            self.sql.fetch(
                "SELECT a.id, a.job_type, a.finished_at, h.attempt_id AS holder "
                "FROM execution_attempts a LEFT JOIN concurrency_holds h "
                "ON h.concurrency_key = a.concurrency_key "
                "WHERE a.id = ANY($1) AND a.concurrency_key IS NOT NULL",
                silent,
            )
        )
        for row in rows:
            waited = row["finished_at"] and row["finished_at"] + KEY_HOLD <= self.clock.now
            over = waited and not row["job_type"].startswith("opentofu.")
            assert row["holder"] == row["id"] or row["id"] in self.freed or over

    def teardown(self) -> None:
        """Nothing sticks: once all is silent and time has passed, whatever was taken has ended."""
        for _ in range(3):
            self.run(self.clock.forward(31))
            for _ in range(3):
                self.sweep()
            self.keep_keys()
        terms = audit.Terms.of(self.services.settings.leases)
        assert breaches(self.run(audit.run_checks(self.sql, terms))) == {}
        for _ in range(3):
            self.run(self.clock.forward(1001))
            self.sweep()
        stuck = self.run(
            self.sql.fetchval(
                "SELECT count(*) FROM execution_attempts a WHERE finished_at IS NULL AND "
                "(status = 'running' OR (status = 'leased' AND EXISTS (SELECT FROM runner_leases l "
                "WHERE l.attempt_id = a.id AND l.status <> 'released')))"
            )
        )
        assert stuck == 0
        self.terminal_never_changes()
