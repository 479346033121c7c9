"""Up to where a chunk of a stream may be stored, so that no secret is ever split."""

from __future__ import annotations

from app.domain.masking.blocks import encoded_block
from app.domain.masking.exact import Exact
from app.domain.masking.marks import Found

PROGRESS_BYTES = 64 * 1024
"""From this size on a chunk is always accepted in part, whatever it holds."""
_MARGIN = 4 * 1024
_LARGEST_MARGIN = 48 * 1024
_SEPARATOR_WITHIN = 2 * 1024
_SEPARATORS = (b" ", b"\t", b",", b";")


def boundary(data: bytes, found: Found, exact: Exact) -> int:
    """The last place at which `data` may be cut when more of it may come; 0 if there is none.

    Behind a line break where one is near. From there it moves back before whatever it would cut
    through or separate from its context, as long as that leaves less than PROGRESS_BYTES behind.
    """
    size = len(data)
    lowest = size - PROGRESS_BYTES
    place = max(data.rfind(b"\n", max(0, lowest)), data.rfind(b"\r", max(0, lowest))) + 1
    if place <= max(0, lowest):
        place = _within_line(data, exact) if size >= PROGRESS_BYTES else 0
    zones = _zones(found, size)
    while place > 0:
        back = _before(zones, place)
        begun = exact.uncut(data, back)
        if begun < back:
            back = _before(zones, begun, touching=1)
        back = encoded_block(data, back, PROGRESS_BYTES)
        if back == place or back <= lowest:
            return place
        place = back
    return place


def _before(zones: list[tuple[int, int]], place: int, touching: int = 0) -> int:
    """`place`, or where the zone begins that holds it (or, if touching counts, ends there)."""
    for start, end in reversed(zones):
        if start < place < end + touching:
            return start
    return place


def _zones(found: Found, size: int) -> list[tuple[int, int]]:
    """What must not be cut apart, in order. Marks that touch become one mask, so they stay one."""
    zones = sorted(
        [(mark.context, mark.end) for mark in found.marks]
        + [(place, size + 1) for place in found.open]
    )
    merged: list[tuple[int, int]] = []
    for start, end in zones:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _within_line(data: bytes, exact: Exact) -> int:
    """A place in a line that has no end yet: between words if possible, never in a character."""
    place = len(data) - min(max(_MARGIN, exact.longest), _LARGEST_MARGIN)
    low = place - _SEPARATOR_WITHIN
    separator = max(data.rfind(letter, low, place) for letter in _SEPARATORS) + 1
    if separator > low:
        return separator
    while 0x80 <= data[place] < 0xC0:  # noqa: PLR2004 - the continuation bytes of UTF-8
        place -= 1
        if place <= low:
            return low
    return place
