"""What callers do, in their own verbs, over the real HTTP application."""

import base64
import hashlib
import json
from typing import Any
from uuid import uuid4

import httpx


def new_attempt(**fields: Any) -> dict[str, Any]:
    """The request of an attempt that any ssh runner can take."""
    return {
        "operation_id": str(uuid4()),
        "plan_id": str(uuid4()),
        "plan_node_id": str(uuid4()),
        "node_run_id": str(uuid4()),
        "idempotency_key": uuid4().hex,
        "job_type": "ssh.command.run",
        "job_spec_ref": {"command": "uptime"},
        "timeout_seconds": 600,
        **fields,
    }


class Caller:
    """Somebody with a token."""

    def __init__(self, http: httpx.AsyncClient, token: str) -> None:
        self.http = http
        self.headers = {"Authorization": f"Bearer {token}"}

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {**self.headers, **more.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, **more)


class Control(Caller):
    """The control plane."""

    async def create(self, **fields: Any) -> dict[str, Any]:
        answer = await self.try_create(**fields)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def try_create(self, **fields: Any) -> httpx.Response:
        return await self.call("POST", "/v1/attempts", json=new_attempt(**fields))

    async def get(self, attempt_id: str) -> dict[str, Any]:
        answer = await self.call("GET", f"/v1/attempts/{attempt_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def status(self, attempt_id: str) -> str:
        return (await self.get(attempt_id))["status"]

    async def events(self, attempt_id: str) -> list[dict[str, Any]]:
        answer = await self.call("GET", f"/v1/attempts/{attempt_id}/events?page_size=500")
        assert answer.status_code == 200, answer.text
        return answer.json()["items"]

    async def event_types(self, attempt_id: str) -> list[str]:
        return [event["event_type"] for event in await self.events(attempt_id)]

    async def list_of(self, attempt_id: str, what: str) -> list[dict[str, Any]]:
        answer = await self.call("GET", f"/v1/attempts/{attempt_id}/{what}")
        assert answer.status_code == 200, answer.text
        return answer.json()["items"]

    async def read_log(
        self, attempt_id: str, stream: str = "stdout", **more: Any
    ) -> httpx.Response:
        return await self.call("GET", f"/v1/attempts/{attempt_id}/logs/{stream}", **more)


class Held:
    """A lease that a runner holds, and what can be done with it."""

    def __init__(self, runner: "RunnerClient", claimed: dict[str, Any]) -> None:
        self.runner = runner
        self.lease = claimed["lease"]
        self.attempt = claimed["attempt"]
        self.token = claimed["lease_token"]
        self.continuation = claimed["continuation"]
        self.sequence = 0
        self.artifact_id = ""

    @property
    def id(self) -> str:
        return self.lease["id"]

    @property
    def attempt_id(self) -> str:
        return self.lease["attempt_id"]

    async def post(self, verb: str, body: Any = None, token: str | None = None) -> httpx.Response:
        headers = {"Lease-Token": self.token if token is None else token}
        return await self.runner.call(
            "POST", f"/v1/leases/{self.id}:{verb}", headers=headers, json=body or {}
        )

    async def start(self) -> httpx.Response:
        return await self.post("start")

    async def beat(self, **fields: Any) -> httpx.Response:
        self.sequence += 1
        body = {"session_id": self.runner.session_id, "sequence": self.sequence, **fields}
        return await self.post("heartbeat", body)

    async def complete(self, outcome: str = "succeeded", **fields: Any) -> httpx.Response:
        if outcome == "failed":
            fields.setdefault("failure_category", "command_failed")
        return await self.post("complete", {"outcome": outcome, **fields})

    async def log(
        self, data: bytes, offset: int, stream: str = "stdout", *, final: bool = False
    ) -> httpx.Response:
        return await self.runner.call(
            "POST",
            f"/v1/leases/{self.id}/logs/{stream}",
            params={"offset": offset, "final": final},
            headers={"Lease-Token": self.token},
            content=data,
        )

    async def log_json(
        self, data: bytes, offset: int, stream: str = "stdout", **fields: Any
    ) -> httpx.Response:
        """The same as JSON, with values to `mask`."""
        return await self.runner.call(
            "POST",
            f"/v1/leases/{self.id}/logs/{stream}",
            headers={"Lease-Token": self.token},
            json={"offset": offset, "data_base64": base64.b64encode(data).decode(), **fields},
        )

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        """A call below the lease, with its token."""
        headers = {"Lease-Token": self.token, **more.pop("headers", {})}
        return await self.runner.call(
            method, f"/v1/leases/{self.id}{path}", headers=headers, **more
        )

    async def try_ticket(self, body: bytes, **fields: Any) -> httpx.Response:
        return await self.call("POST", "/artifacts", json=announced(body, **fields))

    async def ticket(self, body: bytes, **fields: Any) -> dict[str, Any]:
        answer = await self.try_ticket(body, **fields)
        assert answer.status_code in {200, 201}, answer.text
        return answer.json()

    async def send(self, ticket: dict[str, Any], body: bytes) -> httpx.Response:
        """Send the body through the service."""
        return await self.call("PUT", f"/artifacts/{ticket['artifact_id']}/content", content=body)

    async def upload(self, body: bytes, **fields: Any) -> str:
        """The id of an artifact whose body is there."""
        ticket = await self.ticket(body, **fields)
        answer = await self.send(ticket, body)
        assert answer.status_code == 200, answer.text
        return ticket["artifact_id"]

    async def output(self, name: str, artifact_id: str, **fields: Any) -> httpx.Response:
        body = {"name": name, "output_type": "json", "artifact_id": artifact_id, **fields}
        return await self.call("POST", "/outputs", json=body)

    async def evidence(self, **fields: Any) -> httpx.Response:
        body = {
            "request_id": str(uuid4()),
            "evidence_type": "probe",
            "status": "passed",
            "subject_ref": "host-1",
            **fields,
        }
        return await self.call("POST", "/evidence", json=body)


def announced(body: bytes, **fields: Any) -> dict[str, Any]:
    """The request for a ticket for this body."""
    return {
        "request_id": str(uuid4()),
        "byte_size": len(body),
        "digest": f"sha256:{hashlib.sha256(body).hexdigest()}",
        **fields,
    }


class RunnerClient(Caller):
    """One session of a runner."""

    def __init__(self, http: httpx.AsyncClient, token: str, **profile: Any) -> None:
        super().__init__(http, token)
        self.id = profile.pop("id", f"runner-{uuid4().hex[:8]}")
        self.session_id = str(uuid4())
        self.profile = {
            "runner_kind": "ssh",
            "version": "1.0.0",
            "capabilities": ["ssh.command.run"],
            **profile,
        }

    async def try_register(self, **fields: Any) -> httpx.Response:
        body = {"session_id": self.session_id, **self.profile, **fields}
        return await self.call("PUT", f"/v1/runners/{self.id}", json=body)

    async def register(self, **fields: Any) -> "RunnerClient":
        answer = await self.try_register(**fields)
        assert answer.status_code == 200, answer.text
        return self

    async def try_claim(self, **fields: Any) -> httpx.Response:
        body = {"session_id": self.session_id, "request_id": str(uuid4()), **fields}
        return await self.call("POST", f"/v1/runners/{self.id}/leases:claim", json=body)

    async def claim_all(self, **fields: Any) -> list[Held]:
        answer = await self.try_claim(**fields)
        assert answer.status_code == 200, answer.text
        return [Held(self, claimed) for claimed in answer.json()["leases"]]

    async def claim(self, **fields: Any) -> Held:
        [held] = await self.claim_all(**fields)
        return held

    async def start(self, **fields: Any) -> Held:
        held = await self.claim(**fields)
        answer = await held.start()
        assert answer.status_code == 200, answer.text
        return held


class Pusher(Caller):
    """Pub/Sub, as far as one delivery goes."""

    def __init__(self, http: httpx.AsyncClient, token: str, subscription: str) -> None:
        super().__init__(http, token)
        self.subscription = subscription

    async def push(self, to: str, data: Any, **message: Any) -> httpx.Response:
        """Push an envelope; `id` is the envelope's, anything else the message's."""
        identifier = message.pop("id", None) or uuid4()
        return await self.push_envelope(
            {"v": 1, "to": to, "id": str(identifier), "data": data}, **message
        )

    async def push_envelope(self, envelope: Any, **message: Any) -> httpx.Response:
        return await self.push_bytes(json.dumps(envelope).encode(), **message)

    async def push_bytes(self, data: bytes, **message: Any) -> httpx.Response:
        return await self.push_message(
            {"data": base64.b64encode(data).decode(), "messageId": uuid4().hex, **message}
        )

    async def push_message(self, message: Any, **body: Any) -> httpx.Response:
        content = {"message": message, "subscription": self.subscription, **body}
        return await self.call("POST", "/push/pubsub", json=content)
