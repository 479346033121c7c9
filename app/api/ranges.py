"""One byte range of a request (RFC 9110, section 14): linear, and only the single form."""

from __future__ import annotations

from app.domain.errors import RangeNotSatisfiable

_MAX_HEADER = 100


def parse_range(header: str | None, total: int) -> tuple[int, int] | None:
    """First and last byte, inclusive; None: no range was asked for, or one that may be ignored.

    Several ranges, other units and malformed headers are ignored, as the RFC allows; a range
    beyond the end raises RangeNotSatisfiable.
    """
    if header is None or len(header) > _MAX_HEADER or not header.startswith("bytes="):
        return None
    first, dash, last = header.removeprefix("bytes=").strip().partition("-")
    if not dash or not all(part.isascii() and part.isdigit() for part in (first, last) if part):
        return None
    if not first:
        return _suffix(last, total)
    start = int(first)
    end = min(int(last), total - 1) if last else total - 1
    if last and int(last) < start:
        return None
    if start >= total:
        raise RangeNotSatisfiable(total_bytes=total)
    return start, end


def _suffix(last: str, total: int) -> tuple[int, int] | None:
    if not last:
        return None
    if int(last) == 0 or total == 0:
        raise RangeNotSatisfiable(total_bytes=total)
    return max(total - int(last), 0), total - 1
