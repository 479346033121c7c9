"""What is pushed next, without a clock and without a network."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from app.embedded.pubsub_ledger import Ledger
from app.embedded.pubsub_model import Message
from app.embedded.pubsub_queue import Coins, Pending, PushQueue

ONCE, TWICE = Coins(), Coins(duplicate_rate=1.0)


@pytest.fixture
def ledger():
    return Ledger()


def queue_of(coins=ONCE, *, ordered=False):
    return PushQueue(ordered=ordered, coins=coins, rng=random.Random(0))


def add(queue, ledger, name, key=""):
    message = Message(name, "projects/p/topics/topic", b"x", {}, key, datetime.now(UTC))
    pending = Pending(message, ledger.open(message, "projects/p/subscriptions/sub"))
    queue.add(pending)
    return pending


def test_delayed_push_is_taken_once_it_is_due(ledger):
    queue = queue_of()
    add(queue, ledger, "1")
    push = queue.take(now=0.0)
    queue.retry(push, due=5.0)

    early, due = queue.take(now=4.9), queue.next_due()
    taken = queue.take(now=5.0)

    assert (early, due) == (None, 5.0)
    assert taken is push
    assert queue.next_due() is None


def test_retry_of_a_message_that_was_acked_meanwhile_is_not_pushed(ledger):
    queue = queue_of(TWICE)
    pending = add(queue, ledger, "1")
    pushes = [queue.take(now=0.0), queue.take(now=0.0)]
    original, repeat = sorted(pushes, key=lambda push: push.repeat)
    queue.retry(original, due=1.0)

    ledger.settle(pending.entry)
    queue.done(repeat)

    assert queue.take(now=1.0) is None
    assert not queue


def test_repeat_is_pushed_although_its_message_was_acked(ledger):
    queue = queue_of(TWICE)
    pending = add(queue, ledger, "1")
    queue.done(queue.take(now=0.0))

    ledger.settle(pending.entry)

    assert queue.take(now=0.0).repeat


def test_repeat_of_a_dead_lettered_message_is_not_pushed(ledger):
    queue = queue_of(TWICE)
    pending = add(queue, ledger, "1")
    queue.done(queue.take(now=0.0))

    ledger.settle(pending.entry, dead_letter_id="2")

    assert queue.take(now=0.0) is None


def test_messages_behind_an_ordering_key_count_as_backlog(ledger):
    queue = queue_of(ordered=True)
    for number in range(3):
        add(queue, ledger, str(number), key="k")
    add(queue, ledger, "3", key="other")

    before = len(queue)
    first = queue.take(now=0.0)
    other = queue.take(now=0.0)
    nothing = queue.take(now=0.0)

    assert (before, len(queue), nothing) == (4, 2, None)
    assert [first.pending.message.message_id, other.pending.message.message_id] == ["0", "3"]
    queue.done(first)
    assert queue.take(now=0.0).pending.message.message_id == "1"
