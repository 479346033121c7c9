"""Artifacts in depth, against the embedded store or any other: see `docs/storage.md`.

`STORAGE_TEST_ENDPOINT` (with `_BUCKET`, `_ACCESS_KEY_ID`, `_SECRET_ACCESS_KEY`, and where they are
needed `_REGION`, `_CHECKSUM`, `_DELETES`, `_ADDRESSING_STYLE`) names another store.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import uuid4

import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.objects.store import ObjectStore
from app.services import Services
from app.settings import ObjectSettings, load
from app.wiring import open_services
from tests.conftest import environment, serve_in_process
from tests.driver import Control, Held, RunnerClient

_PREFIX = "STORAGE_TEST_"


@dataclass(frozen=True)
class ForeignStore:
    """A store that somebody else runs, in the words of the embedded one."""

    endpoint_url: str
    bucket: str
    access_key_id: str
    secret_access_key: str


@pytest.fixture(scope="session")
async def objects(request) -> AsyncIterator[object]:
    """The store that the tests are run against."""
    if f"{_PREFIX}ENDPOINT" not in os.environ:
        yield await _embedded(request)
        return
    yield ForeignStore(
        os.environ[f"{_PREFIX}ENDPOINT"],
        *(os.environ[_PREFIX + name] for name in ("BUCKET", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY")),
    )
