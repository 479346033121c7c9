"""What the load generator reaches, and what a creation costs, where nothing is done with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass

import psutil

from app.embedded.ports import free_port
from bench.fleet import cpu_seconds
from bench.wire import Wire
from tests.driver import new_attempt


@dataclass(frozen=True)
class Calls:
    """One call over and over."""

    a_second: float
    cpu_ms: float
    """Of the server, a call."""


async def creations(wires: list[Wire], seconds: float, process: psutil.Process) -> Calls:
    """The same creation over all these connections for so long."""
    end = time.perf_counter() + seconds
    count = 0

    async def one(wire: Wire) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await wire.call("create", "POST", "/v1/attempts", new_attempt())
            count += 1

    before, began = cpu_seconds(process), time.perf_counter()
    await asyncio.gather(*(one(wire) for wire in wires))
    took = time.perf_counter() - began
    return Calls(count / took, (cpu_seconds(process) - before) * 1000 / max(count, 1))


async def bare(kind: str, seconds: float, connections: int) -> Calls:
    """Creations against a server of bench/bare.py."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.bare", kind, str(port)])  # noqa: ASYNC220, S603
    try:
        wires = await _opened(f"http://127.0.0.1:{port}", connections)
        measured = psutil.Process(process.pid)
        await creations(wires, min(seconds, 1), measured)
        return await creations(wires, seconds, measured)
    finally:
        process.kill()
        process.wait()


async def _opened(url: str, connections: int) -> list[Wire]:
    for _ in range(200):
        try:
            return [await Wire(url).open() for _ in range(connections)]
        except OSError:
            await asyncio.sleep(0.05)
    raise AssertionError(url)
