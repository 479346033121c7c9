"""A credential in every field of every command, and a look at all that is left afterwards.

Rows, objects, answers, callbacks, log lines, spans and metrics are searched for it, also in what is
compressed or in base64. One secret is known by its form; a second one has none and is named in
`mask`.
"""

import base64
import gzip
import json
import re
import sys
import zlib
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION
from app.store import tables
from tests.callbacks.conftest import callbacks, receiver  # noqa: F401 - fixtures
from tests.conftest import serve_in_process
from tests.driver import Caller, Held, Pusher, RunnerClient, new_attempt
from tests.push.test_traces import exporting, logged, spans  # noqa: F401 - fixtures

KNOWN = "ghp_hunter2CanaryhUnter2cAnaryhuNter20001"
EXACT = "correct-horse-battery-staple-9"
SAID = f"login failed for {KNOWN}, so"


@pytest.fixture
def settings(make_settings):
    return make_settings(
        TELEMETRY__ACCESS_LOG="true",
        CALLBACKS__ALLOWED_NETWORKS=["127.0.0.0/8"],
    )


@pytest.fixture
def answers() -> list[str]:
    return []


@pytest.fixture
async def http(services, answers):
    """The application; everything that it answers is kept."""

    async def keep(response: httpx.Response) -> None:
        await response.aread()
        answers.append(f"{response.status_code} {response.headers} {response.text}")

    async with serve_in_process(services) as client:
        client.event_hooks = {"response": [keep]}
        yield client


@pytest.fixture
def callers(http, issuer):
    return {
        role: Caller(http, issuer[0].mint(account, AUDIENCE)) for role, account in ACCOUNTS.items()
    }


def everywhere(body: dict, path: str = "") -> list[dict]:
    """The body once for each text in it, with the secret in that place alone."""
    bodies = []
    for name, value in body.items():
        if isinstance(value, str):
            bodies += [{**body, name: KNOWN}, {**body, name: f"{value} {SAID}"}]
        elif isinstance(value, dict):
            bodies += [{**body, name: inner} for inner in everywhere(value)]
            bodies.append({**body, name: {**value, KNOWN: "x"}})
        elif isinstance(value, list):
            bodies.append({**body, name: [*value, KNOWN]})
    return [*bodies, {**body, KNOWN: "x"}]


SPEC = {"command": "uptime", "env": {"TOKEN": KNOWN}, "list": [SAID]}


async def ask_for_attempts(callers) -> None:
    control = callers["control-plane"]
    body = new_attempt(
        requested_by_service="control",
        concurrency_key="host-1",
        placement={"zone": "z", "labels": {"team": "a"}},
    )
    for one in [*everywhere(body), {**body, "job_spec_ref": SPEC}]:
        await control.call("POST", "/v1/attempts", json=one)
        await control.call("POST", "/v1/attempts:batch", json={"attempts": [one, KNOWN]})
    made = await control.call("POST", "/v1/attempts", json=new_attempt())
    path = f"/v1/attempts/{made.json()['id']}"
    await control.call("POST", f"{path}:cancel", json={"reason": SAID})
    await control.call("POST", f"/v1/operations/{uuid4()}:cancel", json={"reason": SAID})


async def run_a_job(callers, held: Held) -> None:
    runner = held.runner
    await held.start()
    for message in (SAID, KNOWN, {KNOWN: 1}):
        await held.beat(message=message, phase="executing")
    await held.post("heartbeat", {KNOWN: SAID})
    beat = {"session_id": runner.session_id, "sequence": 50, "message": SAID}
    beat |= {"lease_id": held.id, "lease_token": held.token}
    await runner.call("POST", "/v1/leases:heartbeat", json={"heartbeats": [beat, KNOWN]})
    await write_logs(held)
    await record(held)
    proof = {"lease_id": held.id, "lease_token": held.token}
    starts = {"starts": [proof, {**proof, KNOWN: SAID}, KNOWN]}
    await runner.call("POST", "/v1/leases:start", json=starts)
    result = {"exit_code": 0, "note": SAID, KNOWN: 1, "deep": [{"password": "hunter2-and-more"}]}
    await held.complete("failed", failure_message=SAID, result=result)
    await held.complete("failed", failure_message=f"{SAID} again", result=result)
    late = {**proof, "outcome": "failed", "failure_message": f"{SAID} late", "result": result}
    late |= {"failure_category": "internal"}
    await runner.call("POST", "/v1/leases:complete", json={"completions": [late, KNOWN]})


async def write_logs(held: Held) -> None:
    line = f"GET /x token={KNOWN}\n{SAID}\n".encode()
    for stream in ("stdout", "stderr", "event_stream", "system"):
        offset = (await held.log(line, 0, stream)).json()["next_offset"]
        for encoding, packed in (("gzip", gzip.compress(line)), ("zstd", zstd.compress(line))):
            answer = await held.runner.call(
                "POST",
                f"/v1/leases/{held.id}/logs/{stream}",
                params={"offset": offset},
                headers={"Lease-Token": held.token, "Content-Encoding": encoding},
                content=packed,
            )
            offset = answer.json()["next_offset"]
        for text in (EXACT, base64.b64encode(f"u:{EXACT}".encode()).decode(), quote(EXACT)):
            answer = await held.runner.call(
                "POST",
                f"/v1/leases/{held.id}/logs/{stream}",
                headers={"Lease-Token": held.token},
                json={
                    "offset": offset,
                    "mask": [EXACT],
                    "data_base64": base64.b64encode(f"it is {text} now\n".encode()).decode(),
                },
            )
            assert answer.status_code == 200, answer.text
            offset = answer.json()["next_offset"]
        await held.log(line, offset + 7, stream)  # a gap
        await held.log(b"", offset, stream, final=True)
    await held.log(line, 0, KNOWN)


async def record(held: Held) -> None:
    body = b'{"plan": 1}'
    for fields in ({"name": SAID}, {"content_type": f"text/{KNOWN}"}, {"digest": KNOWN}):
        await held.try_ticket(body, **fields)
    artifact = await held.upload(body, name=f"plan-{KNOWN}.json")
    await held.output(f"plan {KNOWN}", artifact, schema_ref=f"https://x.example/{KNOWN}")
    await held.evidence(subject_ref=f"https://u:{KNOWN}@web-7.example/", artifact_id=artifact)
    await held.evidence(evidence_type=KNOWN)


async def be_a_runner(callers, http, token) -> Held:
    bad = RunnerClient(http, token, id=KNOWN)
    await bad.try_register()
    runner = RunnerClient(http, token, labels={"rack": KNOWN, "zone": "x"})
    for profile in ({"zone": KNOWN}, {"version": KNOWN}, {"capabilities": [KNOWN]}):
        await RunnerClient(http, token, **profile).try_register()
    await runner.register()
    status = {"session_id": runner.session_id, "sequence": 1, "status": "ready"}
    status |= {"capacity_total": 2, "last_error": SAID}
    await runner.call("PUT", f"/v1/runners/{runner.id}/status", json=status)
    await runner.call("POST", f"/v1/runners/{KNOWN}/leases:claim", json={"session_id": KNOWN})
    given_back = await runner.claim()
    await given_back.post("release", {"reason": SAID})
    return await runner.claim()


async def operate(callers, held: Held, address: str) -> None:
    operator, control = callers["operator"], callers["control-plane"]
    for path in (f"runners/{KNOWN}:drain", f"concurrency-keys/{KNOWN}:free"):
        await operator.call("POST", f"/v1/{path}", json={"reason": SAID})
    document = {"document": {"token": KNOWN}}
    for key in ("cursor", KNOWN):
        headers = {"If-None-Match": "*"}
        await operator.call("PUT", f"/v1/state/{key}", json=document, headers=headers)
    schedule = {"cron": "0 0 1 1 *", "to": "attempt.create", "data": new_attempt()}
    del schedule["data"]["idempotency_key"]
    for one in [*everywhere(schedule), {**schedule, "data": {**schedule["data"], "x": KNOWN}}]:
        await operator.call("PUT", "/v1/schedules/nightly", json=one)
    await operator.call("PUT", f"/v1/schedules/{KNOWN}", json=schedule)
    await operator.call("DELETE", f"/v1/schedules/{KNOWN}")
    subscription = {
        "url": f"{address}/?key=x",
        "headers": {"X-Key": {"secret_ref": "settings://x"}},
    }
    for one in [
        *everywhere(subscription),
        {"url": f"{address}/{KNOWN}"},
        {"url": address, "headers": {"Authorization": f"Bearer {KNOWN}"}},
        {"url": address, "headers": {KNOWN: {"secret_ref": f"settings://{KNOWN}"}}},
    ]:
        await control.call("PUT", "/v1/callback-subscriptions/other", json=one)
    await control.call("PUT", f"/v1/callback-subscriptions/{KNOWN}", json={"url": address})
    for what in ("artifacts", "attempts"):
        path = f"/v1/{what}/{held.attempt_id}:hold"
        await operator.call("POST", path, json={"reason": SAID})
    search = f"attempts/{held.attempt_id}/logs:search"
    for path in ("attempts", "events", "runners", "dead-letters", search):
        for name in ("q", "after", "page_token", "status", "reason", "runner_kind", KNOWN):
            await operator.call("GET", f"/v1/{path}", params={name: KNOWN})
    await operator.call(
        "GET",
        f"/v1/attempts/{held.attempt_id}",
        headers={
            "X-Request-Id": KNOWN,
            "Idempotency-Key": KNOWN,
            "Traceparent": KNOWN,
            "Tracestate": f"a={KNOWN}",
            "User-Agent": KNOWN,
            "Range": KNOWN,
            "Cookie": f"session={KNOWN}",
            "Lease-Token": KNOWN,
        },
    )
    await operator.call("POST", f"/{KNOWN}", content=KNOWN.encode())
    await callers["runner"].call(
        "GET", "/v1/attempts", headers={"Authorization": f"Bearer {KNOWN}"}
    )


async def push_messages(pusher: Pusher, held: Held) -> None:
    envelope = {"v": 1, "to": "attempt.create", "id": str(uuid4()), "data": new_attempt()}
    for one in everywhere(envelope):
        await pusher.push_envelope(one)
    for to, data in (
        ("attempt.create", new_attempt(job_spec_ref=SPEC)),
        ("attempt.cancel", {"attempt_id": held.attempt_id, "reason": SAID}),
        ("lease.complete", {"lease_id": held.id, "lease_token": KNOWN, "outcome": SAID}),
        ("lease.heartbeat", {"lease_id": held.id, "lease_token": KNOWN, "message": SAID}),
        ("log.append", {"lease_id": held.id, "mask": [EXACT], "data_base64": SAID}),
        ("output.record", {"name": KNOWN}),
        ("evidence.record", {"subject_ref": SAID}),
        ("runner.register", {"runner_id": KNOWN}),
        ("runner.report_status", {"last_error": SAID}),
        (KNOWN, {}),
    ):
        await pusher.push(to, data)
    attributes = {KNOWN: KNOWN, "googclient_traceparent": KNOWN}
    await pusher.push_envelope(envelope, messageId=KNOWN, attributes=attributes)
    await pusher.push_bytes(KNOWN.encode())


async def read_back(callers, held: Held) -> None:
    operator = callers["operator"]
    path = f"/v1/attempts/{held.attempt_id}"
    for what in ("", "/events", "/leases", "/heartbeats", "/logs", "/outputs", "/evidence"):
        await operator.call("GET", path + what)
    for stream in ("stdout", "stderr", "event_stream", "system", "all"):
        await operator.call("GET", f"{path}/logs/{stream}")
    for what in ("attempts", "events", "runners", "dead-letters", "schedules", "scheduler"):
        await operator.call("GET", f"/v1/{what}")
    await operator.call("GET", "/metrics")


async def objects_of(services) -> list[str]:
    """Every object below this service's prefix, as text; compressed ones unpacked."""
    texts = []
    for listed in await services.objects.list_objects(""):
        pieces = [piece async for piece in services.objects.read(listed.key)]
        texts.append(f"{listed.key} {unpacked(b''.join(pieces))}")
    return texts


def unpacked(body: bytes) -> str:
    for unpack in (gzip.decompress, zstd.decompress, zlib.decompress):
        try:
            return unpack(body).decode(errors="replace")
        except (OSError, EOFError, zlib.error, zstd.ZstdError):
            continue
    return body.decode(errors="replace")


def finds(text: str) -> list[str]:
    """Where a secret stands in a text, as it is or in what looks like base64."""
    decoded = []
    for run in re.findall(r"[A-Za-z0-9+/_-]{16,}={0,2}", text):
        for skip in range(4):
            part = run[skip:].rstrip("=").replace("-", "+").replace("_", "/")
            part = part[: len(part) // 4 * 4]
            decoded.append(base64.b64decode(part).decode(errors="replace"))
    places = []
    for secret in (KNOWN, EXACT):
        for where in (text, *decoded):
            at = where.find(secret)
            if at >= 0:
                places.append(where[max(0, at - 200) : at + 20].replace(secret[-8:], "…"))
    return places


async def test_a_secret_in_any_field_of_any_command_is_nowhere_afterwards(
    services,
    settings,
    http,
    issuer,
    callers,
    callbacks,  # noqa: F811 - the fixture
    receiver,  # noqa: F811
    sql,
    spans,  # noqa: F811
    logged,  # noqa: F811
    answers,
):
    await callbacks.put("listener", url=receiver.url, start="now")
    for _ in range(2):
        await callers["control-plane"].call("POST", "/v1/attempts", json=new_attempt())
    token = issuer[0].mint(ACCOUNTS["runner"], AUDIENCE)
    held = await be_a_runner(callers, http, token)
    await ask_for_attempts(callers)
    await run_a_job(callers, held)
    await operate(callers, held, receiver.url)
    pusher = Pusher(http, issuer[0].mint(ACCOUNTS["pubsub"], AUDIENCE), SUBSCRIPTION)
    await push_messages(pusher, held)
    receiver.answering = lambda _: 500 if len(receiver.requests) == 1 else 204
    await callbacks.drain(await callbacks.worker())
    await read_back(callers, held)

    kept = {
        f"table {name}": [
            row["row"] for row in await sql.fetch(f"SELECT t::text AS row FROM {name} t")
        ]
        for name in tables.metadata.tables
    }
    kept["object"] = await objects_of(services)
    kept["answer"] = answers
    kept["callback"] = [f"{one.path} {one.headers} {one.body!r}" for one in receiver.requests]
    kept["log line"] = logged.getvalue().splitlines()
    kept["span"] = [span.to_json() for span in spans.get_finished_spans()]
    found = {place: finds("\n".join(texts)) for place, texts in kept.items()}
    found = {place: hits for place, hits in found.items() if hits}

    assert found == {}, json.dumps(found, indent=1)
    assert all(kept[place] for place in ("object", "answer", "callback", "log line", "span"))
    assert sum("***" in row for row in kept["table attempt_events"]) >= 5
    assert len(kept["table dead_letters"]) >= 5
    assert any("***" in text for text in kept["object"])
    assert any("***" in text for text in kept["callback"])
