"""Searching the logs of an attempt: every line once, whatever the edges of chunks and pages."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.log_text import BEFORE, BEHIND, Characters, LineSearch, whole_characters
from app.handlers import log_searching
from tests.logs.test_reading import two_leases


def grep(text: bytes, word: bytes) -> list[tuple[int, int]]:
    """Offset and line number of the first place in every line that holds the word."""
    found, at = [], 0
    for number, line in enumerate(text.split(b"\n"), 1):
        place = line.find(word)
        if place >= 0:
            found.append((at + place, number))
        at += len(line) + 1
    return found


def search(text: bytes, word: bytes, pieces, place=(0, 1, False)):
    searching = LineSearch(word, place)
    found, at = [], 0
    for size in [*pieces, len(text)]:
        found += searching.feed(text[at : at + size])
        at += size
    return found + list(searching.feed(b"", final=True))


TEXTS = st.lists(st.sampled_from([b"a", b"b", b"ab", b"\n", b"x" * 200, b"aab"]), max_size=60)


@given(TEXTS, st.sampled_from([b"a", b"ab", b"aab", b"ba"]), st.lists(st.integers(1, 300)))
@settings(max_examples=400, deadline=None)
def test_lines_are_found_wherever_the_text_is_cut(parts, word, pieces):
    text = b"".join(parts)

    found = search(text, word, pieces)

    assert [(match.offset, match.line_number) for match in found] == grep(text, word)
    assert all(word.decode() in match.text for match in found)


@given(TEXTS, st.sampled_from([b"a", b"ab"]), st.integers(1, 200), st.integers(0, 20))
@settings(max_examples=400, deadline=None)
def test_search_goes_on_from_its_place_without_losing_or_doubling(parts, word, size, matches):
    text = b"".join(parts)
    searching, found = LineSearch(word), []
    for start in range(0, len(text), size):
        for match in searching.feed(text[start : start + size]):
            found.append(match)
            if len(found) > matches:
                break
        if len(found) > matches:
            break

    offset, line, is_found = searching.place
    rest = search(text[offset:], word, [], (offset, line, is_found))

    assert [(one.offset, one.line_number) for one in [*found, *rest]] == grep(text, word)


def test_search_keeps_little_of_a_text_without_lines():
    searching = LineSearch(b"needle")

    for _ in range(1000):
        assert list(searching.feed(b"x" * 10_000)) == []
        assert len(searching._buffer) < BEFORE + BEHIND + 10_100


def test_long_line_is_shown_around_the_word():
    text = b"\xc3\xb6" * 1000 + b"needle" + b"\xc3\xb6" * 1000

    [match] = search(text, b"needle", [999, 1007, 3])

    assert match.offset == 2000
    assert set(match.text) == set("öneedle")
    assert len(match.text.encode()) <= BEFORE + BEHIND


@given(st.binary(max_size=40), st.lists(st.integers(1, 5)))
def test_characters_are_never_broken(data, sizes):
    characters, text, at = Characters(), "", 0
    for size in [*sizes, len(data)]:
        text += characters.feed(data[at : at + size])
        at += size
    assert characters.held_back <= 3

    assert text + characters.end() == data.decode(errors="replace")


def test_text_is_cut_to_whole_characters():
    assert whole_characters("🙂a🙂".encode()[2:-2]) == "a"


# --- through the service --------------------------------------------------------------------------


async def test_lines_are_found_in_every_stream_with_their_place(held, logs):
    dice = random.Random(3)
    words = [b"ok", b"error", b"an error or two errors", b"x" * 500 + b"error"]
    text = b"".join(dice.choice(words) + b"\n" for _ in range(300))
    at = 0
    while at < len(text):
        answer = await held.log(text[at : at + dice.randrange(600, 3000)], at)
        at = answer.json()["next_offset"]
        if answer.json()["need_more"] or len(text) - at < 600:
            at = (await held.log(text[at:], at, final=True)).json()["next_offset"]
    await held.log(b"an error there\n", 0, "stderr")

    found = await logs.search(held, "error", page_size=7)

    stored = await logs.text(held)
    assert stored == text
    out = [(one["offset"], one["line_number"]) for one in found if one["stream"] == "stdout"]
    assert out == grep(text, b"error")
    assert found[-1] == {
        "stream": "stderr",
        "lease_number": 1,
        "line_number": 1,
        "offset": 3,
        "text": "an error there",
    }
    one = found[5]
    assert (await logs.text(held, one["stream"], offset=one["offset"])).startswith(b"error")


async def test_search_over_leases_and_within_one(control, make_runner, sql, logs):
    first, second = await two_leases(control, make_runner, sql)
    await second.log(b"of the second\n", 0)

    found = await logs.search(first, "of the")

    assert [(one["lease_number"], one["line_number"], one["text"]) for one in found] == [
        (1, 1, "of the first"),
        (2, 3, "of the second"),
    ]
    assert len(await logs.search(first, "of the", lease_number=2)) == 1
    assert len(await logs.search(first, "of the", stream="stderr")) == 0


async def test_page_that_takes_too_long_ends_early_and_is_gone_on_with(held, logs, monkeypatch):
    at = 0
    for number in range(20):
        line = b"line %d with a word\n" % number
        await held.log(line, at)
        at += len(line)
    monkeypatch.setattr(log_searching, "SECONDS_A_PAGE", -1.0)

    found = await logs.search(held, "word")

    assert [one["line_number"] for one in found] == list(range(1, 21))


async def test_secret_cannot_be_found(held, logs):
    await held.log_json(b"login correct-horse-9 ok\n", 0, mask=["correct-horse-9"])

    assert await logs.search(held, "correct-horse") == []
    assert [one["text"] for one in await logs.search(held, "login *** ok")] == ["login *** ok"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 422),
        ({"q": ""}, 422),
        ({"q": "a\nb"}, 422),
        ({"q": "x" * 201}, 422),
        ({"q": "x", "stream": "all"}, 422),
        ({"q": "x", "page_token": "x"}, 400),
    ],
)
async def test_bad_searches_are_refused(query, status, held, control):
    path = f"/v1/attempts/{held.attempt_id}/logs:search"

    assert (await control.call("GET", path, params=query)).status_code == status


async def test_search_in_an_unknown_attempt(held, control):
    answer = await control.call("GET", f"/v1/attempts/{held.id}/logs:search?q=x")

    assert answer.status_code == 404
