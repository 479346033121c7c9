"""Cursors: what they survive, how they compare, and what is none."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from app.domain.errors import FeedCursorInvalid
from app.domain.feed import Cursor

SOME = Cursor(1, 7, UUID(int=3), 2, datetime(2026, 5, 1, tzinfo=UTC))


def test_a_cursor_survives_its_text():
    text = SOME.encode()

    assert Cursor.decode(text) == SOME
    assert Cursor.decode(text).created_from == SOME.created_from
    assert text.isascii()
    assert set("=+/") & set(text) == set()


def test_cursors_are_ordered_by_epoch_then_xid_then_attempt_then_number():
    later = [
        replace(SOME, event_number=3),
        replace(SOME, attempt_id=UUID(int=4), event_number=1),
        replace(SOME, xid=8, attempt_id=UUID(int=1)),
        replace(SOME, epoch=2, xid=1),
    ]

    assert sorted([*reversed(later), SOME]) == [SOME, *later]


GARBAGE = [
    "",
    "x",
    "garbage",
    "é",
    "\x00",
    "latest ",
    "1",
    "-1",
    "' OR 1=1 --",
    SOME.encode()[:-1],
    SOME.encode() + "A",
    SOME.encode() + "=",
    SOME.encode().swapcase(),
    SOME.encode()[4:],
    "A" * 60,
    "_" * 60,
    "9" * 5000,
    replace(SOME, epoch=0).encode(),
    replace(SOME, xid=2**64 - 1).encode(),
    replace(SOME, event_number=2**32 - 1).encode(),
    replace(SOME, created_from=datetime(1, 1, 1, tzinfo=UTC)).encode(),
    replace(SOME, created_from=datetime(9999, 1, 1, tzinfo=UTC)).encode(),
]


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_anything_else_is_no_cursor(text):
    with pytest.raises(FeedCursorInvalid):
        Cursor.decode(text)
