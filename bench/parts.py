"""The parts that benchmarks run on: the embedded ones, with PostgreSQL as durable as by default."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import platform
from pathlib import Path
from typing import Any, Self

import httpx

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.embedded.issuer import Issuer, issuer_app
from app.embedded.objects import EmbeddedObjects
from app.embedded.postgres import EmbeddedPostgres, version
from app.embedded.serving import LoopbackServer
from app.store import migrate
from tests.conftest import environment
from tests.kill.world import ServiceProcess


def described_machine() -> str:
    """What every figure stands beside: the machine and the day."""
    cpu = platform.processor() or platform.machine()
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            cpu = text.split(":", 1)[1].strip()
            break
    load = os.getloadavg()[0]
    return (
        f"{dt.date.today()}, {os.cpu_count()} cores, {cpu}, Python {platform.python_version()}, "
        f"PostgreSQL {version()}, load {load:.1f} before"
    )


class Parts:
    """PostgreSQL, S3, an issuer and any number of service processes."""

    def __init__(self, folder: Path, **options: str) -> None:
        """`options` are further settings of the database server."""
        self._folder = folder
        self.postgres = EmbeddedPostgres(
            folder / "postgres", options={"max_connections": 200, **options}
        )
        self.objects = EmbeddedObjects(folder / "objects")
        self.issuer = Issuer()
        self._issuing = LoopbackServer(issuer_app(self.issuer))
        self.services: list[ServiceProcess] = []

    async def __aenter__(self) -> Self:
        await self.postgres.start()
        await self.objects.start()
        await self._issuing.start()
        await asyncio.to_thread(migrate.upgrade, self.postgres.dsn)
        return self

    def variables(self, **settings: object) -> dict[str, str]:
        """What a service over these parts has in its environment."""
        certificates = f"{self._issuing.url}/oauth2/v1/certs"
        return environment(self.postgres.dsn, self.objects, (self.issuer, certificates), **settings)

    async def serve(self, **settings: object) -> ServiceProcess:
        """One more service process."""
        values = self.variables(**settings)
        service = ServiceProcess(values, self._folder / f"service-{len(self.services)}.log")
        self.services.append(service)
        return await service.start()

    def client(self, role: str, number: int = 0, **more: Any) -> httpx.AsyncClient:
        """A client of one service, in one role."""
        token = self.issuer.mint(ACCOUNTS[role], AUDIENCE)
        return httpx.AsyncClient(
            base_url=self.services[number].url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
            **more,
        )

    async def __aexit__(self, *_: object) -> None:
        for service in self.services:
            await service.stop()
        await self._issuing.stop()
        await self.objects.stop()
        await self.postgres.stop()
