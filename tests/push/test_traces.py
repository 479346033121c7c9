"""What logs and spans say of a message: whose it is and what became of it, and none of its text."""

import base64
import json
import logging
from collections.abc import Iterator
from io import StringIO

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.domain.commands import Command
from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION
from app.handlers.registry import Context, Registry
from app.telemetry import configure_logging, use_tracer_provider
from tests.push.conftest import delivery, envelope

CANARY = "hunter2-canary"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PUBLISHERS = f"00-{TRACE}-{SPAN}-01"
ANOTHER = f"00-{'1' * 32}-{'2' * 16}-01"
EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="session")
def exporting() -> None:
    """Spans are kept in memory; a process has one provider for all of its life."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    use_tracer_provider(provider)


@pytest.fixture
def spans(exporting) -> Iterator[InMemorySpanExporter]:
    EXPORTER.clear()
    yield EXPORTER
    EXPORTER.clear()


@pytest.fixture
def logged() -> Iterator[StringIO]:
    """What the service's real logging writes, down to debug."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level, written = root.handlers[:], root.level, StringIO()
    configure_logging("json", "debug")
    [handler] = root.handlers
    handler.setStream(written)
    yield written
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


class Say(Command):
    """Say something."""

    text: str
    """What."""
    how: str = "log"
    """`log`, `raise`, `os`, `late` or `sql`."""


def saying() -> Registry:
    registry = Registry()

    @registry.handler("say.something", Say)
    async def say(context: Context, command: Say) -> None:
        match command.how:
            case "raise":
                raise KeyError(command.text)
            case "os":
                raise FileNotFoundError(command.text)
            case "sql":
                await context.transaction.execute("SELECT $1::int", command.text)
            case "unique":
                await context.transaction.execute(
                    "INSERT INTO state VALUES ($1, '{}', 0, now())", command.text
                )
            case _:
                context.span.add_event("said")
                context.logger.info("said")

    return registry


@pytest.fixture
async def pusher(open_instance, pusher_to, spans, logged):
    http = await open_instance(
        saying(),
        PUSH__SUBSCRIPTIONS={SUBSCRIPTION: ["say.something", "say.nothing"]},
        TELEMETRY__ACCESS_LOG="true",
    )
    return pusher_to(http)


def process_span(spans):
    [found] = [span for span in spans.get_finished_spans() if span.name.startswith("process ")]
    return found


async def test_lines_and_span_of_a_handler_carry_the_envelopes_id(pusher, spans, logged):
    message = envelope("say.something", {"text": "x"})

    await pusher.push_envelope(message, messageId="77")

    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    [said] = [line for line in lines if line["message"] == "said"]
    span = process_span(spans)
    assert said["envelope_id"] == message["id"]
    assert said["trace_id"] == f"{span.context.trace_id:032x}"
    assert span.attributes["execution_plane.envelope_id"] == message["id"]
    assert span.attributes["messaging.message.id"] == "77"
    assert [event.name for event in span.events] == ["said"]


@pytest.mark.parametrize(
    ("attributes", "parent"),
    [
        ({"googclient_traceparent": PUBLISHERS}, SPAN),
        ({"traceparent": PUBLISHERS}, SPAN),
        ({"googclient_traceparent": PUBLISHERS, "traceparent": ANOTHER}, SPAN),
        ({"googclient_traceparent": "none", "traceparent": PUBLISHERS}, SPAN),
        ({"traceparent": f"00-{'0' * 32}-{SPAN}-01"}, None),
        ({"traceparent": "x" * 1024}, None),
        ({}, None),
    ],
)
async def test_span_continues_the_trace_that_the_publisher_began(attributes, parent, pusher, spans):
    await pusher.push_envelope(envelope("say.something", {"text": "x"}), attributes=attributes)

    span = process_span(spans)
    assert (f"{span.context.trace_id:032x}" == TRACE) is (parent is not None)
    if parent is not None:
        assert f"{span.parent.span_id:016x}" == parent


async def test_span_says_what_became_of_the_message(pusher, spans):
    await pusher.push("say.nothing", {"text": "x"})

    span = process_span(spans)
    assert span.name == "process unknown"
    assert span.attributes["execution_plane.outcome"] == "later"
    assert span.status.description == "handler-unknown"


def hostile_bodies() -> dict[str, dict | bytes]:
    """Every part of a message in which a stranger, or a secret, can be."""
    said = {name: {"text": CANARY, "how": name} for name in ("raise", "os", "sql", "unique")}
    return {
        "no json": CANARY.encode(),
        "unwrapped": json.dumps(envelope(data={"text": CANARY})).encode(),
        "subscription": delivery(envelope(), CANARY),
        "no base64": {"message": {"data": f"{CANARY}!"}, "subscription": SUBSCRIPTION},
        "no envelope": delivery([CANARY]),
        "handler": delivery(envelope(f"say.{CANARY}", {"text": "x"})),
        "id": delivery(envelope("say.something", {"text": "x"}, id=CANARY)),
        "name": delivery(envelope("say.something", {CANARY: "x"})),
        "value": delivery(envelope("say.something", {"text": [CANARY]})),
        "attribute": delivery(envelope("say.something"), attributes={CANARY: CANARY}),
        "ordering key": delivery(envelope("say.something"), orderingKey=CANARY),
        "message id": delivery(envelope("say.something"), messageId=f"{CANARY} \n"),
        **{name: delivery(envelope("say.something", data)) for name, data in said.items()},
    }


@pytest.mark.parametrize("name", hostile_bodies())
async def test_nothing_of_a_message_is_in_an_answer_a_line_or_a_span(name, pusher, spans, logged):
    body = hostile_bodies()[name]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    answer = await pusher.call("POST", "/push/pubsub", content=content)

    told = [str(answer.headers), answer.text, logged.getvalue()]
    told += [span.to_json() for span in spans.get_finished_spans()]
    assert "push." in logged.getvalue()
    assert not [text for text in told if CANARY in text]


@pytest.mark.parametrize("kind", ["good", "expired", "foreign", "broken", "basic", "scheme"])
async def test_nothing_of_a_token_is_in_an_answer_a_line_or_a_span(
    kind, pusher, spans, issuer, logged
):
    mint = issuer[0].mint
    header = {
        "good": f"Bearer {mint(ACCOUNTS['pubsub'], AUDIENCE)}",
        "expired": f"Bearer {mint(ACCOUNTS['pubsub'], AUDIENCE, exp=1, iat=0)}",
        "foreign": f"Bearer {mint('stranger@example.test', AUDIENCE)}",
        "broken": f"Bearer {CANARY}.{CANARY}.{CANARY}",
        "basic": f"Basic {base64.b64encode(CANARY.encode()).decode()}",
        "scheme": CANARY,
    }[kind]

    answer = await pusher.call("POST", "/push/pubsub", headers={"Authorization": header})

    told = [str(answer.headers), answer.text, logged.getvalue()]
    told += [span.to_json() for span in spans.get_finished_spans()]
    pieces = [piece for piece in header.partition(" ")[2].split(".") if piece] or [header]
    assert "push.refused" in logged.getvalue()
    assert not [piece for piece in pieces for text in told if piece in text]
