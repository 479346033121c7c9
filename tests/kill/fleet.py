"""Many instances over one database, each behind a proxy of its own, and Pub/Sub between them."""

import asyncio
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import asyncpg
import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.commands.audit import Terms, run_checks
from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION, TOPIC
from app.embedded.pubsub import LocalPubSub
from app.embedded.serving import LoopbackServer
from app.settings import LeaseSettings
from app.store import leaders
from tests.conftest import environment
from tests.driver import new_attempt
from tests.kill.proxy import DatabaseProxy
from tests.kill.world import Caller, ServiceProcess


class Instance:
    """A service process, its way to the database, and what the leader's row calls it."""

    def __init__(self, label: str, service: ServiceProcess, proxy: DatabaseProxy) -> None:
        self.label, self.service, self.proxy = label, service, proxy
        self.busy = False


class Fleet:
    """`open` it, `start` instances, do to them what you like, `settle`, and look."""

    def __init__(self, database: str, objects, issuer, folder: Path, ttl: float = 2) -> None:
        self.database, self.ttl = database, ttl
        self.tell: Callable[[str], None] = lambda _: None
        self._objects, self._issuer, self._folder = objects, issuer, folder
        self.instances: list[Instance] = []
        self._callers: list[Caller] = []
        self._http = httpx.AsyncClient(timeout=10)
        self._dice = random.Random(7)

    async def open(self, *, topic: bool = True) -> "Fleet":
        """With a topic, messages go over a Pub/Sub that pushes to whichever instance answers."""
        self.sql = await asyncpg.connect(self.database)
        self._settings: dict[str, object] = {"SCHEDULER__LEADER_TTL_SECONDS": self.ttl}
        self._servers: list[LoopbackServer] = []
        self.pubsub: LocalPubSub | None = None
        if topic:
            await self._open_pubsub()
        return self

    async def _open_pubsub(self) -> None:
        pubsub = LocalPubSub(self._issuer[0].mint, ledger_size=None)
        relay = Starlette(routes=[Route("/push/pubsub", self._relay, methods=["POST"])])
        self._servers = [LoopbackServer(pubsub.app), LoopbackServer(relay)]
        for server in self._servers:
            await server.start()
        pubsub.create_topic(TOPIC)
        pubsub.create_subscription(
            SUBSCRIPTION,
            TOPIC,
            f"{self._servers[1].url}/push/pubsub",
            ACCOUNTS["pubsub"],
            AUDIENCE,
            retry_min_seconds=0.1,
            retry_max_seconds=1,
        )
        await pubsub.start()
        self.pubsub = pubsub
        self._settings |= {
            "SCHEDULER__TOPIC": TOPIC,
            "SCHEDULER__PUBSUB_URL": self._servers[0].url,
            "SCHEDULER__PUBSUB_CREDENTIALS": "none",
        }

    async def _relay(self, request: Request) -> Response:
        """To a random instance that is there; whether it can answer nobody asks."""
        there = [one for one in self.instances if not one.service.has_ended]
        if not there:
            return Response(status_code=503)
        instance = self._dice.choice(there)
        headers = {"authorization": request.headers["authorization"]}
        try:
            answer = await self._http.post(
                f"{instance.service.url}/push/pubsub",
                content=await request.body(),
                headers={**headers, "content-type": "application/json"},
            )
        except httpx.HTTPError:
            return Response(status_code=503)
        return Response(status_code=answer.status_code)

    async def start(self, count: int, label: str = "i", **settings: object) -> list[Instance]:
        """Start instances; `settings` are further `GROUP__FIELD` values."""
        made = []
        for number in range(count):
            name = f"{label}{number}"
            proxy = await DatabaseProxy(self.database).start()
            values = environment(
                proxy.url,
                self._objects,
                self._issuer,
                **{**self._settings, "SCHEDULER__LABEL": name, **settings},
            )
            service = ServiceProcess(values, self._folder / f"{name}.log")
            service.spawn()
            made.append(Instance(name, service, proxy))
        self.instances += made
        for one in made:
            await one.service.until_ready()
        return made

    def caller(self, role: str) -> Caller:
        token = self._issuer[0].mint(ACCOUNTS[role], AUDIENCE)
        self._callers.append(Caller([one.service.url for one in self.instances], token))
        return self._callers[-1]

    async def schedule(self, count: int, cron: str = "* * * * * *") -> list[str]:
        """Schedules of which every due time must have its message, however late."""
        caller, names = self.caller("control-plane"), []
        for number in range(count):
            data = new_attempt()
            del data["idempotency_key"]
            name = f"s{number}"
            body = {"cron": cron, "to": "attempt.create", "data": data, "misfire": "all"}
            body["misfire_limit"] = 500
            answer = await caller.call("PUT", f"/v1/schedules/{name}", json=body)
            assert answer.status_code in {200, 201}, answer.text
            names.append(name)
        return names

    # --- what is done to them --------------------------------------------------------------------

    async def leader(self) -> Instance | None:
        """The instance that leads now, if it is one."""
        held = await leaders.find(self.sql, leaders.SCHEDULER)
        if held is None or not held.alive:
            return None
        return next((one for one in self.instances if one.label == held.label), None)

    async def until_led(self, *, by: list[Instance] | None = None, seconds: float = 30) -> Instance:
        async with asyncio.timeout(seconds):
            while (found := await self.leader()) is None or (by and found not in by):
                await asyncio.sleep(0.02)
        return found

    async def kill(self, one: Instance) -> None:
        one.service.kill()
        await one.service.start()

    async def terminate(self, one: Instance) -> None:
        await one.service.stop(patience=90)  # many at once share few cores
        await one.service.start()

    async def freeze(self, one: Instance) -> None:
        one.service.kill(signal.SIGSTOP)
        await asyncio.sleep(self.ttl * self._dice.uniform(0.5, 2))
        one.service.kill(signal.SIGCONT)

    async def cut_off(self, one: Instance) -> None:
        one.proxy.cut()
        await asyncio.sleep(self.ttl * self._dice.uniform(0.5, 2))
        one.proxy.heal()

    async def torment(self, seconds: float) -> dict[str, int]:
        """At random moments do something at random, mostly to the leader; how often what."""
        verbs = [self.kill, self.freeze, self.cut_off, self.terminate]
        done: dict[str, int] = {}
        under_way: set[asyncio.Task[None]] = set()
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(self.ttl * self._dice.uniform(0.3, 1.5))
            idle = [one for one in self.instances if not one.busy]
            target = await self.leader() if self._dice.random() < 0.75 else None
            if target not in idle:
                target = self._dice.choice(idle)
            if len(idle) <= len(self.instances) // 2:
                continue  # some must be left that can lead
            verb = self._dice.choice(verbs)
            done[verb.__name__] = done.get(verb.__name__, 0) + 1
            under_way.add(asyncio.create_task(self._undisturbed(verb, target)))
        await asyncio.gather(*under_way)
        return done

    async def _undisturbed(self, verb, target: Instance) -> None:
        target.busy = True
        try:
            await verb(target)
        finally:
            target.busy = False

    # --- what is left ----------------------------------------------------------------------------

    async def settle(self, names: list[str], seconds: float = 60) -> None:
        """Let everything that came due be sent and carried out; then nothing comes due any more."""
        caller = self.caller("control-plane")
        behind = "SELECT count(*) FROM schedules WHERE next_fire_at <= now() - interval '3 s'"
        await self._until_none(behind, seconds)
        for name in names:
            await caller.call("POST", f"/v1/schedules/{name}:pause")
        await self._until_none("SELECT count(*) FROM outbox", seconds)
        if self.pubsub is not None:
            await self.pubsub.drained(seconds)

    async def _until_none(self, counted: str, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while left := await self.sql.fetchval(counted):
            assert asyncio.get_running_loop().time() < end, f"{counted}: still {left}"
            await asyncio.sleep(0.1)

    async def check_ticks(self) -> int:
        """Every second of every schedule has one fire, one message and one attempt; how many."""
        fires = await self.sql.fetch(
            "SELECT id, schedule, due_at, outcome FROM schedule_fires ORDER BY schedule, due_at"
        )
        by_name: dict[str, list[datetime]] = {}
        for fire in fires:
            assert fire["outcome"] == "fired", fire
            by_name.setdefault(fire["schedule"], []).append(fire["due_at"])
        for name, times in by_name.items():
            seconds = [round((time - times[0]).total_seconds()) for time in times]
            assert seconds == list(range(len(times))), name
        keys = await self.sql.fetch("SELECT idempotency_key FROM execution_attempts")
        assert sorted(row["idempotency_key"] for row in keys) == sorted(str(f["id"]) for f in fires)
        if self.pubsub is not None:
            entries = [one.envelope_id for one in self.pubsub.ledger]
            assert set(entries) == {str(fire["id"]) for fire in fires}
            self.tell(f"{len(entries) - len(fires)} messages went out twice, with the same id")
        return len(fires)

    async def check_terms(self) -> list[float]:
        """No term overlaps another and nothing was written under a stale one; the gaps, sorted."""
        findings = await run_checks(self.sql, Terms.of(LeaseSettings()))
        broken = {one.check.name: one.violations for one in findings if one.violations}
        assert broken == {}
        history = await leaders.list_terms(self.sql, leaders.SCHEDULER, 10_000)
        gaps = sorted(one.gap_seconds for one in history if one.gap_seconds is not None)
        ends = [one.ended_by for one in history]
        self.tell(
            f"{len(history)} terms ({ends.count('resignation')} handed over, "
            f"{ends.count('expiry')} ran out); gaps without a leader: "
            + ", ".join(f"{gap:.2f}" for gap in gaps)
            + f" s; aim {self.ttl + 1:g} s"
        )
        return gaps

    async def close(self) -> None:
        for caller in self._callers:
            await caller.close()
        for one in self.instances:
            one.proxy.heal()
            with suppress(ProcessLookupError):
                if not one.service.has_ended:
                    one.service.kill(signal.SIGCONT)
                    one.service.kill()
            await one.proxy.stop()
        if self.pubsub is not None:
            await self.pubsub.stop()
        for server in self._servers:
            await server.stop()
        await self._http.aclose()
        await self.sql.close()
