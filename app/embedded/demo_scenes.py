"""What there is to see: one scene a demonstration, each from the message to how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from app.embedded.demo_client import open_client
from app.embedded.demo_job import ZONE
from app.embedded.demo_screen import Screen, curl_lines, options_of
from app.embedded.demo_story import Story
from app.embedded.home import Home

HALF_WAY = "step 2"
DISTANT_ZONE = "moon"


@dataclass(frozen=True)
class Demonstration:
    """One scene, and the settings of the service that make it short."""

    what: str
    show: Callable[[dict[str, Any], Screen, Home], Awaitable[None]]
    settings: Mapping[str, str] = field(default_factory=dict)


async def _job(state: dict[str, Any], screen: Screen, home: Home) -> None:
    screen.text("\nOne job, from the message to the proof, on the real parts.\n")
    async with _story(state, screen) as story:
        await story.publish()
        await story.take()
        await story.follow()
        story.end("succeeded", "exit code 0")
        await story.prove()
        await story.tell()
    screen.text(
        "\nThe script printed a made-up credential on stderr. It was masked before anything"
    )
    screen.text("was stored: neither the database nor the bucket ever held it.\n")
    screen.rows("See it", curl_lines(state, options_of(home), story.attempt["id"]))
    screen.rows("Do it", ["docs/runner-protocol.md   be the runner yourself, with curl"])
    others = [f"make demo-{name:<8} {DEMONSTRATIONS[name].what}" for name in BREAKS]
    screen.rows("Break it", others)


async def _lost(state: dict[str, Any], screen: Screen, home: Home) -> None:
    screen.text("\nA runner dies in the middle of a job.\n")
    async with _story(state, screen) as story:
        await story.publish()
        await story.take()
        await story.follow(until=HALF_WAY)
        screen.text()
        await story.kill_runner()
        story.end("lost", story.attempt["failure_category"])
        await story.tell()
    screen.text("\nIt is not run again: it had started, and its type is not declared safe to begin")
    screen.text("twice. What it printed before is kept:\n")
    screen.rows("See it", curl_lines(state, options_of(home), story.attempt["id"]))


async def _cancel(state: dict[str, Any], screen: Screen, home: Home) -> None:
    screen.text("\nA job is cancelled while it works.\n")
    async with _story(state, screen) as story:
        await story.publish()
        await story.take()
        await story.follow(until=HALF_WAY)
        screen.text()
        await story.cancel()
        await story.follow()
        story.end("cancelled", "by its runner's own word")
        await story.tell()
    screen.text()
    screen.rows("See it", curl_lines(state, options_of(home), story.attempt["id"]))


async def _stuck(state: dict[str, Any], screen: Screen, home: Home) -> None:
    screen.text(f"\nA job that asks for the zone {DISTANT_ZONE}, where no runner is.\n")
    async with _story(state, screen, DISTANT_ZONE) as story:
        await story.publish()
        await story.explain()
        screen.text("\n  So a runner is started there.\n")
        await story.take()
        await story.follow()
        story.end("succeeded", "exit code 0")
        await story.tell()
    screen.text()
    screen.rows("See it", curl_lines(state, options_of(home), story.attempt["id"]))


@asynccontextmanager
async def _story(state: dict[str, Any], screen: Screen, zone: str = ZONE) -> AsyncIterator[Story]:
    """A story whose runner ends with it; at once where the story does not come to its end."""
    async with open_client(state) as client:
        story, is_told = Story(state, client, screen, zone), False
        try:
            yield story
            is_told = True
        finally:
            await story.runner.stop(at_once=not is_told)


# An own stack has short leases for it, so that nobody waits for half a minute.
_SHORT_LEASES = {"EXECUTION_PLANE_LEASES__LEASE_SECONDS": "10"}
BREAKS = ("lost", "cancel", "stuck")
DEMONSTRATIONS: dict[str, Demonstration] = {
    "job": Demonstration("one job, from the message to the proof", _job),
    "lost": Demonstration("its runner is killed half-way", _lost, _SHORT_LEASES),
    "cancel": Demonstration("it is cancelled half-way", _cancel),
    "stuck": Demonstration("it asks for what no runner has", _stuck),
}
