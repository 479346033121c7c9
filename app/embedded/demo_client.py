"""How the demonstration reaches publisher, service and object store: each by its own API.

It uses what any program outside would use, and nothing of the service's code.
"""

from __future__ import annotations

import asyncio
import base64
import shlex
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from app.embedded.failure import PartFailed

# How long an answer may be missing: the service may be started anew in the meantime.
PATIENCE_SECONDS = 45.0
VARIABLE = "EXECUTION_PLANE_OBJECTS__"


class StackClient:
    """The parts of one running stack, as `open_client` opens them."""

    def __init__(
        self, state: dict[str, Any], loopback: httpx.AsyncClient, api: httpx.AsyncClient
    ) -> None:
        self._state, self._loopback, self._api = state, loopback, api

    async def publish(self, envelope: bytes) -> str:
        """Publish one message to the service's topic; its id."""
        message = {"data": base64.b64encode(envelope).decode()}
        url = f"{self._state['pubsub_url']}/{self._state['topic']}:publish"
        answer = await self._loopback.post(url, json={"messages": [message]})
        if answer.status_code != HTTPStatus.OK:
            raise PartFailed("pub/sub", f"the message was refused: {answer.text}")
        return str(answer.json()["messageIds"][0])

    async def token(self, role: str) -> str:
        """An identity token of the role."""
        wanted = {"account": self._state["accounts"][role], "audience": self._state["audience"]}
        answer = await self._loopback.post(f"{self._state['issuer_url']}/token", json=wanted)
        return str(answer.json()["id_token"])

    async def sign_in(self, role: str) -> None:
        """Use a token of the role from now on."""
        self._api.headers["Authorization"] = f"Bearer {await self.token(role)}"

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """One answer of the service; it is asked again while it does not answer or cannot now."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = await self._api.get(f"/v1{path}", headers=headers)
                trouble = f"answered {answer.status_code}: {answer.text[:200]}"
            except httpx.TransportError as error:
                answer, trouble = None, f"did not answer ({type(error).__name__})"
            if answer is not None and answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
                return answer
            if time.monotonic() > deadline:
                raise PartFailed("service", f"{trouble}, for {PATIENCE_SECONDS:.0f} s.")
            await asyncio.sleep(0.5)

    async def read(self, path: str) -> Any:
        """The JSON of an answer that must be there."""
        answer = await self.get(path)
        if answer.status_code != HTTPStatus.OK:
            raise PartFailed("service", f"GET {path} was answered {answer.status_code}.")
        return answer.json()

    async def cancel(self, attempt_id: str, reason: str) -> None:
        """Ask that the attempt ends."""
        path = f"/v1/attempts/{attempt_id}:cancel"
        answer = await self._api.post(path, json={"reason": reason})
        if answer.status_code != HTTPStatus.OK:
            raise PartFailed("service", f"the cancel was answered {answer.status_code}.")

    async def stored(self, attempt_id: str) -> dict[str, list[bytes]]:
        """The attempt's log as it lies in the bucket, by stream, chunk after chunk.

        Asked of the object store alone: neither the service nor its database has a part in it.
        """
        objects = object_settings(Path(self._state["environment_file"]))
        found: dict[str, list[bytes]] = {}
        async with _s3(objects) as s3:
            prefix = f"{objects.get('prefix', 'execution-plane/')}logs/{attempt_id}/"
            listed = await s3.list_objects_v2(Bucket=objects["bucket"], Prefix=prefix)
            for key in sorted(entry["Key"] for entry in listed.get("Contents", [])):
                body = await s3.get_object(Bucket=objects["bucket"], Key=key)
                async with body["Body"] as stream:
                    found.setdefault(key.split("/")[-2], []).append(await stream.read())
        return found


class Follower:
    """Reads one stream of a log while it is written: each time the bytes that are new."""

    def __init__(self, client: StackClient, attempt_id: str, stream: str) -> None:
        self._client, self._path = client, f"/attempts/{attempt_id}/logs/{stream}"
        self.stream = stream
        self.text = b""
        self._shown = 0

    async def lines(self) -> list[str]:
        """The whole lines that are new."""
        answer = await self._client.get(self._path, Range=f"bytes={len(self.text)}-")
        if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
            self.text += answer.content
        elif answer.status_code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise PartFailed("service", f"reading {self.stream} was answered {answer.status_code}.")
        whole = self.text[self._shown :].rpartition(b"\n")[0]
        self._shown += len(whole) + 1 if whole else 0
        return whole.decode(errors="replace").splitlines()


@asynccontextmanager
async def open_client(state: dict[str, Any]) -> AsyncIterator[StackClient]:
    """The parts of the stack that this state describes, signed in as the control plane."""
    trust = ssl.create_default_context(cafile=state["ca_file"])
    async with (
        httpx.AsyncClient(timeout=10, trust_env=False) as loopback,
        httpx.AsyncClient(
            base_url=state["api_url"], verify=trust, timeout=10, trust_env=False
        ) as api,
    ):
        client = StackClient(state, loopback, api)
        await client.sign_in("control-plane")
        yield client


def object_settings(environment_file: Path) -> dict[str, str]:
    """The object store's settings by their short names, from the stack's lines for a shell."""
    words = shlex.split(environment_file.read_text())
    pairs = (word.split("=", 1) for word in words if word.startswith(VARIABLE))
    return {name.removeprefix(VARIABLE).lower(): value for name, value in pairs}


def import_s3() -> None:
    """Import what `stored` needs; slow, and so done while there is time."""
    import aiobotocore.session  # noqa: F401, PLC0415  see above


def _s3(objects: dict[str, str]) -> Any:
    from aiobotocore.config import AioConfig  # noqa: PLC0415  as above
    from aiobotocore.session import get_session  # noqa: PLC0415  as above

    return get_session().create_client(
        "s3",
        endpoint_url=objects["endpoint_url"],
        region_name=objects["region"],
        aws_access_key_id=objects["access_key_id"],
        aws_secret_access_key=objects["secret_access_key"],
        config=AioConfig(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
