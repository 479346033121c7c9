"""Secrets that only their surroundings give away: assignments, flags, headers, addresses.

A detector ends inside or before the value; the function beside it finds the value's ends and says
no to what is none. Each looks at one line and at no more than a few kilobytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from app.domain.masking import names, values


@dataclass(frozen=True, slots=True)
class Value:
    """A value found.

    `context` is where the text begins without which it would not be known; hits that end before
    `seen` need no second look.
    """

    start: int
    end: int
    context: int
    seen: int


Examine = Callable[[bytes, int, int], Value | None]


@dataclass(frozen=True)
class Context:
    """One rule: a detector (any case), words of which each hit holds one, and what examines it."""

    kind: str
    detector: bytes
    literals: tuple[bytes, ...]
    examine: Examine
    canary: bytes


_NAME = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
_BEFORE = 64
_TOKEN_BEFORE = 200
_REST_OF_NAME = re.compile(rb"[\w.\-]{0,80}")
_OPERATOR = re.compile(rb"[ \t]{0,64}(?::=|=>|={1,3}|::?|>)[ \t]{0,64}")
_BREAK = re.compile(rb"[\s\"'<>(]")


def _left(data: bytes, at: int, letters: bytes = _NAME, most: int = _BEFORE) -> int:
    """Where the run of these letters begins that reaches up to `at`."""
    head = data[max(0, at - most) : at]
    return at - (len(head) - len(head.rstrip(letters)))


def _in_resource_name(data: bytes, at: int) -> bool:
    """True inside `arn:…:secret:name` and `urn:…`, where a colon assigns nothing."""
    word = _BREAK.split(data[max(0, at - _TOKEN_BEFORE) : at])[-1]
    return b"arn:" in word or b"urn:" in word


def assignment(data: bytes, start: int, end: int) -> Value | None:
    """`db_password = x`, `"token":"x"`, `?api_key=x`, `<secret>x`, `password => x`."""
    left = _left(data, start)
    rest = _REST_OF_NAME.match(data, start)
    name = data[left : rest.end() if rest else end]
    operator = _OPERATOR.match(data, end - 1)
    if operator is None or not names.is_secret(name.decode("ascii", "replace")):
        return None
    sign = operator[0].strip()
    if sign == b"::" or data.startswith(b"//", operator.end()):
        return None
    if sign == b">" and data[left - 1 : left] not in {b"<", b":"}:
        return None
    return _assigned(data, left, operator.end(), named=sign in {b":", b">"})


def _assigned(data: bytes, context: int, at: int, *, named: bool) -> Value | None:
    start, stop, quoted = values.extent(data, at)
    value = data[start:stop]
    if len(value) < values.MIN_VALUE_BYTES or value.startswith((b"{", b"|")):
        return None
    if values.is_placeholder(value, quoted=quoted) or _in_resource_name(data, context):
        return None
    name = data[context:at].decode("ascii", "replace")
    if names.refers(name, value.decode("ascii", "replace")):
        return None
    if named and not quoted and _says_something(name, data, start, stop):
        return None
    return Value(start, stop, context, stop)


def _says_something(name: str, data: bytes, start: int, stop: int) -> bool:
    """True for `token: expired` and `random_password.db: Creating...`, which assign nothing."""
    if values.is_prose(data, start, stop):
        return True
    return ("." in name or not names.is_of_password(name)) and values.is_word(data[start:stop])


def short_name(data: bytes, start: int, end: int) -> Value | None:
    """`pass=x`, `"pass": x`, `PW=x`; a bare `PASS: test` is none."""
    if data[max(0, start - 1) : start].isalnum():
        return None
    operator = _OPERATOR.match(data, end - 1)
    quoted = not data[end - 2 : end - 1].isalnum()
    if operator is None or (operator[0].strip() != b"=" and not quoted):
        return None
    return _assigned(data, start, operator.end(), named=False)


def flag(data: bytes, start: int, end: int) -> Value | None:
    """`--password x`: quoted, or with something in it that no word of a help text has."""
    if not names.is_secret(data[start:end].strip().decode("ascii", "replace")):
        return None
    begin, stop, quoted = values.extent(data, values.skip_blanks(data, end))
    value = data[begin:stop]
    plain = not quoted and (value[:1] in {b"-", b"<", b"["} or value.strip(b".,:;)").isalpha())
    if plain or len(value) < values.MIN_VALUE_BYTES:
        return None
    if values.is_placeholder(value, quoted=quoted):
        return None
    return Value(begin, stop, start, stop)


_AUTHORITY = re.compile(rb"""[^\s/?#"'<>`]{0,4096}""")


def url_user(data: bytes, start: int, end: int) -> Value | None:
    """The password of `scheme://user:password@host`; the user too where it is a token."""
    begin = start + 3
    found = _AUTHORITY.match(data, begin)
    stop = found.end() if found else end
    user, at, _ = data[begin:stop].rpartition(b"@")
    name, colon, word = user.partition(b":")
    left = _left(data, start, _NAME + b"+")
    if at and colon and word and word != b"x-oauth-basic":
        value = Value(begin + len(name) + 1, begin + len(user), left, stop)
        return None if values.is_placeholder(word) else value
    if at and len(name) >= 20 and not name.isalpha() and b"." not in name:  # noqa: PLR2004
        return Value(begin, begin + len(name), left, stop)
    return None


_SCHEME = re.compile(
    rb"(?:bearer|basic|token|apikey|api-key|digest|negotiate|ntlm|oauth|hawk|aws4-hmac-sha256"
    rb"|splunk|sso-key|gsso|key|signature)[ \t]{1,8}",
    re.IGNORECASE,
)
_WHOLE_LINE = (b"digest", b"oauth", b"hawk", b"aws4", b"signature")


def authorization(data: bytes, start: int, end: int) -> Value | None:
    """`Authorization: scheme credential`, in a header, a JSON text or a command."""
    operator = _OPERATOR.match(data, end - 1)
    if operator is None:
        return None
    at = operator.end()
    opened, stop, quoted = values.extent(data, at)
    scheme = _SCHEME.match(data, opened)
    if scheme is None:
        return _assigned(data, start, at, named=True)
    begin = scheme.end()
    if not quoted:
        whole = scheme[0].lower().startswith(_WHOLE_LINE)
        stop = values.quoted_end(data, begin) if whole else values.extent(data, begin)[1]
    if stop - begin < values.MIN_VALUE_BYTES or values.is_placeholder(data[begin:stop]):
        return None
    return Value(begin, stop, start, stop)


_CREDENTIAL = re.compile(rb"[A-Za-z0-9._~+/=\-]{1,16384}")


def bearer(data: bytes, start: int, end: int) -> Value | None:
    """`Bearer x` of 16 characters and more; a word of a sentence is none."""
    begin = end - 16
    found = _CREDENTIAL.match(data, begin)
    stop = found.end() if found else end
    word = data[begin:stop]
    if word.isalpha() and (word.islower() or word.istitle()):
        return None
    return Value(begin, stop, start, stop)


def basic(data: bytes, start: int, end: int) -> Value | None:
    """`Basic x` where x is the base64 of `user:password`."""
    begin = end - 8
    found = _CREDENTIAL.match(data, begin)
    stop = found.end() if found else end
    return Value(begin, stop, start, stop) if names.is_user_and_password(data[begin:stop]) else None


def cookie(data: bytes, start: int, end: int) -> Value | None:
    """`Cookie: name=value`, up to the end of the line or the quote."""
    operator = _OPERATOR.match(data, end - 1)
    if operator is None or operator[0].strip() != b":":
        return None
    begin, stop, quoted = values.extent(data, operator.end())
    stop = stop if quoted else values.quoted_end(data, begin)
    value = data[begin:stop]
    if b"=" not in value[:256] or values.is_placeholder(value.partition(b"=")[2]):
        return None
    return Value(begin, stop, start, stop)


def docker_auth(data: bytes, start: int, end: int) -> Value | None:
    """`"auth": "…"` of a registry's configuration."""
    operator = _OPERATOR.match(data, end - 1)
    begin, stop, quoted = values.extent(data, operator.end() if operator else end)
    if not quoted or not names.is_user_and_password(data[begin:stop]):
        return None
    return Value(begin, stop, start, stop)


_UUID = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def secret_id(data: bytes, start: int, end: int) -> Value | None:
    """`secret_id` with a UUID as its value; elsewhere it names a secret."""
    operator = _OPERATOR.match(data, end - 1)
    begin, stop, _ = values.extent(data, operator.end() if operator else end)
    return Value(begin, stop, start, stop) if _UUID.fullmatch(data, begin, stop) else None


_SIGNATURE = re.compile(rb"[A-Za-z0-9%+/=_\-]{0,4096}")


def signature(data: bytes, start: int, end: int) -> Value | None:
    """The signature of a presigned address, as good as a password while it lasts."""
    found = _SIGNATURE.match(data, end)
    return Value(end - 20, found.end() if found else end, start, found.end() if found else end)


_CLIENTS = re.compile(rb"curl|wget|http", re.IGNORECASE)


def user_option(data: bytes, start: int, end: int) -> Value | None:
    """`curl … -u user:password`; the same option of other commands takes no password."""
    client = _CLIENTS.search(data, values.line_start(data, start, 512), start)
    if client is None:
        return None
    begin, stop, _ = values.extent(data, values.skip_blanks(data, end))
    user, colon, word = data[begin:stop].partition(b":")
    if not colon or not word or values.is_placeholder(word):
        return None
    return Value(begin + len(user) + 1, stop, client.start(), stop)


_QUOTES = rb"""\\{0,7}["'\])]{0,3}[ \t]{0,8}"""
CONTEXTS = (
    Context(
        "assignment",
        rb"(?:" + names.WORDS + rb")[\w.\-]{0,16}" + _QUOTES + b"[=:>]",
        names.LITERALS,
        assignment,
        b'db_password = "q7-Rt2.zK4"',
    ),
    Context(
        "assignment",
        rb"(?:pass|pw)" + _QUOTES + b"[=:]",
        (b"pass", b"pw"),
        short_name,
        b"PASS=q7-Rt2.zK4",
    ),
    Context(
        "assignment",
        rb"--[\w\-]{0,32}(?:" + names.WORDS + rb")[\w\-]{0,16}[ \t]",
        names.LITERALS,
        flag,
        b"--db-password q7-Rt2.zK4",
    ),
    Context(
        "url_password",
        rb"""://[^\s/?#"'<>`@]{1,}@""",
        (b"://",),
        url_user,
        b"postgres://app:q7-Rt2.zK4@db:5432/app",
    ),
    Context(
        "authorization",
        rb"authorization" + _QUOTES + b"[=:]",
        (b"authorization",),
        authorization,
        b"Authorization: Token q7-Rt2.zK4",
    ),
    Context(
        "authorization",
        rb"bearer[ \t]{1,4}[A-Za-z0-9._~+/=\-]{16}",
        (b"bearer",),
        bearer,
        b"Bearer q7Rt2zK4q7Rt2zK4q7",
    ),
    Context(
        "authorization",
        rb"basic[ \t]{1,4}[A-Za-z0-9+/=]{8}",
        (b"basic",),
        basic,
        b"Basic YXBwOnE3UnQyeks0",
    ),
    Context(
        "cookie",
        rb"cookie" + _QUOTES + b":",
        (b"cookie",),
        cookie,
        b"Cookie: sid=q7Rt2zK4q7Rt2zK4",
    ),
    Context(
        "assignment",
        rb"""["'\\]auth["'\\]{1,8}[ \t]{0,8}:""",
        (b"auth",),
        docker_auth,
        b'"auth": "YXBwOnE3UnQyeks0"',
    ),
    Context(
        "assignment",
        rb"secret[_\-]?id" + _QUOTES + b"[=:]",
        (b"secret",),
        secret_id,
        b"secret_id=4f9a07c3-e1b8-5d26-4f9a-07c3e1b85d26",
    ),
    Context(
        "signature",
        rb"(?:x-amz-signature|x-goog-signature|x-amz-security-token|[?&]sig)=[A-Za-z0-9%+/=_\-]{20}",
        (b"signature=", b"-token=", b"sig="),
        signature,
        b"X-Amz-Signature=4f9a07c3e1b85d264f9a07c3e1b85d26",
    ),
    Context(
        "url_password",
        rb"[ \t](?:-u|--user)[ \t=]",
        (b"-u", b"--user"),
        user_option,
        b"curl -s -u app:q7Rt2zK4 https://host",
    ),
)
