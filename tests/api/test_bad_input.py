"""Whatever is sent, the answer is a problem with a reason, never a 500, and never the input again.

What a control plane sends must be storable as it is; what a runner reports is made storable.
"""

import json
from decimal import Decimal
from typing import Any
from uuid import uuid4

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.driver import new_attempt

CANARY = "hunter2-canary"
LONG = CANARY + "x" * 5000
NOT_TEXT = [7, 1.5, True, None, [], {}]
NOT_IDS = [CANARY, "", 7, None, [], {}, "00000000-0000-0000-0000-00000000000g", LONG]
NOT_COUNTS = [-1, 2**63, 10**39, 1.5, "7", True, None, [], {}, CANARY]
UNSTORABLE = [f"{CANARY}\x00", f"{CANARY}\ud800", f"{CANARY}\udfff"]
NOT_LABELS = ["", "a b", "x" * 64, "-a", "a-", "ä", "a\x00", 7, None, [], {}]


def bad(field: str, values: list[Any]) -> list[dict[str, Any]]:
    return [{field: value} for value in values]


def without(*names: str) -> list[str]:
    return list(names)


CREATE_FAULTS = [
    *(
        fault
        for field in ("operation_id", "plan_id", "plan_node_id", "node_run_id")
        for fault in bad(field, NOT_IDS)
    ),
    *bad("idempotency_key", [*NOT_TEXT, *UNSTORABLE, "", "x" * 201, f"{CANARY}\n"]),
    *bad("requested_by_service", [*NOT_TEXT, *UNSTORABLE, "", "x" * 201]),
    *bad("concurrency_key", [7, True, [], {}, *UNSTORABLE, "", "x" * 201]),
    *bad("job_type", [*NOT_TEXT, *UNSTORABLE, "", "ssh", "ssh.", "ssh.A", "python.run", LONG]),
    *bad("job_type", ["ssh.command.run\n", "ssh.a.b.c.d.e", "Ssh.command.run", " ssh.command.run"]),
    *bad("job_spec_ref", [7, CANARY, None, [], True, {"x": "y" * 300_000}]),
    *bad("job_spec_ref", [{CANARY: text} for text in UNSTORABLE]),
    *bad("job_spec_ref", [{text: [CANARY]} for text in UNSTORABLE]),
    *bad("job_spec_ref", [{"deep": [{"er": [text]}]} for text in UNSTORABLE]),
    *bad("priority", [*NOT_COUNTS, 1_000_001]),
    *bad("timeout_seconds", [*NOT_COUNTS, 0, 604_801]),
    *bad("queue_timeout_seconds", [-1, 0, 2**31, "7", 1.5, True, [], {}]),
    *bad("placement", [7, CANARY, None, [], {"zone": ""}, {"zone": "a b"}, {"zone": 7}]),
    *bad("placement", [{"unknown": CANARY}, {"labels": []}, {"labels": CANARY}]),
    *bad("placement", [{"labels": {"a": label}} for label in NOT_LABELS]),
    *bad("placement", [{"labels": {str(label): "a"}} for label in ["", "a b", "ä", "a\x00", LONG]]),
    *bad("placement", [{"labels": {f"l{n}": "x" for n in range(5)}}]),
    {"unknown": CANARY},
    {"status": "running"},
    {"id": str(uuid4())},
    {CANARY: 1},
    {"": 1},
    {"a\x00b": CANARY},
    {"\ud800": CANARY},
    {"x" * 100_000: CANARY},
    {"~/~1/": CANARY},
]
REGISTER_FAULTS = [
    *bad("session_id", NOT_IDS),
    *bad("sequence", NOT_COUNTS),
    *bad("runner_kind", [*NOT_TEXT, CANARY, "SSH", ""]),
    *bad("version", [*NOT_TEXT, *UNSTORABLE, "", "1", "1.0", "v1.0.0", "1.0.0-" + "x" * 99]),
    *bad("version", ["01.0.0", "9999999999.0.0", "1.0.0\n"]),
    *bad("capabilities", [7, CANARY, None, {}, [], [7], [None], [CANARY], ["ssh"], ["*"]]),
    *bad("capabilities", [["helm.install"], ["ssh.*.x"], ["ssh.x"] * 65, ["ssh.x\x00"]]),
    *bad("zone", [7, "", "a b", "x" * 65, "ä", "a\x00"]),
    *bad("labels", [7, None, [], CANARY, {f"l{n}": "x" for n in range(17)}]),
    *bad("labels", [{"a": label} for label in NOT_LABELS]),
    *bad("capacity_total", [*NOT_COUNTS, 0, 10_001]),
    {"unknown": CANARY},
    {"runner_id": "somebody-else"},
    {"status": "ready"},
]
STATUS_FAULTS = [
    *bad("session_id", NOT_IDS),
    *bad("sequence", NOT_COUNTS),
    *bad("status", [*NOT_TEXT, CANARY, "READY", ""]),
    *bad("capacity_total", [*NOT_COUNTS, 10_001]),
    *bad("last_error", [7, True, [], {}]),
    {"unknown": CANARY},
]
CLAIM_FAULTS = [
    *bad("session_id", NOT_IDS),
    *bad("request_id", NOT_IDS),
    *bad("max_leases", [*NOT_COUNTS, 0, 501]),
    *bad("wait_seconds", [-1, 3001, CANARY, None, [], {}, 10**39]),
    {"unknown": CANARY},
]
BEAT_FAULTS = [
    *bad("session_id", NOT_IDS),
    *bad("sequence", [*NOT_COUNTS, 0]),
    *bad("phase", [7, CANARY, "", "Executing", "x" * 10_000, [], {}]),
    *bad("progress_percent", [-1, 101, "50", 50.5, True, 10**39, [], {}]),
    *bad("message", [7, True, [], {}]),
    {"unknown": CANARY},
    {"lease_id": str(uuid4())},
    {"lease_token": CANARY},
]
COMPLETE_FAULTS = [
    *bad("outcome", [*NOT_TEXT, CANARY, "lost", "running", "queued", ""]),
    *bad("failure_category", [7, CANARY, "", [], {}, "timeout", "internal"]),
    {"outcome": "failed"},
    {"outcome": "cancelled", "failure_category": "timeout"},
    {"outcome": "timed_out", "failure_category": "internal"},
    *bad("failure_message", [7, True, [], {}]),
    *bad("result", [7, CANARY, [], True, {"x": "y" * 17_000}]),
    {"unknown": CANARY},
]
CANCEL_FAULTS = [
    *bad("reason", [*NOT_TEXT, *UNSTORABLE, "x" * 1001]),
    {"unknown": CANARY},
    {"attempt_id": str(uuid4())},
]
RELEASE_FAULTS = [*bad("reason", NOT_TEXT), {"unknown": CANARY}]

REQUIRED = {
    "create": without(
        *("operation_id", "plan_id", "plan_node_id", "node_run_id", "idempotency_key"),
        *("job_type", "job_spec_ref", "timeout_seconds"),
    ),
    "register": without("session_id", "runner_kind", "version", "capabilities"),
    "status": without("session_id", "sequence", "status", "capacity_total"),
    "claim": without("session_id", "request_id"),
    "beat": without("session_id", "sequence"),
    "complete": without("outcome"),
}
FAULTS = {
    "create": CREATE_FAULTS,
    "register": REGISTER_FAULTS,
    "status": STATUS_FAULTS,
    "claim": CLAIM_FAULTS,
    "beat": BEAT_FAULTS,
    "complete": COMPLETE_FAULTS,
    "cancel": CANCEL_FAULTS,
    "release": RELEASE_FAULTS,
    "start": [],
}


@pytest.fixture
async def send(control, runner):
    """Sends a body to the route of that name; the lease that it speaks of is real and running."""
    await runner.register()
    await control.create()
    held = await runner.start()
    attempt, lease = f"/v1/attempts/{held.attempt_id}", f"/v1/leases/{held.id}"
    session = {"session_id": runner.session_id}
    valid = {
        "create": (control, "POST", "/v1/attempts", new_attempt()),
        "cancel": (control, "POST", f"{attempt}:cancel", {}),
        "register": (runner, "PUT", f"/v1/runners/{runner.id}", session | runner.profile),
        "status": (
            runner,
            "PUT",
            f"/v1/runners/{runner.id}/status",
            session | {"sequence": 1, "status": "ready", "capacity_total": 1},
        ),
        "claim": (
            runner,
            "POST",
            f"/v1/runners/{runner.id}/leases:claim",
            session | {"request_id": str(uuid4())},
        ),
        "start": (runner, "POST", f"{lease}:start", {}),
        "beat": (runner, "POST", f"{lease}:heartbeat", session | {"sequence": 1}),
        "complete": (runner, "POST", f"{lease}:complete", {"outcome": "succeeded"}),
        "release": (runner, "POST", f"{lease}:release", {}),
    }

    async def send_(route: str, change: Any = None, **more: Any) -> httpx.Response:
        caller, method, path, body = valid[route]
        if not more:
            more = {"content": json.dumps(change(body) if callable(change) else change)}
        headers = {"Lease-Token": held.token, **more.pop("headers", {})}
        return await caller.call(method, path, headers=headers, **more)

    return send_


ROUTES = list(FAULTS)


def is_problem(answer: httpx.Response, *statuses: int) -> bool:
    """Whether this is a refusal as all of them are, without anything of the input."""
    body = answer.json()
    return (
        answer.status_code in statuses
        and answer.headers["Content-Type"] == "application/problem+json"
        and body["status"] == answer.status_code
        and body["request_id"] == answer.headers["Request-Id"]
        and body["type"].endswith(body["reason"])
        and bool(body["title"])
        and bool(body["detail"])
    )


def repeats(answer: httpx.Response) -> bool:
    """Whether anything of the input comes back, but for the names that a pointer goes through."""
    body = answer.json()
    told = [{"detail": error["detail"]} for error in body["errors"]]
    return CANARY in str(body | {"errors": told})


@pytest.mark.parametrize("route", ROUTES)
async def test_every_fault_of_a_body_is_pointed_at_and_not_repeated(route, send):
    accepted, unclear, repeated = [], [], []
    for fault in FAULTS[route]:
        answer = await send(route, lambda body, fault=fault: body | fault)
        if answer.is_success:
            accepted.append(fault)
        elif not is_problem(answer, 422) or not answer.json()["errors"]:
            unclear.append((str(fault)[:200], answer.status_code, answer.text[:300]))
        elif repeats(answer):
            repeated.append((str(fault)[:200], answer.text[:300]))

    assert (accepted, unclear, repeated) == ([], [], [])


@pytest.mark.parametrize("route", REQUIRED)
async def test_every_missing_field_is_pointed_at(route, send):
    for name in REQUIRED[route]:
        answer = await send(
            route, lambda body, left=name: {k: v for k, v in body.items() if k != left}
        )

        assert is_problem(answer, 422)
        assert [error["pointer"] for error in answer.json()["errors"]] == [f"/{name}"]


NOT_OBJECTS = {
    "array": b"[]",
    "text": json.dumps(CANARY).encode(),
    "number": b"7",
    "null": b"null",
    "garbage": b"{" + CANARY.encode(),
    "two_documents": b"{}{}",
    "trailing": b"{} " + CANARY.encode(),
    "single_quotes": b"{'a': 1}",
    "no_utf8": b'{"a": "\xff\xfe"}',
    "utf16": '{"a": 1}'.encode("utf-16"),
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "huge_exponent": b'{"a": 1e400}',
    "large_exponent": b'{"a": 1e200}',
    "tiny_exponent": b'{"a": 1e-200}',
    "endless_integer": b'{"a": ' + b"9" * 6000 + b"}",
    "endless_fraction": b'{"a": 0.' + b"9" * 6000 + b"}",
    "deep_array": b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}",
    "very_deep_array": b"[" * 200_000,
    "very_deep_object": b'{"a":' * 100_000,
    "multipart": b"--x\r\nContent-Disposition: form-data\r\n\r\n",
}


@pytest.mark.parametrize("route", ROUTES)
async def test_body_that_is_no_usable_json_object_is_refused(route, send):
    wrong = {}
    for name, content in NOT_OBJECTS.items():
        answer = await send(route, content=content)
        if not is_problem(answer, 400, 422) or CANARY in answer.text:
            wrong[name] = (answer.status_code, answer.text[:300])

    assert wrong == {}


@pytest.mark.parametrize("route", [route for route in ROUTES if route in REQUIRED])
async def test_empty_body_misses_its_fields(route, send):
    for content in (b"", b"  \n", b"{}"):
        answer = await send(route, content=content)

        assert is_problem(answer, 422)
        assert len(answer.json()["errors"]) == len(REQUIRED[route])


@pytest.mark.parametrize("route", ROUTES)
async def test_compressed_body_is_refused(route, send):
    answer = await send(route, content=b"{}", headers={"Content-Encoding": "gzip"})

    assert is_problem(answer, 415)


@pytest.mark.parametrize("announced", [True, False])
async def test_body_over_the_limit_is_refused(announced, open_instance, control):
    http = await open_instance(SERVER__MAX_BODY_BYTES=2048)

    async def pieces():
        for _ in range(1000):
            yield b" " * 1024

    content = b" " * 1024 * 1000 if announced else pieces()
    answer = await http.post("/v1/attempts", content=content, headers=control.headers)

    assert is_problem(answer, 413)
    assert answer.json()["reason"] == "body-too-large"


async def test_content_type_does_not_matter(send):
    body = json.dumps(new_attempt())

    for kind in ("text/plain", "application/json; charset=utf-8", "application/octet-stream"):
        answer = await send("create", content=body, headers={"Content-Type": kind})
        assert answer.status_code in {200, 201}


async def test_doubled_name_is_refused(control):
    body = json.dumps(new_attempt(priority=1))[:-1] + ', "priority": 2}'

    answer = await control.call("POST", "/v1/attempts", content=body)

    assert is_problem(answer, 400)


@pytest.mark.parametrize("identifier", ["x", "1", "..", "%00", "a b", "g" * 36, "0" * 500])
async def test_malformed_id_in_a_path_is_refused(identifier, control, runner):
    attempt, lease = f"/v1/attempts/{identifier}", f"/v1/leases/{identifier}"
    token = {"Lease-Token": "x"}
    answers = [
        await control.call("GET", attempt),
        *[
            await control.call("GET", f"{attempt}/{what}")
            for what in ("events", "leases", "heartbeats", "logs", "logs/stdout")
            if (identifier, what) != ("..", "events")  # which is the feed
        ],
        *[
            await runner.call("POST", f"{lease}:{verb}", headers=token)
            for verb in ("start", "heartbeat", "complete", "release")
        ],
        await runner.call("POST", f"{lease}/logs/stdout?offset=0", headers=token),
    ]

    assert all(is_problem(answer, 404, 422) for answer in answers), [a.text for a in answers]


@pytest.mark.parametrize("identifier", ["a b", "ä", "%00", "%0A", "x" * 129, "a%2Fb", "~"])
async def test_malformed_runner_id_is_refused(identifier, runner):
    body = {"session_id": runner.session_id, **runner.profile}

    answer = await runner.call("PUT", f"/v1/runners/{identifier}", json=body)

    assert is_problem(answer, 404, 422), answer.text


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1",
        "offset=x",
        "offset=9007199254740992",
        "offset=9223372036854775808",
        "offset=1.5",
        "",
        "offset=0&final=perhaps",
    ],
)
async def test_malformed_log_parameters_are_refused(query, runner, control):
    await control.create()
    held = await (await runner.register()).start()

    answer = await runner.call(
        "POST",
        f"/v1/leases/{held.id}/logs/stdout?{query}",
        headers={"Lease-Token": held.token},
        content=b"x",
    )

    assert is_problem(answer, 422)


async def test_unknown_log_stream_is_refused(runner, control):
    await control.create()
    held = await (await runner.register()).start()

    for stream in ("stdin", "STDOUT", "%00"):
        answer = await held.log(b"x", 0, stream)
        assert is_problem(answer, 404, 422)


@pytest.mark.parametrize(
    "query",
    [
        *("status=done", "status=%00", "runner_kind=python", "operation_id=x", "plan_id=7"),
        *("page_size=0", "page_size=-1", "page_size=x", "page_size=10000000000"),
        *("page_token=x", "page_token=%00", "page_token=W10%3D", "page_token=" + "x" * 2000),
        *("page_token=bnVsbA%3D%3D", "page_token=%C3%A4", "page_token=" + "%5B" * 900),
        *("created_after=yesterday", "created_after=%00", "created_before=2021-13-01"),
        *("job_type=%00", "job_type=" + "x" * 201, "runner_instance_id=%00"),
    ],
)
async def test_malformed_parameters_of_a_list_are_refused(query, control):
    answer = await control.call("GET", f"/v1/attempts?{query}")

    assert is_problem(answer, 400, 422), answer.text


@pytest.mark.parametrize(
    "query",
    [
        *("runners?runner_kind=x", "runners?include_offline=perhaps", "runners?page_size=0"),
        *("dead-letters?reason=%00", "dead-letters?handler=%00", "dead-letters?state=x"),
        *("concurrency-keys?page_token=x", "runners/%00", "dead-letters/x"),
    ],
)
async def test_malformed_parameters_of_operators_lists_are_refused(query, operator):
    answer = await operator.call("GET", f"/v1/{query}")

    assert is_problem(answer, 400, 404, 422), answer.text


@pytest.mark.parametrize(
    "query",
    [
        "created_before=0001-01-01T00:00:00Z",
        "created_before=0001-01-01T00:00:00%2B14:00",
        "created_after=9999-12-31T23:59:59-14:00",
        "created_after=0001-01-01&created_before=9999-12-31T23:59:59.999999Z",
        "created_after=2021-01-01T00:00:00",
        "created_after=0",
        "created_after=99999999999999",
        "job_type=%25%27%22%3B--",
        "unknown=1",
    ],
)
async def test_strange_parameters_of_a_list_are_no_fault_of_ours(query, control):
    answer = await control.call("GET", f"/v1/attempts?{query}")

    assert answer.status_code == 200 or is_problem(answer, 400, 422), answer.text


@pytest.mark.parametrize("wait", ["-1", "nan", "inf", "x", "3001", "1e400"])
async def test_malformed_wait_is_refused(wait, control):
    attempt = await control.create()

    answer = await control.call("GET", f"/v1/attempts/{attempt['id']}?wait_seconds={wait}")

    assert is_problem(answer, 422)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH"])
async def test_method_that_a_route_does_not_have_is_a_problem_too(method, runner):
    answer = await runner.call(method, f"/v1/leases/{uuid4()}:start")

    assert is_problem(answer, 404, 405)
    assert answer.json()["reason"] in {"method-not-allowed", "not-found"}


@pytest.mark.parametrize("path", ["/v1", "/v2/attempts", "/v1/attempts/", "/v1//attempts"])
async def test_unknown_path_is_a_problem_without_a_redirect(path, control):
    answer = await control.call("POST", path, json={})

    assert is_problem(answer, 404)


# --- what a runner reports is made storable -------------------------------------------------------


STORED_AS = {
    "a\x00b": "a\ufffdb",
    "a\ud800b": "a\ufffdb",
    "\udc00\ud800": "\ufffd\ufffd",
    "literal \\u0000": "literal \\u0000",
    "\U0001f600 ä": "\U0001f600 ä",
    "": "",
}


@pytest.mark.parametrize("said", STORED_AS)
async def test_text_of_a_runner_is_stored_whatever_it_holds(said, send, control, sql):
    attempt_id = str(await sql.fetchval("SELECT id FROM execution_attempts"))

    beaten = await send("beat", lambda body: body | {"message": said, "phase": "executing"})
    completed = await send(
        "complete",
        {
            "outcome": "failed",
            "failure_category": "internal",
            "failure_message": said,
            "result": {"said": said, said: [{"deep": said}]},
        },
    )

    kept = STORED_AS[said]
    attempt = await control.get(attempt_id)
    [beat] = await control.list_of(attempt_id, "heartbeats")
    assert (beaten.status_code, completed.status_code) == (200, 200)
    assert beat["message"] == kept
    assert attempt["failure_message"] == kept
    assert attempt["result"] == {"said": kept, kept: [{"deep": kept}]}


async def test_endless_messages_are_cut_at_a_character_and_never_refused(runner, control):
    await control.create()
    held = await (await runner.register()).start()

    beaten = await held.beat(message="ä" * 2_500_000)
    completed = await held.complete("failed", failure_message="\U0001f600" * 1_000_000)

    [beat] = await control.list_of(held.attempt_id, "heartbeats")
    message = (await control.get(held.attempt_id))["failure_message"]
    assert (beaten.status_code, completed.status_code) == (200, 200)
    for text, letter in ((beat["message"], "ä"), (message, "\U0001f600")):
        assert 4000 < len(text.encode()) <= 4096
        assert set(text) == {letter, "…"}


async def test_numbers_of_a_specification_are_kept_exactly(control):
    numbers = [2**53 + 1, -(2**63), 10**39, 0.1, 1e100, 1e-100, 1.5, 0, -0.0]

    attempt = await control.create(job_spec_ref={"numbers": numbers})

    answer = await control.call("GET", f"/v1/attempts/{attempt['id']}")
    kept = json.loads(answer.content, parse_int=Decimal, parse_float=Decimal)
    assert kept["job_spec_ref"]["numbers"] == [Decimal(str(number)) for number in numbers]


# --- anything at all ------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**39, -(2**63) - 1, 1e100]),
)
WORDS = st.sampled_from(
    ["", "succeeded", "failed", "executing", "ready", "ssh", "ssh.command.run", "\x00", "\ud800"]
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, WORDS, st.uuids().map(str))
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    sorted({name for faults in FAULTS.values() for fault in faults for name in fault})
)
CHANGES = st.one_of(
    st.dictionaries(FIELDS, ANYTHING, max_size=4),
    st.dictionaries(st.one_of(FIELDS, TEXTS), ANYTHING, max_size=6),
)


@settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(route=st.sampled_from(ROUTES), change=CHANGES, whole=st.booleans())
async def test_no_json_whatever_makes_a_server_error(route, change, whole, send):
    answer = await send(route, change if whole else lambda body: body | change)

    assert answer.status_code < 500, answer.text
    assert answer.is_success or is_problem(answer, 400, 409, 422)


@settings(
    max_examples=100,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    query=st.dictionaries(
        st.sampled_from(
            [
                *("status", "job_type", "runner_kind", "operation_id", "plan_id", "page_size"),
                *("runner_instance_id", "created_after", "created_before", "page_token"),
            ]
        ),
        st.one_of(TEXTS.map(lambda text: text.encode(errors="replace").decode()), NUMBERS.map(str)),
        max_size=3,
    )
)
async def test_no_query_whatever_makes_a_server_error(query, control):
    answer = await control.call("GET", "/v1/attempts", params=query)

    assert answer.status_code == 200 or is_problem(answer, 400, 422), answer.text
