"""Secrets that take several lines: private keys and the block values of YAML."""

from __future__ import annotations

import re

from app.domain.masking import names, values
from app.domain.masking.marks import Found, mark_lines

KEY_BEGIN = rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
KEY_END = rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
WINDOW = 32 * 1024
"""How far the end of a block is looked for. Until so much has come, nothing is decided."""

_LINE = re.compile(rb"([^\r\n]*)(?:\r\n|[\r\n])?")
_KEY_TEXT = re.compile(rb"[A-Za-z0-9+/=]{40}")
_ESCAPES = 8  # what may stand behind the first line of a key: a quote, an escaped line end
_HEADER = re.compile(rb"[ \t]*(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset|X-[\w\-]{1,30}): ")
_LAST = re.compile(rb"[ \t]*[A-Za-z0-9+/]{1,76}={0,2}[ \t]*")


def mark_keys(
    found: Found, data: bytes, begins: list[tuple[int, int]], ends: list[tuple[int, int]]
) -> None:
    """Mark the private keys between these first and last lines (each a start and an end).

    A first line without its last, within the window and before the next key begins, hides only
    what looks like the text of a key: a sentence about a missing key must not swallow the log.
    """
    later = iter(ends)
    last = next(later, None)
    for number, (start, end) in enumerate(begins):
        following = begins[number + 1][0] if number + 1 < len(begins) else None
        limit = min(start + WINDOW, len(data) if following is None else following)
        while last is not None and last[0] < end:
            last = next(later, None)
        if last is not None and last[1] <= limit:
            found.marks += mark_lines(start, last[1], data, start, "private_key")
            continue
        if following is None and limit == len(data):
            found.open.append(start)
        stop = _orphan(data, end, limit)
        if stop > end:
            found.marks += mark_lines(start, stop, data, start, "private_key")


def _orphan(data: bytes, at: int, limit: int) -> int:
    """Where the lines end, from the first one on, that look like the text of a key."""
    stop, last = at, at
    for line in _LINE.finditer(data, at, limit):
        text = line[1]
        run = _KEY_TEXT.search(text)
        if run and not run[0].islower():  # small letters only: a commit or a digest
            stop = last = line.end(1)
        elif _HEADER.match(text) or (last == stop > at and text and _LAST.fullmatch(text)):
            stop = line.end(1)
        elif len(text.strip()) > (_ESCAPES if line.start() == at else 0):
            break
    return stop if last > at else at


YAML_BLOCK = rb"(?:" + names.WORDS + rb")[\w.\-]{0,16}[\"']?:[ \t]{1,8}[|>]"
_HEAD = re.compile(rb"[+\-]?\d?[+\-]?[ \t]{0,64}(?:\r\n|[\r\n])")
_INDENT = re.compile(rb"[ ]*(?:- )*")


def mark_yaml(found: Found, data: bytes, start: int, end: int) -> int:
    """Mark the indented lines after `password: |`. Returns up to where it has looked."""
    head = _HEAD.match(data, end)
    line = values.line_start(data, start, 512)
    indent = _INDENT.match(data, line)
    depth = len(indent[0]) if indent else 0
    name = data[line + depth : end].partition(b":")[0].strip(b" \"'")
    if head is None or not names.is_secret(name.decode("ascii", "replace")):
        return end
    stop = head.end()
    for text in _LINE.finditer(data, stop, min(len(data), stop + WINDOW)):
        if text[1].strip() and len(text[1]) - len(text[1].lstrip(b" ")) <= depth:
            break
        stop = text.end()
    else:
        if stop == len(data):
            found.open.append(line)
    found.marks += mark_lines(head.end(), stop, data, line, "assignment")
    return stop


_ENCODED_LINE = re.compile(rb"([ \t]*)([A-Za-z0-9+/_\-]{60,120})")


def encoded_line(line: bytes) -> tuple[int, int] | None:
    """The indentation and width of a line that is base64, all of it and not the last of its text.

    None for other lines.
    """
    found = _ENCODED_LINE.fullmatch(line) if len(line) <= 256 else None  # noqa: PLR2004 - a bound
    return (len(found[1]), len(found[2])) if found else None


def line_before(data: bytes, start: int, most: int) -> tuple[int, int] | None:
    """The line before the one that begins at `start`, without its break; None if there is none."""
    if start == 0:
        return None
    end = start - (2 if data[start - 2 : start] == b"\r\n" else 1)
    begin = values.line_start(data, end, most)
    return (begin, end) if begin == 0 or data[begin - 1 : begin] in {b"\n", b"\r"} else None


def encoded_block(data: bytes, at: int, most: int) -> int:
    """Where the block of equally wide base64 lines begins that may go on at `at`; else `at`."""
    start, form = at, None
    while start > at - most and (line := line_before(data, start, 256)):
        found = encoded_line(data[slice(*line)])
        if found is None or form not in {None, found}:
            break
        start, form = line[0], found
    return start
