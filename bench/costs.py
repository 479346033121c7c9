"""`make bench-costs`: what it costs to tell of requests: access log and traces.

Creations over 64 connections to one service after the other, all over the same database: nothing
is told; a line for each request, and for one in a hundred; a span for each request, and for one in
a hundred (`OTEL_TRACES_SAMPLER=parentbased_traceidratio`), sent to a server of this machine that
throws them away. Lines go to a file. Twice each, in turns; the better one counts.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path

import psutil
import uvloop

from app.embedded.serving import LoopbackServer
from bench.bare import asgi
from bench.ceiling import Calls, creations
from bench.fleet import Fleet
from bench.parts import Parts, described_machine
from tests.kill.world import ServiceProcess

CONNECTIONS = 64
TRACES = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
WAYS: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "nothing is told": ({"TELEMETRY__ACCESS_LOG": "false"}, {}),
    "a line each": ({"TELEMETRY__ACCESS_LOG": "true"}, {}),
    "a line in a hundred": (
        {"TELEMETRY__ACCESS_LOG": "true", "TELEMETRY__ACCESS_LOG_SHARE": "0.01"},
        {},
    ),
    "a span each": (
        {"TELEMETRY__ACCESS_LOG": "false"},
        {**TRACES, "OTEL_TRACES_SAMPLER_ARG": "1"},
    ),
    "a span in a hundred": (
        {"TELEMETRY__ACCESS_LOG": "false"},
        {**TRACES, "OTEL_TRACES_SAMPLER_ARG": "0.01"},
    ),
}


async def measured(parts: Parts, folder: Path, sink: str, way: str, seconds: float) -> Calls:
    """Creations against a service that tells in this way."""
    settings, variables = WAYS[way]
    traced = {**variables, "OTEL_EXPORTER_OTLP_ENDPOINT": sink} if variables else {}
    service = ServiceProcess(parts.variables(**settings) | traced, folder / "told.log")
    await service.start()
    try:
        process = psutil.Process(service.pid)
        fleet = Fleet(parts, service.url)
        wires = [await fleet.wire("control-plane", defaultdict(list)) for _ in range(CONNECTIONS)]
        await creations(wires, 1, process)
        return await creations(wires, seconds, process)
    finally:
        await service.stop()


async def main() -> None:
    """All of them, in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5, help="of each")
    seconds = parser.parse_args().seconds
    print(described_machine(), flush=True)
    best: dict[str, Calls] = {}
    with tempfile.TemporaryDirectory() as name:
        sink = LoopbackServer(asgi)
        await sink.start()
        async with Parts(Path(name)) as parts:
            for way in [*WAYS, *reversed(WAYS)]:
                found = await measured(parts, Path(name), sink.url, way, seconds)
                if way not in best or found.cpu_ms < best[way].cpu_ms:
                    best[way] = found
        await sink.stop()
    print(f"\n  {'creations, 64 connections':<34}{'a second':>10}{'CPU ms a call':>15}{'of it':>8}")
    least = best["nothing is told"].cpu_ms
    for way, found in best.items():
        share = found.cpu_ms / least
        print(f"  {way:<34}{found.a_second:>10.0f}{found.cpu_ms:>15.3f}{share:>8.2f}", flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner_:
        runner_.run(main())
