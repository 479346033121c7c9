"""Receivers' URLs: https, one host, one port, nothing that two readers could read differently."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.domain.addresses import Rules, parse

MAX_URL = 2000

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<target>/[!$&-;=?-Z_a-z~%]*|\?[!$&-;=?-Z_a-z~%]*)?"
)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_MAX_HOST = 253
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where a callback goes."""

    scheme: str
    host: str
    """A name in lower case, or an address without brackets."""
    port: int
    target: str
    """Path and query."""

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def read(url: str, rules: Rules) -> Receiver:
    """The receiver that a URL names. ValueError, with a sentence, for one that may not be called.

    An address is judged here as well, a name only when it is connected to.
    """
    receiver = _parse(url)
    address = parse(receiver.host)
    allowed = rules.names(receiver.host) if address is None else rules.contains(address)
    if receiver.scheme != "https" and not allowed:
        raise ValueError("must begin with https://")
    if receiver.port not in rules.ports and not allowed:
        raise ValueError("has a port that callbacks may not be sent to")
    if address is not None and not rules.permits(receiver.host, address):
        raise ValueError("is an address that callbacks may not be sent to")
    return receiver


def _parse(url: str) -> Receiver:
    if len(url) > MAX_URL:
        raise ValueError(f"must be at most {MAX_URL} characters")
    if "@" in re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]:
        raise ValueError("must hold no credentials")
    found = _URL.fullmatch(url)
    if found is None or _BAD_ESCAPE.search(found["target"] or ""):
        raise ValueError("is not an absolute URL such as https://receiver.example/callbacks")
    host = found["host"].strip("[]").lower()
    if not found["host"].startswith("["):
        _check_name(host)
    elif parse(host) is None:
        raise ValueError("holds no IPv6 address between its brackets")
    port = int(found["port"]) if found["port"] else _PORTS[found["scheme"]]
    if not 0 < port < 2**16:
        raise ValueError("has no port that exists")
    target = found["target"] or "/"
    return Receiver(found["scheme"], host, port, target if target.startswith("/") else f"/{target}")


def _check_name(host: str) -> None:
    """Refuse what is an address in one of the spellings that resolvers still understand."""
    labels = host.split(".")
    if _NUMERIC.fullmatch(labels[-1]) and parse(host) is None:
        raise ValueError("spells an address in an unusual way")
    if len(host) > _MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("has a host that is no name")
