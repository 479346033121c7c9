"""One job from the message to the proof. Whatever is not as it must be ends it as `PartFailed`."""

from __future__ import annotations

import asyncio
import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.embedded.demo_client import Follower, StackClient, import_s3
from app.embedded.demo_job import MASKED, ZONE, DemoJob, expected
from app.embedded.demo_runner import DemoRunner
from app.embedded.demo_screen import Screen, tail
from app.embedded.failure import PartFailed

LOOK_EVERY_SECONDS = 0.02
FOLLOW_EVERY_SECONDS = 0.2
CREATE_SECONDS = 20.0
TAKE_SECONDS = 60.0
LOST_SECONDS = 120.0
SAME = "the same in script, API and bucket"
SAME_MASKED = "in API and bucket alike, with ***"
OPEN = ("queued", "leased", "running")


class Story:
    """The acts of one job, to be played in their order."""

    def __init__(
        self, state: dict[str, Any], client: StackClient, screen: Screen, zone: str = ZONE
    ) -> None:
        self.attempt: dict[str, Any] = {}
        self.runner = DemoRunner(state, zone)
        self._job = DemoJob(zone)
        self._state, self._client, self._screen = state, client, screen
        self._followers: list[Follower] = []

    async def publish(self) -> None:
        """Ask for the job by a message, and find the attempt that comes of it."""
        begun = time.monotonic()
        message_id = await self._client.publish(self._job.envelope())
        published = time.monotonic()
        self._screen.fact("published", f"message {message_id} to the topic", published - begun)
        path = f"/attempts?operation_id={self._job.operation_id}"
        while not self.attempt:
            found = (await self._client.read(path))["items"]
            key = self._job.key
            self.attempt = next((one for one in found if one["idempotency_key"] == key), {})
            if time.monotonic() > published + CREATE_SECONDS:
                log_file = Path(self._state["home"]) / "log" / "service.log"
                sentence = f"no attempt came of the message in {CREATE_SECONDS:.0f} s."
                raise PartFailed("pub/sub", sentence, log_file=log_file)
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        detail = f"attempt {tail(self.attempt['id'])} is queued, by a signed push"
        self._screen.fact("created", detail, time.monotonic() - published)
        names = ("stdout", "stderr")
        self._followers = [Follower(self._client, self.attempt["id"], name) for name in names]

    async def take(self) -> None:
        """Start a runner and see it begin."""
        begun = time.monotonic()
        await self.runner.start(await self._client.token("runner"))
        while self.attempt["status"] in {"queued", "leased"}:
            self.runner.check()
            if time.monotonic() > begun + TAKE_SECONDS:
                sentence = f"did not begin the attempt in {TAKE_SECONDS:.0f} s."
                raise PartFailed("runner", sentence, log_file=self.runner.log_file)
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            await self._look()
        detail = f"{self.attempt['runner_instance_id']}, a new process, lease 1"
        self._screen.fact("taken", detail, time.monotonic() - begun)
        self._screen.fact("working", "bash in a process of its own; its log, read while it runs:")
        self._screen.text()

    async def explain(self) -> None:
        """Show why nobody takes it."""
        begun = time.monotonic()
        found = await self._client.read(f"/attempts/{self.attempt['id']}/placement")
        self._screen.fact("waiting", "the service says why:", time.monotonic() - begun)
        for reason in found["reasons"]:
            self._screen.text(f"       {reason['reason']} | {reason['sentence']}")

    async def cancel(self) -> None:
        """Change one's mind while it works."""
        begun = time.monotonic()
        await self._client.cancel(self.attempt["id"], "the demonstration changed its mind")
        self._screen.fact("cancel asked", "by the control plane", time.monotonic() - begun)

    async def kill_runner(self) -> None:
        """Take its runner away, in the middle, and wait for what becomes of it."""
        self.runner.kill()
        [lease] = (await self._client.read(f"/attempts/{self.attempt['id']}/leases"))["items"]
        expires_at = datetime.fromisoformat(lease["expires_at"])
        self._screen.fact("runner killed", "kill -9; nobody tells the service")
        seconds = (expires_at - datetime.now(UTC)).total_seconds()
        self._screen.fact("silence", f"the lease runs out in {seconds:.0f} s ...")
        deadline = time.monotonic() + LOST_SECONDS
        while self.attempt["status"] in OPEN:
            if time.monotonic() > deadline:
                raise PartFailed("service", f"the lease did not end in {LOST_SECONDS:.0f} s.")
            await asyncio.sleep(FOLLOW_EVERY_SECONDS)
            await self._look()

    async def follow(self, until: str = "") -> None:
        """Show the log as it grows, read from the service, to its end or until a text has come."""
        while True:
            is_open = self.attempt["status"] in OPEN
            if is_open:
                self.runner.check()
            for follower in self._followers:
                lines = await follower.lines()
                self._screen.output(follower.stream, lines)
                if until and any(until in line for line in lines):
                    return
            if not is_open:
                return
            await asyncio.sleep(FOLLOW_EVERY_SECONDS)
            await self._look()

    def end(self, status: str, detail: str) -> None:
        """Say how it ended; any other status is a failure of the demonstration."""
        attempt = self.attempt
        if attempt["status"] != status:
            why = f"{attempt['failure_category']}: {attempt['failure_message']}"
            sentence = f"ended as {attempt['status']} ({why})"
            raise PartFailed("attempt", sentence, log_file=self.runner.log_file)
        seconds = _between(attempt["started_at"], attempt["finished_at"])
        self._screen.text()
        self._screen.fact("ended", f"{status}, {detail}", seconds)

    async def prove(self) -> None:
        """Compare what must be stored with what the service tells and what the bucket holds."""
        await asyncio.to_thread(import_s3)
        begun = time.monotonic()
        stored = await self._client.stored(self.attempt["id"])
        seconds = time.monotonic() - begun
        chunks = sum(map(len, stored.values()))
        size = sum(len(chunk) for chunks in stored.values() for chunk in chunks)
        detail = f"{size} bytes in {chunks} objects, read from the bucket"
        self._screen.fact("log is in S3", detail, seconds)
        for follower in self._followers:
            printed = expected()[follower.stream]
            _compare(follower.stream, printed, "the service tells", follower.text)
            _compare(
                follower.stream,
                printed,
                "the bucket holds",
                b"".join(stored.get(follower.stream, [])),
            )
            digest = hashlib.sha256(printed).hexdigest()
            same = SAME_MASKED if MASKED.encode() in printed else SAME
            self._screen.text(f"       {follower.stream} | sha256 {digest[:16]}...  {same}")

    async def tell(self) -> None:
        """The timeline, and what the runner said of its progress."""
        path = f"/attempts/{self.attempt['id']}"
        events = (await self._client.read(f"{path}/events?page_size=500"))["items"]
        self._screen.text()
        self._screen.timeline(events)
        beats = (await self._client.read(f"{path}/heartbeats?page_size=500"))["items"]
        told = (beat["progress_percent"] for beat in reversed(beats))
        steps = ", ".join(f"{percent} %" for percent in dict.fromkeys(told) if percent)
        self._screen.text(f"    {len(beats)} heartbeats, progress {steps}")

    async def _look(self) -> None:
        self.attempt = await self._client.read(f"/attempts/{self.attempt['id']}")


def _between(first: str, last: str) -> float:
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def _compare(stream: str, printed: bytes, who: str, found: bytes) -> None:
    if found != printed:
        sentence = f"{who} {len(found)} bytes of {stream} that are not the {len(printed)} printed."
        raise PartFailed("log", sentence)
