"""No secret of a log is stored, however its sender cuts it; and its sender loses no byte."""

import base64
import itertools
import json

import pytest

from tests.conftest import serve_in_process
from tests.driver import Held, RunnerClient
from tests.logs.world import send
from tests.masking.test_exact_values import TABLE

CREDENTIAL = "ghp_" + "q7Rt2Xw9" * 5
TOKEN_LINE = f"export GH_TOKEN={CREDENTIAL}\n".encode()
NAMED = "correct-horse-9"


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("how", ["at once", "a byte a chunk"])
async def test_named_value_is_masked_however_it_is_sent(name, how, held, logs):
    values, text, expected = TABLE[name]
    sizes = itertools.repeat(1 if how == "a byte a chunk" else 1 << 20)

    await send(held, text.encode(), sizes, mask=values)

    assert await logs.text(held) == expected.encode()


@pytest.mark.parametrize("name", ["split in the middle", "overlapping", "beyond ASCII"])
async def test_named_value_is_masked_wherever_the_text_is_cut(name, control, runner, logs):
    values, text, expected = TABLE[name]
    await runner.register(capacity_total=100)

    for place in range(len(text.encode()) + 1):
        await control.create()
        held = await runner.start()
        await send(held, text.encode(), itertools.chain([place], itertools.repeat(99)), mask=values)
        assert await logs.text(held) == expected.encode(), place


async def test_value_named_later_is_masked_from_then_on(held, logs):
    first, second = b"redact secret1111 but not secret2222 until\n", b"secret2222 is named\n"

    await held.log_json(first, 0, mask=["secret1111"])
    await held.log_json(second, len(first), mask=["secret1111", "secret2222"])

    assert await logs.text(held) == b"redact *** but not secret2222 until\n*** is named\n"


async def test_two_attempts_do_not_share_values(control, make_runner, logs):
    one, other = [], []
    for attempts in (one, other):
        await control.create()
        attempts.append(await (await make_runner().register()).start())
    text = b"one-value two-value\n"

    await one[0].log_json(text, 0, mask=["one-value"])
    await other[0].log_json(text, 0, mask=["two-value"])

    assert await logs.text(one[0]) == b"*** two-value\n"
    assert await logs.text(other[0]) == b"one-value ***\n"


async def test_value_that_is_no_text_is_named_in_base64(held, logs):
    value = bytes(range(0xF0, 0x100)) + b"\x00\xff"

    await held.log_json(b"a" + value + b"b\n", 0, mask_base64=[base64.b64encode(value).decode()])

    assert await logs.text(held) == b"a***b\n"


async def test_refused_values_are_told_to_the_sender_and_to_the_timeline(held, control, logs):
    answer = await held.log_json(b"banana\n", 0, mask=["a", NAMED], mask_base64=["ZGV2"])

    assert answer.json()["mask_refused"] == [0, 2]
    assert await logs.text(held) == b"banana\n"
    [event] = [
        e for e in await control.events(held.attempt_id) if e["event_type"] == "secret_masked"
    ]
    assert event["payload"]["kinds"] == {"refused_too_short": 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"mask": "correct-horse-9"},
        {"mask": [7]},
        {"mask_base64": ["not base64: correct-horse-9"]},
        {"mask": [NAMED] * 1001},
        {"masks": [NAMED]},
    ],
)
async def test_bad_mask_is_refused_without_repeating_it(fields, held):
    answer = await held.log_json(b"x\n", 0, **fields)

    assert (answer.status_code, answer.json()["reason"]) == (422, "request-invalid")
    assert NAMED not in answer.text


async def test_line_is_held_back_until_it_ends(held, logs):
    begun = await held.log(TOKEN_LINE[:30], 0)
    whole = await held.log(TOKEN_LINE + b"next", 0)
    rest = await held.log(b"next", len(TOKEN_LINE), final=True)

    assert begun.json() == {
        "stream": "stdout",
        "next_offset": 0,
        "need_more": True,
        "final": False,
        "mask_refused": [],
    }
    assert (whole.json()["next_offset"], whole.json()["need_more"]) == (len(TOKEN_LINE), False)
    assert (rest.json()["next_offset"], rest.json()["final"]) == (len(TOKEN_LINE) + 4, True)
    assert await logs.text(held) == b"export GH_TOKEN=***\nnext"


async def test_final_takes_effect_only_with_the_last_byte(held, logs):
    await held.log(b"one\n", 0)

    answer = await held.log(b"login corr", 4, final=True)

    assert (answer.json()["next_offset"], answer.json()["final"]) == (14, True)
    assert await logs.text(held) == b"one\nlogin corr"


async def test_chunk_without_a_line_end_is_taken_in_part_from_64_kib_on(held, logs):
    small = await held.log(b"x" * 65_535, 0)
    large = await held.log(b"x" * 65_536, 0)

    assert small.json()["need_more"] is True
    assert 0 < large.json()["next_offset"] < 65_536
    assert len(await logs.text(held)) == large.json()["next_offset"]


async def test_what_is_stored_and_described_is_the_masked_text(held, control, logs, sql):
    answer = await held.log(TOKEN_LINE + b"\xff\x00 ok\n", 0)

    [ref] = await control.list_of(held.attempt_id, "logs")
    masked = b"export GH_TOKEN=***\n\xff\x00 ok\n"
    assert answer.json()["next_offset"] == ref["raw_size"] == len(TOKEN_LINE) + 6
    assert (ref["byte_size"], ref["line_count"], ref["masked"]) == (len(masked), 2, True)
    assert [body for _, body in await logs.stored()] == [masked]


async def test_repeat_is_compared_with_what_was_sent_and_not_with_what_is_stored(held, logs):
    await held.log(TOKEN_LINE, 0)

    same = await held.log(TOKEN_LINE, 0)
    masked = await held.log(b"export GH_TOKEN=***\n".ljust(len(TOKEN_LINE), b"*"), 0)
    other = await held.log(TOKEN_LINE.replace(b"q7Rt", b"q8Rt"), 0)

    assert (same.status_code, same.json()["next_offset"]) == (200, len(TOKEN_LINE))
    assert [masked.status_code, other.status_code] == [409, 409]
    assert other.json()["reason"] == "log-conflict"


async def test_leak_is_told_once_a_lease_stream_and_kind_and_counted(held, control, services):
    before = _masked(services, "stdout")
    for number in range(3):
        await held.log(TOKEN_LINE, number * len(TOKEN_LINE))
    await held.log(TOKEN_LINE, 0, "stderr")

    told = [e for e in await control.events(held.attempt_id) if e["event_type"] == "secret_masked"]
    assert [event["payload"]["source"] for event in told] == ["stdout", "stderr"]
    assert all(sum(event["payload"]["kinds"].values()) == 1 for event in told)
    assert CREDENTIAL not in json.dumps(told)
    assert _masked(services, "stdout") - before == 3


def _masked(services, source) -> float:
    [metric] = services.metrics.secrets_masked.collect()
    return sum(
        sample.value
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["source"] == source
    )


async def test_leak_of_the_last_lines_is_told_after_the_end(held, control):
    await held.complete()

    answer = await held.log(TOKEN_LINE, 0)

    assert answer.status_code == 200
    assert (await control.event_types(held.attempt_id))[-1] == "secret_masked"


async def test_pushed_chunk_leaves_the_same_as_a_sent_one(held, control, make_runner, pusher, sql):
    await control.create()
    other = await (await make_runner().register()).start()
    text = TOKEN_LINE + f"login {NAMED}\nand more".encode()

    sent = await held.log_json(text, 0, mask=[NAMED])
    data = base64.b64encode(text).decode()
    proof = {"lease_id": other.id, "lease_token": other.token}
    chunk = {"stream": "stdout", "offset": 0, "mask": [NAMED], "data_base64": data}
    pushed = await pusher.push("log.append", {**proof, **chunk})

    assert (sent.status_code, pushed.status_code) == (200, 204)
    rows = [await _rows(sql, one.attempt_id) for one in (held, other)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3


async def _rows(sql, attempt_id) -> list[tuple[object, ...]]:
    chunks = """SELECT stream, stream_offset, raw_size, byte_size, line_count, masked, raw_hmac,
        lease_number, arrival_number, object_offset FROM raw_log_refs WHERE attempt_id = $1"""
    objects = """SELECT digest, byte_size, state, retention_class FROM artifact_refs
        WHERE attempt_id = $1"""
    streams = """SELECT stream, next_offset, raw_size, stored_size, line_count, final
        FROM log_streams WHERE attempt_id = $1"""
    statements = (chunks, objects, streams)
    return [tuple(row) for text in statements for row in await sql.fetch(text, attempt_id)]


async def test_dead_letter_of_a_chunk_holds_neither_its_text_nor_what_it_names(held, pusher, sql):
    data = base64.b64encode(f"login {NAMED}\n".encode()).decode()
    proof = {"lease_id": held.id, "lease_token": "wrong"}
    chunk = {"stream": "stdout", "offset": 0, "mask": [NAMED], "data_base64": data}

    answer = await pusher.push("log.append", {**proof, **chunk})

    assert answer.status_code == 204
    row = await sql.fetchrow("SELECT * FROM dead_letters")
    assert row["reason"] == "lease-token-invalid"
    assert NAMED not in str(dict(row))
    assert data not in str(dict(row))


async def test_nothing_unmasked_is_stored_where_nothing_can_be_masked(
    held, open_instance, runner_token, logs, monkeypatch
):
    instance = await open_instance()

    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(instance.masker, "_analyze", fail)
    async with serve_in_process(instance) as http:
        claimed = {"lease": held.lease, "attempt": held.attempt, "continuation": None}
        other = Held(
            RunnerClient(http, runner_token, id=held.runner.id),
            {**claimed, "lease_token": held.token},
        )
        answer = await other.log(TOKEN_LINE, 0)

    assert answer.json()["next_offset"] == len(TOKEN_LINE)
    assert await logs.text(held) == b"[withheld: masking failed]"


@pytest.mark.parametrize("values", [0, 100])
async def test_ten_megabytes_without_a_line_end_are_masked_to_their_end(values, held, logs):
    data = b"x" * 10_000_000 + NAMED.encode()
    mask = [NAMED, *(f"another-value-{number}" for number in range(values))]

    await send(held, data, itertools.repeat(4_000_000), mask=mask)

    assert await logs.text(held) == b"x" * 10_000_000 + b"***"


async def test_secret_is_in_no_row_no_object_and_no_answer(held, control, pusher, logs, sql):
    """Whatever a chunk meets on its way: stored, refused, repeated, merged into an error."""
    text = TOKEN_LINE + f"login {NAMED}\n".encode()
    encoded = base64.b64encode(text).decode()
    proof = {"lease_id": held.id, "lease_token": held.token}
    chunk = {"stream": "stderr", "data_base64": encoded, "mask": [NAMED]}
    answers = [
        await held.log_json(text, 0, mask=[NAMED]),
        await held.log_json(text, 0, mask=[NAMED]),
        await held.log_json(b"another " + text, 0, mask=[NAMED]),
        await held.log_json(text, 10_000, mask=[NAMED]),
        await held.log_json(text, 0, mask=[NAMED, 7]),
        await held.log_json(text, 0, "stdlog", mask=[NAMED]),
        await pusher.push("log.append", {**proof, **chunk, "offset": 0}),
        await pusher.push("log.append", {**proof, **chunk, "offset": 0, "more": NAMED}),
        await pusher.push("log.append", {**proof, **chunk, "offset": 0, "final": NAMED}),
        await held.complete(),
        await control.call("GET", f"/v1/attempts/{held.attempt_id}/events"),
        await control.call("GET", f"/v1/attempts/{held.attempt_id}/logs"),
        await control.read_log(held.attempt_id, "all"),
    ]

    names = await sql.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    tables = [row["tablename"] for row in names]
    rows = [str(await sql.fetch(f"SELECT t::text FROM {name} t")) for name in tables]
    bodies = [body.decode(errors="replace") for _, body in await logs.stored()]
    everything = "\n".join([*rows, *bodies, *(answer.text for answer in answers)])
    assert len(bodies) == 2
    for needle in (CREDENTIAL, NAMED, encoded, encoded[8:40]):
        assert needle not in everything
