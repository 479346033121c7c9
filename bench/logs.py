"""`make bench-logs`: masking, storing, reading, following and searching logs.

    python -m bench.logs [--mib 1024]

Ingest is measured beside raw puts of the same bytes to the same store in the same run. The log that
is read, followed and searched has `--mib` MiB; the memory shown is the service process's own.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import itertools
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any
from uuid import UUID, uuid4

import httpx
import structlog

from app.domain.commands import AppendLog
from app.domain.masking import Masker
from app.handlers.logs import append_log
from app.services import Services
from app.settings import load
from app.wiring import open_services
from bench.parts import Parts, described_machine
from tests.driver import new_attempt
from tests.masking import texts

MIB = 1 << 20
CHUNK = MIB
AT_ONCE = 4
INGEST_MIB = 96


def show(what: str, value: str) -> None:
    """One line of the table."""
    print(f"  {what:<58}{value:>18}", flush=True)


def masker_rate(log: bytes) -> float:
    """Megabytes a second of one core's time, in 1 MiB chunks; the best of three rounds."""
    masker = Masker()
    masker.prepare()
    best = 0.0
    for _ in range(3):
        begun = thread_time()
        for at in range(0, len(log), CHUNK):
            masker.mask_chunk(log[at : at + CHUNK], final=False)
        best = max(best, len(log) / 1e6 / (thread_time() - begun))
    return best


async def lease_of(parts: Parts, number: int = 0) -> tuple[str, str, dict[str, str]]:
    """A started lease: attempt, path, proof."""
    async with parts.client("control-plane", number) as control:
        created = await control.post("/v1/attempts", json=new_attempt(timeout_seconds=86_400))
        attempt_id = created.json()["id"]
    async with parts.client("runner", number) as runner:
        session_id, runner_id = str(uuid4()), f"bench-{uuid4().hex[:8]}"
        profile = {"session_id": session_id, "runner_kind": "ssh", "version": "1.0.0"}
        capabilities = {"capabilities": ["ssh.command.run"]}
        answer = await runner.put(f"/v1/runners/{runner_id}", json={**profile, **capabilities})
        answer.raise_for_status()
        claim = {"session_id": session_id, "request_id": str(uuid4()), "wait_seconds": 20}
        answer = await runner.post(f"/v1/runners/{runner_id}/leases:claim", json=claim)
        assert answer.status_code == httpx.codes.OK, answer.text
        [claimed] = answer.json()["leases"]
        proof = {"Lease-Token": claimed["lease_token"]}
        path = f"/v1/leases/{claimed['lease']['id']}"
        (await runner.post(f"{path}:start", headers=proof)).raise_for_status()
    return attempt_id, path, proof


async def send(
    client: httpx.AsyncClient, path: str, proof: dict[str, str], log: bytes, size: int
) -> None:
    """Send a log in chunks, one after the other, obeying the answers."""
    at = 0
    while at < len(log):
        chunk = log[at : at + size]
        query = {"offset": at, "final": at + size >= len(log)}
        url = f"{path}/logs/stdout"
        answer = await client.post(url, params=query, headers=proof, content=chunk)
        answer.raise_for_status()
        at = answer.json()["next_offset"]


async def at_once(work: Callable[[int], Awaitable[None]], count: int) -> float:
    """Seconds that so many pieces of work take together, some at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    begun = perf_counter()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return perf_counter() - begun


async def ingest(parts: Parts, services: Services, log: bytes) -> tuple[float, float]:
    """Megabytes a second: raw puts, and the same bytes through the service."""
    count = len(log) // CHUNK
    pieces = [log[number * CHUNK : (number + 1) * CHUNK] for number in range(count)]

    async def put(number: int) -> None:
        body = pieces[number]
        checksum = base64.b64encode(hashlib.sha256(body).digest()).decode()
        await services.objects.put(f"raw/{uuid4().hex}", body, checksum)

    raw, through = [], []
    share = len(log) // AT_ONCE
    for _ in range(3):
        raw.append(len(log) / 1e6 / await at_once(put, count))
        leases = [await lease_of(parts) for _ in range(AT_ONCE)]
        async with parts.client("runner") as client:
            begun = perf_counter()
            await asyncio.gather(
                *(
                    send(client, path, proof, log[number * share : (number + 1) * share], CHUNK)
                    for number, (_, path, proof) in enumerate(leases)
                )
            )
            through.append(len(log) / 1e6 / (perf_counter() - begun))
    return statistics.median(raw), statistics.median(through)


async def lag_while(work: Awaitable[Any]) -> tuple[float, float]:
    """The 99th percentile and the longest of the milliseconds by which a timer came late."""
    lags: list[float] = []
    task = asyncio.ensure_future(work)
    while not task.done():
        begun = perf_counter()
        await asyncio.sleep(0.002)
        lags.append((perf_counter() - begun - 0.002) * 1e3)
    await task
    lags.sort()
    return lags[int(len(lags) * 0.99)], lags[-1]


Share = tuple[str, dict[str, str], bytes]


async def shares_of(parts: Parts, log: bytes) -> list[Share]:
    """A part of the log for each of several leases; copying them belongs to nobody's measure."""
    leases = [await lease_of(parts) for _ in range(AT_ONCE)]
    size = len(log) // AT_ONCE
    return [
        (path, proof, log[number * size : (number + 1) * size])
        for number, (_, path, proof) in enumerate(leases)
    ]


async def append_all(services: Services, shares: Sequence[Share]) -> None:
    """Append them through the handler itself, all at once in this process."""

    async def one(path: str, proof: dict[str, str], part: bytes) -> None:
        at = 0
        while at < len(part):
            command = AppendLog(
                lease_id=UUID(path.rsplit("/", 1)[1]),
                lease_token=proof["Lease-Token"],  # type: ignore[arg-type]
                stream="stdout",  # type: ignore[arg-type]
                offset=at,
                data=part[at : at + CHUNK],
                final=at + CHUNK >= len(part),
            )
            at = (await append_log(services, command)).next_offset

    await asyncio.gather(*(one(*share) for share in shares))


def memory(pid: int, name: str) -> int:
    """MiB of a process: VmRSS now, or VmHWM at most."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) // 1024
    return 0


async def long_log(parts: Parts, mib: int) -> None:
    """Write, read, follow and search one long log, and show what the service needs for it."""
    service = parts.services[0]
    attempt_id, path, proof = await lease_of(parts)
    block = texts.ordinary(4 * MIB)[: 4 * MIB]
    block = block[: block.rindex(b"\n") + 1]
    begun = perf_counter()
    at = 0
    async with parts.client("runner") as client:
        for number in itertools.count():
            last = at + len(block) >= mib * MIB
            data = block + (b"the needle\n" if number % 16 == 0 or last else b"")
            data = data[-4 * MIB :]
            query = {"offset": at, "final": last}
            url = f"{path}/logs/stdout"
            answer = await client.post(url, params=query, headers=proof, content=data)
            answer.raise_for_status()
            at = answer.json()["next_offset"]
            if last:
                break
    show(f"{mib} MiB written by one sender", f"{at / 1e6 / (perf_counter() - begun):.0f} MB/s")
    show("  memory of the service, at most", f"{memory(service.pid, 'VmHWM')} MiB")
    async with parts.client("control-plane") as client:
        url = f"/v1/attempts/{attempt_id}/logs"
        for what, query in (("read", {}), ("followed", {"follow": "true"})):
            begun, size = perf_counter(), 0
            async with client.stream("GET", f"{url}/stdout", params=query) as answer:
                answer.raise_for_status()
                async for piece in answer.aiter_raw():
                    size += len(piece)
            seconds = perf_counter() - begun
            show(f"{size / MIB:.0f} MiB {what}", f"{size / 1e6 / seconds:.0f} MB/s")
            show("  memory of the service, at most", f"{memory(service.pid, 'VmHWM')} MiB")
        begun, hits, pages, token = perf_counter(), 0, 0, None
        while pages == 0 or token:
            params = {"q": "the needle", **({"page_token": token} if token else {})}
            answer = await client.get(f"{url}:search", params=params)
            answer.raise_for_status()
            hits, pages = hits + len(answer.json()["items"]), pages + 1
            token = answer.json()["next_page_token"]
        seconds = perf_counter() - begun
        show(f"searched, {hits} hits on {pages} pages", f"{size / 1e6 / seconds:.0f} MB/s")
        begun = perf_counter()
        answer = await client.get(f"{url}/stdout", params={"tail": 100})
        show("its last 100 lines", f"{(perf_counter() - begun) * 1e3:.0f} ms")
    show("  memory of the service, at most", f"{memory(service.pid, 'VmHWM')} MiB")


async def one_line(parts: Parts) -> float:
    """Seconds for 10 MB without a line end, through the service."""
    _, path, proof = await lease_of(parts)
    async with parts.client("runner") as client:
        begun = perf_counter()
        await send(client, path, proof, b"x" * 10_000_000, 4 * MIB)
        return perf_counter() - begun


@asynccontextmanager
async def in_this_process(parts: Parts) -> AsyncIterator[Services]:
    """The service's resources here, over the same parts and under the same prefix."""
    async with open_services(load(parts.variables())) as services:
        yield services


async def run(mib: int) -> None:
    """Print all figures."""
    print(described_machine())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    log = texts.ordinary(INGEST_MIB * MIB)
    rate = await asyncio.to_thread(masker_rate, log[: 20 * MIB])
    show("masking, 1 MiB chunks, a core", f"{rate:.0f} MB/s")
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            await parts.serve(
                LIMITS__MAX_LOG_BYTES_PER_ATTEMPT=8 * mib * MIB, LIMITS__MAX_FOLLOW_SECONDS=3000
            )
            async with in_this_process(parts) as services:
                raw, through = await ingest(parts, services, log)
                show(f"raw puts, 1 MiB, {AT_ONCE} at once", f"{raw:.0f} MB/s")
                show("the same bytes through HTTP, masked and recorded", f"{through:.0f} MB/s")
                show("  part of the raw throughput", f"{through / raw:.2f}")
                p99, longest = await lag_while(asyncio.sleep(3))
                show("event loop late (p99 / longest), idle", f"{p99:.1f} / {longest:.1f} ms")
                kinds = {"ordinary": log[: 32 * MIB]}
                for fragment in texts.REPEATED[:3]:
                    kinds[f"hostile {fragment[:12]!r}"] = texts.repeated(fragment, 8 * MIB)
                for name, text in kinds.items():
                    shares = await shares_of(parts, text)
                    p99, longest = await lag_while(append_all(services, shares))
                    show(f"event loop late, {name}", f"{p99:.1f} / {longest:.1f} ms")
                show("10 MB without a line end", f"{await one_line(parts):.2f} s")
            await long_log(parts, mib)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Measure logs on this machine.")
    parser.add_argument("--mib", type=int, default=256, help="size of the long log")
    asyncio.run(run(parser.parse_args().mib))


if __name__ == "__main__":
    main()
