"""Cursor-paged lists: an opaque token that carries the place and the filters it belongs to."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from fastapi import Query

from app.domain.errors import PageTokenInvalid, PageTokenMismatch

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


def _fingerprint(filters: Mapping[str, Any]) -> str:
    text = orjson.dumps(dict(filters), default=str, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:12]
