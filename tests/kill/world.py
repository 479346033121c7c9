"""Real service processes that may be killed, and bots that keep the runner's half of the contract.

Bots journal every touch of the world (between the 200 of a start and the sending of a completion),
so that a test can ask what really ran, and not only what the service believes.
"""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import httpx

from tests.driver import new_attempt

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class ServiceProcess:
    """One `serve` process on a port of its own, which can be killed and started again."""

    def __init__(self, environment: dict[str, str], log: Path, ca_file: Path | None = None) -> None:
        self.port = free_port()
        self.url = f"{'https' if ca_file else 'http'}://127.0.0.1:{self.port}"
        self._verify = ssl.create_default_context(cafile=ca_file) if ca_file else True
        self._log = log
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("EXECUTION_PLANE_")},
            **environment,
            "EXECUTION_PLANE_SERVER__PORT": str(self.port),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app", "serve"],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    async def start(self) -> "ServiceProcess":
        self.spawn()
        await self.until_ready()
        return self

    async def until_ready(self) -> None:
        async with httpx.AsyncClient(verify=self._verify) as client:
            for _ in range(1200):
                with suppress(httpx.HTTPError):
                    if (await client.get(f"{self.url}/readyz")).status_code == 200:
                        return
                if self._process is not None and self._process.poll() is not None:
                    return  # killed again already, by a failpoint
                await asyncio.sleep(0.05)
        raise AssertionError(self._log.read_text()[-3000:])

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number in {signal.SIGKILL, signal.SIGTERM}:
            self._process.wait(20)

    async def stop(self, patience: float = 20) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        return await asyncio.to_thread(self._process.wait, patience)

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def log_text(self) -> str:
        return self._log.read_text()


@dataclass
class Touch:
    """One stretch of work on the world."""

    attempt_id: str
    lease_number: int
    key: str | None
    began: float
    ended: float | None = None


@dataclass
class Journal:
    """What bots did, and what they were told."""

    touches: list[Touch] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)

    def assert_nothing_ran_twice(self) -> None:
        """No two touches of one attempt or one key overlap; nothing was begun under two leases."""
        for same in ("attempt_id", "key"):
            by: dict[str, list[Touch]] = {}
            for touch in self.touches:
                name = getattr(touch, same)
                if name is not None:
                    by.setdefault(name, []).append(touch)
            for touches in by.values():
                touches.sort(key=lambda one: one.began)
                for before, after in pairwise(touches):
                    assert before.ended is not None
                    assert before.ended <= after.began, (before, after)
        leases = {(touch.attempt_id, touch.lease_number) for touch in self.touches}
        assert len(leases) == len({touch.attempt_id for touch in self.touches})


class Caller:
    """Repeats every call until it has an answer: all writes are made to be repeated."""

    def __init__(self, urls: list[str], token: str, number: int = 0) -> None:
        self._urls = urls
        self._next = number
        self.sent_at = 0.0
        self._headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(timeout=15)

    async def call(
        self, method: str, path: str, *, patience: float = 60, **more: Any
    ) -> httpx.Response:
        """The first answer that is neither lost nor a 5xx, from whichever instance."""
        headers = {**self._headers, **more.pop("headers", {})}
        deadline = monotonic() + patience
        while True:
            url = self._urls[self._next % len(self._urls)]
            self.sent_at = monotonic()
            try:
                answer = await self._http.request(method, url + path, headers=headers, **more)
                if answer.status_code < 500:
                    return answer
            except httpx.HTTPError:
                pass
            self._next += 1
            assert monotonic() < deadline, f"{method} {path} had no answer for {patience} s"
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self._http.aclose()


class Bot:
    """A runner that claims, works for a moment and completes, whatever becomes of the service."""

    def __init__(self, caller: Caller, journal: Journal, *, work_seconds: float = 0.01) -> None:
        self.caller, self.journal = caller, journal
        self.id = f"bot-{uuid4().hex[:8]}"
        self.session_id = str(uuid4())
        self._work_seconds = work_seconds

    async def register(self, **profile: Any) -> None:
        body = {
            "session_id": self.session_id,
            "runner_kind": "ssh",
            "version": "1.0.0",
            "capabilities": ["ssh.command.run"],
            **profile,
        }
        answer = await self.caller.call("PUT", f"/v1/runners/{self.id}", json=body)
        assert answer.status_code == 200, answer.text

    async def run_until(self, done: asyncio.Event) -> None:
        await self.register()
        while not done.is_set():
            await self.work_once(wait_seconds=1)

    async def work_once(self, wait_seconds: float) -> None:
        body = {
            "session_id": self.session_id,
            "request_id": str(uuid4()),
            "wait_seconds": wait_seconds,
        }
        answer = await self.caller.call("POST", f"/v1/runners/{self.id}/leases:claim", json=body)
        assert answer.status_code == 200, answer.text
        for claimed in answer.json()["leases"]:
            if claimed["lease_token"] is not None:
                await self._work(claimed)

    async def _work(self, claimed: dict[str, Any]) -> None:
        lease, headers = claimed["lease"], {"Lease-Token": claimed["lease_token"]}
        path = f"/v1/leases/{lease['id']}"
        started = await self.caller.call("POST", f"{path}:start", headers=headers)
        self._note("start", started)
        if started.status_code != 200:
            return
        if monotonic() - self.caller.sent_at > started.json()["lease_seconds"] / 2:
            self.journal.told["start too late"] += 1
            return
        touch = Touch(
            lease["attempt_id"],
            lease["lease_number"],
            claimed["attempt"]["concurrency_key"],
            monotonic(),
        )
        self.journal.touches.append(touch)
        await asyncio.sleep(self._work_seconds)
        touch.ended = monotonic()
        completed = await self.caller.call(
            "POST", f"{path}:complete", headers=headers, json={"outcome": "succeeded"}
        )
        self._note("complete", completed)

    def _note(self, verb: str, answer: httpx.Response) -> None:
        reason = answer.json().get("reason", "") if answer.status_code != 200 else ""
        self.journal.told[f"{verb} {answer.status_code} {reason}".strip()] += 1


async def create_many(caller: Caller, count: int, **fields: Any) -> list[str]:
    """Create attempts in batches; every repeat finds what the one before created."""
    ids: list[str] = []
    for start in range(0, count, 100):
        batch = [new_attempt(**fields) for _ in range(min(100, count - start))]
        answer = await caller.call("POST", "/v1/attempts:batch", json={"attempts": batch})
        ids += [item["attempt"]["id"] for item in answer.json()["items"]]
    return ids
