"""Which addresses a callback may be sent to: only public ones, and what an operator allowed.

An IPv6 address that carries an IPv4 one (mapped, translated, tunnelled) is judged by both. A name
is never judged: what it leads to is, each time a connection is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NEVER_BY_NAME = tuple(
    ip_network(text)
    for text in (
        *("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"),
        *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),  # metadata of three clouds
        *("::/128", "fe80::/10", "fec0::/10", "ff00::/8", "fd00:ec2::254/128", "fd20:ce::254/128"),
    )
)
"""Link-local, metadata, multicast: refused even where a host's name is allowed."""

_NOT_PUBLIC = tuple(
    ip_network(text)
    for text in (
        *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24"),
        *("192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24"),
        *("::1/128", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16"),
        "fc00::/7",
    )
)

_GLOBAL_V6 = ip_network("2000::/3")
_NAT64 = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
_ISATAP = 0x5EFE


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be called beside public addresses by https on an allowed port."""

    networks: tuple[Network, ...] = ()
    """Addresses that are allowed in any case."""
    hosts: tuple[str, ...] = ()
    """Names (`.suffix` for all below it) that may lead to private addresses."""
    ports: frozenset[int] = frozenset({443, 8443})
    """Ports of receivers that are not allowed by name or network."""

    def names(self, host: str) -> bool:
        """Whether this host was allowed by its name."""
        host = host.rstrip(".").lower()
        return any(
            host == allowed or (allowed.startswith(".") and host.endswith(allowed))
            for allowed in self.hosts
        )

    def contains(self, address: Address) -> bool:
        """Whether this address was allowed in any case."""
        return _within(address, self.networks)

    def permits(self, host: str, address: Address) -> bool:
        """Whether a connection to this address may be made for this host."""
        forms = [*embedded(address), address]
        if self.contains(address) and len(forms) == 1:
            return True
        if self.names(host):
            return not any(_within(form, _NEVER_BY_NAME) for form in forms)
        return all(self.contains(form) or is_public(form) for form in forms)


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == one.version and address in one for one in networks)


def is_public(address: Address) -> bool:
    """Whether this is an ordinary address of the Internet. What it carries is not looked at."""
    if _within(address, _NEVER_BY_NAME) or _within(address, _NOT_PUBLIC):
        return False
    if isinstance(address, IPv6Address):
        return address in _GLOBAL_V6 or bool(embedded(address))
    return address.is_global


def embedded(address: Address) -> Sequence[IPv4Address]:
    """The IPv4 addresses that an IPv6 address stands for: such a packet ends up there."""
    if isinstance(address, IPv4Address):
        return ()
    value = int(address)
    low = IPv4Address(value & 0xFFFFFFFF)
    found: list[IPv4Address] = []
    if (
        address.ipv4_mapped is not None
        or value >> 32 in {0, 0xFFFF0000}
        or _within(address, _NAT64)
    ):
        found.append(low)
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found += address.teredo
    if (value >> 32) & 0xFFFF == _ISATAP:
        found.append(low)
    return () if value in {0, 1} else found


def parse(text: str) -> Address | None:
    """The address that a URL's host is, in its plain form; None: it is a name."""
    try:
        return ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
