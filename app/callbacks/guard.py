"""Connections to nowhere but where callbacks may go, decided on the address that is connected to.

A name is resolved once for each connection; every address that it leads to must be allowed, and
the connection is made to one of those very addresses, so an answer that changes in between (DNS
rebinding) changes nothing. TLS still speaks of the name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network

import httpcore
from httpcore import SOCKET_OPTION, AsyncNetworkBackend, AsyncNetworkStream

from app.domain import addresses
from app.domain.addresses import Address, Rules

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

# Of their own: a name server that does not answer must hold up nothing else of the process.
_THREADS = ThreadPoolExecutor(32, thread_name_prefix="callback-names")
_MAX_ADDRESSES = 20

ALL_NETWORKS = (ip_network("0.0.0.0/0"), ip_network("::/0"))
"""For a target whose address an operator gave, in the settings."""


class AddressRefused(Exception):
    """The host leads to an address that callbacks may not be sent to."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, as the system resolves it. OSError if there are none."""
    found = await asyncio.get_running_loop().run_in_executor(
        _THREADS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class GuardedBackend(AsyncNetworkBackend):
    """What httpcore connects with; the rest of it (TLS, HTTP) does not know of the guard."""

    def __init__(self, rules: Rules, resolve: Resolve = resolve) -> None:
        self._rules = rules
        self._resolve = resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """Connect to the first address that answers. Raises AddressRefused before any packet."""
        error: Exception = httpcore.ConnectError("no address")
        for address in await self._addresses(host, port):
            try:
                return await self._inner.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
        raise error

    async def _addresses(self, host: str, port: int) -> list[Address]:
        literal = addresses.parse(host)
        if literal is not None:
            found: list[Address] = [literal]
        else:
            try:
                answers = await self._resolve(host, port)
            except (OSError, UnicodeError) as error:
                raise httpcore.ConnectError("the name is not known") from error
            found = [ip_address(answer) for answer in answers[:_MAX_ADDRESSES]]
        if not all(self._rules.permits(host, address) for address in found):
            raise AddressRefused
        return found
