"""Slow and fat requests over real sockets: each meets its limit, and nobody else feels it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import perf_counter

import httpx
import psutil
import pytest

from tests.push.processes import PushService

LIMITS = {
    "SERVER__FIRST_BYTE_TIMEOUT_SECONDS": 0.3,
    "SERVER__HEAD_TIMEOUT_SECONDS": 0.4,
    "SERVER__BODY_WINDOW_SECONDS": 0.3,
    "SERVER__MIN_BODY_BYTES_PER_SECOND": 1000,
    "SERVER__MAX_CONNECTIONS_PER_SOURCE": 40,
    "SERVER__MAX_BODY_BYTES": 1024 * 1024,
}
MEGABYTE = 1024 * 1024


class Client:
    """A socket, and all that it was answered: read at once, for a reset takes away the rest."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answer = b""
        self._writer = writer
        self._arrived = asyncio.Event()
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(65_536):
                self.answer += piece
                self._arrived.set()

    async def send(self, data: bytes) -> bool:
        """False if the other side has hung up."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            return False
        return not self._reading.done()

    async def next_head(self) -> bytes:
        """The head of an answer, which is taken away."""
        async with asyncio.timeout(30):
            while b"\r\n\r\n" not in self.answer:
                self._arrived.clear()
                await self._arrived.wait()
        head, self.answer = self.answer, b""
        return head

    async def until_closed(self) -> bytes:
        """Everything that is answered until the connection ends."""
        async with asyncio.timeout(30):
            await asyncio.wait([self._reading])
        return self.answer

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


@asynccontextmanager
async def connected(service: PushService) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", service.port))
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def service(open_service) -> PushService:
    return await open_service(**LIMITS)


def status_of(answer: bytes) -> int | None:
    return int(answer.split()[1]) if answer else None


async def closed_for(service: PushService, cause: str) -> float:
    """How many connections were closed for this, by the service's own count."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{service.url}/metrics")).text
    for line in text.splitlines():
        if line.startswith(f'execution_plane_connections_refused_total{{cause="{cause}"}}'):
            return float(line.split()[-1])
    return 0


async def test_every_slow_or_fat_request_meets_its_limit(service, push_token):
    """One process for all of them, as it is outside."""
    before = psutil.Process(service.pid).memory_info().rss

    await _silent_socket_is_closed_without_a_word(service)
    await _dripped_head_is_given_up(service)
    await _dripped_empty_lines_are_given_up(service)
    await _fat_head_costs_nothing(service)
    await _many_fields_are_refused(service)
    await _dripped_body_is_given_up(service)
    await _fat_trailers_are_refused(service)
    await _body_in_pieces_is_no_slow_body(service)
    await _endless_body_is_answered_early_and_ends(service, push_token)
    await _connections_of_one_source_are_bounded(service)

    grown = psutil.Process(service.pid).memory_info().rss - before
    assert grown < 32 * MEGABYTE


async def _silent_socket_is_closed_without_a_word(service):
    began = perf_counter()
    async with connected(service) as client:
        answer = await client.until_closed()

    assert answer == b""
    assert 0.2 < perf_counter() - began < 10
    assert await closed_for(service, "silent") == 1


async def _dripped_head_is_given_up(service):
    began = perf_counter()
    async with connected(service) as client:
        await client.send(b"GET /livez HTTP/1.1\r\nx-slow: ")
        while await client.send(b"a"):
            await asyncio.sleep(0.05)
        answer = await client.until_closed()

    assert status_of(answer) == 408
    assert 0.3 < perf_counter() - began < 10
    assert await closed_for(service, "head-too-slow") == 1


async def _dripped_empty_lines_are_given_up(service):
    async with connected(service) as client:
        while await client.send(b"\r\n"):
            await asyncio.sleep(0.05)

    assert await closed_for(service, "head-too-slow") == 2


async def _fat_head_costs_nothing(service):
    """16 MiB in one field; meanwhile others are answered as ever."""
    async with connected(service) as client, httpx.AsyncClient() as other:
        await client.send(b"GET /livez HTTP/1.1\r\nauthorization: Bearer ")
        slowest = 0.0
        for _ in range(16):
            if not await client.send(b"a" * MEGABYTE):
                break
            began = perf_counter()
            assert (await other.get(f"{service.url}/livez")).status_code == 200
            slowest = max(slowest, perf_counter() - began)
        answer = await client.until_closed()

    assert status_of(answer) == 431
    assert slowest < 3
    assert await closed_for(service, "head-too-large") == 1


async def _many_fields_are_refused(service):
    async with connected(service) as client:
        await client.send(b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 50_000 + b"\r\n")
        await client.until_closed()
    async with connected(service) as client:
        await client.send(b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n")
        answer = await client.until_closed()
    async with connected(service) as client:
        fields = b"a: b\r\n" * 98 + b"connection: close\r\n"
        await client.send(b"GET /livez HTTP/1.1\r\n" + fields + b"\r\n")
        good = await client.until_closed()

    assert (status_of(answer), status_of(good)) == (431, 200)
    assert await closed_for(service, "head-too-large") == 3


async def _dripped_body_is_given_up(service):
    async with connected(service) as client:
        await client.send(
            b"POST /push/pubsub HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
        )
        began = perf_counter()
        while await client.send(b"a"):
            await asyncio.sleep(0.02)
        lasted = perf_counter() - began
        answer = await client.until_closed()

    assert status_of(answer) == 401  # it is refused before its body, which may not drip on
    assert 0.2 < lasted < 10
    assert await closed_for(service, "body-too-slow") == 1


async def _fat_trailers_are_refused(service):
    head = b"POST /push/pubsub HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: "
    async with connected(service) as client:
        await client.send(head)
        for _ in range(16):
            if not await client.send(b"a" * MEGABYTE):
                break
        await client.until_closed()

    assert await closed_for(service, "head-too-large") == 4


async def _body_in_pieces_is_no_slow_body(service):
    """A request after a request, each in two pieces: no timer of the first ends the second."""
    request = b"POST /push/pubsub HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
    async with connected(service) as client:
        for _ in range(3):
            await client.send(request + b"ab")
            await asyncio.sleep(0.15)
            await client.send(b"cd")
            assert status_of(await client.next_head()) == 401
            await asyncio.sleep(0.2)


async def _connections_of_one_source_are_bounded(service):
    async def stay() -> bytes:
        async with connected(service) as client:
            return await client.until_closed()

    staying = [asyncio.create_task(stay()) for _ in range(60)]
    answers = await asyncio.gather(*staying)

    assert set(answers) == {b""}
    assert await closed_for(service, "too-many") >= 1
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{service.url}/livez")).status_code == 200


async def _endless_body_is_answered_early_and_ends(service, token):
    """A gigabyte is promised; the answer comes at the limit, and soon nothing is read any more."""
    head = b"POST /push/pubsub HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + token.encode()
    piece = b"a" * 65_536
    ways = {
        b"content-length: 1000000000": piece,
        b"transfer-encoding: chunked": b"10000\r\n" + piece + b"\r\n",
    }
    for length, sent_again in ways.items():
        async with connected(service) as client:
            await client.send(head + b"\r\n" + length + b"\r\n\r\n")
            sent = 0
            while sent < 1_000_000_000 and await client.send(sent_again):
                sent += len(sent_again)
            answer = await client.until_closed()

        assert status_of(answer) == 413
        assert sent < 64 * MEGABYTE
    assert await closed_for(service, "body-after-answer") == 2
