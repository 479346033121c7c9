"""Cursor-paged lists: an opaque token that carries the place and the filters it belongs to."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import Query

from app.domain.errors import PageTokenInvalid, PageTokenMismatch
from app.domain.jsontext import is_clean

MAX_PAGE = 500

PageSize = Annotated[
    int,
    Query(ge=1, le=1_000_000, description=f"Items a page; more than {MAX_PAGE} means {MAX_PAGE}."),
]
PageToken = Annotated[
    str | None, Query(max_length=1000, description="`next_page_token` of the page before.")
]


def bounded(page_size: int) -> int:
    """The page size that is really used; answers tell it in the header Page-Size."""
    return min(page_size, MAX_PAGE)


def encode(place: list[Any], filters: Mapping[str, Any]) -> str:
    """A token for what comes after `place` in the list with these filters."""
    return base64.urlsafe_b64encode(
        orjson.dumps([_fingerprint(filters), place], default=str)
    ).decode()


def decode(token: str | None, filters: Mapping[str, Any]) -> list[Any] | None:
    """The place a token stands for. Raises PageTokenInvalid, PageTokenMismatch."""
    if token is None:
        return None
    try:
        fingerprint, place = orjson.loads(base64.urlsafe_b64decode(token.encode()))
    except (binascii.Error, ValueError, TypeError):
        raise PageTokenInvalid from None
    if not isinstance(place, list):
        raise PageTokenInvalid
    if fingerprint != _fingerprint(filters):
        raise PageTokenMismatch
    return place


def is_usable(moment: datetime) -> bool:
    """Whether the moment has a place in every time zone, and a day before it."""
    return 1970 <= moment.year < 9999  # noqa: PLR2004


def time_place(place: list[Any] | None) -> tuple[datetime, UUID] | None:
    """The place in a list by time and id. Raises PageTokenInvalid for any other."""
    if place is None:
        return None
    try:
        moment, identifier = datetime.fromisoformat(place[0]), UUID(place[1])
    except (ValueError, TypeError, AttributeError, IndexError):
        raise PageTokenInvalid from None
    if moment.tzinfo is None or not is_usable(moment):
        raise PageTokenInvalid
    return moment, identifier


def text_place(place: list[Any] | None) -> str:
    """The place in a list by a text, which the empty text precedes. Raises PageTokenInvalid."""
    match place:
        case None:
            return ""
        case [str() as text] if is_clean(text):
            return text
        case _:
            raise PageTokenInvalid


def _fingerprint(filters: Mapping[str, Any]) -> str:
    text = orjson.dumps(dict(filters), default=str, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:12]
