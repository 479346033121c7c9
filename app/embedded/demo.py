"""`make demo`: a job from the message to the proof, on the stack that runs or on one of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from app.embedded import environment
from app.embedded.demo_scenes import DEMONSTRATIONS, Demonstration
from app.embedded.demo_screen import Screen
from app.embedded.failure import PartFailed
from app.embedded.home import Home
from app.embedded.report import Report, shown
from app.embedded.stack import Stack

START_SECONDS = 60.0
INTERRUPTED = 130

Opened = tuple[dict[str, Any], asyncio.Future[None]]


async def run_demo(root: Path, name: str, scenario: str) -> int:
    """Show one demonstration; the exit status is 0 only if all was as it should be.

    A stack that runs from `root` is used and left running; otherwise one is started and stopped.
    """
    report = Report()
    task = asyncio.ensure_future(_show(Home(root, name), report, DEMONSTRATIONS[scenario]))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except PartFailed as failed:
        report.failure(failed)
        report.text("\nThe demonstration failed.")
        return 1
    except asyncio.CancelledError:
        report.text("\nStopped before its end.")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  a part that broke: a sentence says more than a trace
        sentence = f"{type(error).__name__}: {error}".splitlines()[0]
        report.failure(PartFailed("demo", sentence, mend="make run"))
        return 1
    return 0


async def _show(home: Home, report: Report, demonstration: Demonstration) -> None:
    is_ours = not home.is_used()
    opened = _started(home, report, demonstration) if is_ours else _found(home, report)
    async with opened as (state, watching):
        screen = Screen(report)
        showing = asyncio.ensure_future(demonstration.show(state, screen, home))
        try:
            await asyncio.wait({showing, watching}, return_when=asyncio.FIRST_COMPLETED)
            (showing if showing.done() else watching).result()
        finally:
            showing.cancel()
            await asyncio.wait({showing})
    if is_ours:
        screen.text('\nThe stack ended with this. Keep one with "make run"; its data is the same.')


@asynccontextmanager
async def _found(home: Home, report: Report) -> AsyncIterator[Opened]:
    """The stack that runs, and what ends with an error when it does not run any more."""
    state = await _running(home)
    report.text(f"Using the stack that runs from {shown(home.path)}.")
    watching = asyncio.ensure_future(_watch(home))
    try:
        yield state, watching
    finally:
        watching.cancel()


async def _watch(home: Home) -> None:
    while home.is_used():  # noqa: ASYNC110  a lock of another process
        await asyncio.sleep(0.5)
    raise PartFailed("stack", "ended in the middle of this.", mend="make run")


@asynccontextmanager
async def _started(
    home: Home, report: Report, demonstration: Demonstration
) -> AsyncIterator[Opened]:
    """A stack of our own, and what ends with an error when a part of it ends."""
    begun = time.monotonic()
    report.title(environment.version())
    for variable, value in demonstration.settings.items():
        os.environ.setdefault(variable, value)
    stack = Stack(home, report, None)
    try:
        await stack.start()
        report.text(f"\n{stack.sentence(time.monotonic() - begun)}")
        watching = asyncio.ensure_future(stack.watch(asyncio.sleep(0)))
        yield stack.state, watching
        watching.cancel()
    finally:
        await stack.stop()


async def _running(home: Home) -> dict[str, Any]:
    """What runs from this home; one that is just starting is waited for."""
    deadline = time.monotonic() + START_SECONDS
    while not (state := home.running()):
        if state is None or time.monotonic() > deadline:
            raise PartFailed("stack", f"that of {shown(home.path)} did not start.", mend="make run")
        await asyncio.sleep(0.1)
    return state
