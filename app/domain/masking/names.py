"""Which names announce a secret: `db_password` does, `token_type` and `secretName` do not."""

from __future__ import annotations

import binascii
import re
from functools import lru_cache

_MAX_NAME = 200

# What a name must hold before anything else looks at it; also the detector of assignments.
WORDS = (
    rb"passwor[dt]|passwd|passphrase|passcode|pwd|secret|token|credential|api[_\-. ]?key"
    rb"|(?:access|private|encryption|signing|auth|account|shared|master|client|ssh|deploy|service"
    rb"|storage|session|hmac|license|subscription)[_\-.]?key|[_\-]pw|[_\-]pass|_auth"
)
LITERALS = (
    b"passwor", b"passwd", b"passphrase", b"passcode", b"pwd", b"secret", b"token", b"credential",
    b"key", b"_pw", b"-pw", b"_pass", b"-pass", b"_auth",
)  # fmt: skip

_SPLIT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ENDINGS = (
    "password", "passwort", "passwd", "passphrase", "passcode", "pwd", "secret", "token",
    "credential", "credentials", "apikey", "accesskey", "secretkey", "privatekey", "authkey",
    "accountkey", "sharedaccesskey", "encryptionkey", "signingkey", "masterkey", "sessionkey",
)  # fmt: skip
_WHOLE = {"pw", "pass", "passwords"}
_BEFORE_KEY = {
    "api", "access", "private", "encryption", "signing", "auth", "account", "shared", "master",
    "client", "ssh", "deploy", "service", "storage", "session", "hmac", "license", "secret",
    "subscription",
}  # fmt: skip
# After these the word means no secret: a place in a list, a number of words, a public half.
_PUBLIC_BEFORE = {
    "next", "page", "continuation", "continue", "pagination", "idempotency", "sync", "cancel",
    "cancellation", "public", "no", "max", "min", "num", "total", "prompt", "completion", "per",
    "existing", "pull", "eos", "bos", "pad", "unk", "sep", "cls", "mask",
}  # fmt: skip
# A name that goes on with one of these speaks about a secret and does not hold it.
_ABOUT = {
    "file", "files", "path", "paths", "dir", "name", "names", "ref", "refs", "policy", "policies",
    "url", "uri", "endpoint", "count", "counts", "ttl", "id", "ids", "length", "len", "type",
    "types", "mode", "arn", "size", "version", "expiry", "expires", "expiration", "expired", "age",
    "at", "in", "on", "by", "seconds", "days", "minutes", "manager", "store", "stores", "provider",
    "engine", "backend", "reset", "required", "enabled", "disabled", "field", "env", "var",
    "variable", "source", "format", "algorithm", "accessor", "status", "state", "created",
    "updated", "changed", "rotated", "rotation", "period", "usage", "limit", "index", "namespace",
    "issuer", "audience", "review", "service", "server", "reviews", "requests", "request",
    "controller", "cleaner", "class", "kind", "location", "exists", "valid", "hint", "label",
    "labels", "annotations", "metadata", "scope", "scopes", "group", "user", "username", "owner",
    "error", "errors", "is", "was", "has", "max", "min", "prompt", "rules", "number",
}  # fmt: skip


def is_secret(name: str) -> bool:
    """True if a value under this name is taken for a secret, whatever it looks like."""
    return _is_secret(name[-_MAX_NAME:])


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    if name == "_auth":
        return True
    words = [word.lower() for word in _SPLIT.findall(name)]
    for at in range(len(words) - 1, -1, -1):
        if _announces(words, at):
            after = [word for word in words[at + 1 :] if not word.isdigit()]
            before = words[at - 1] if at else ""
            return before not in _PUBLIC_BEFORE and not (after and after[-1] in _ABOUT)
    return False


def _announces(words: list[str], at: int) -> bool:
    word = words[at]
    if word in {"key", "keys"}:
        return at > 0 and words[at - 1] in _BEFORE_KEY
    return word in _WHOLE or word.endswith(_ENDINGS)


def is_about(name: str) -> bool:
    """True for a name that speaks about a secret beside it: `type`, `created_at`, `secretName`."""
    words = _SPLIT.findall(name[-_MAX_NAME:])
    return bool(words) and words[-1].lower() in _ABOUT


_SECRET_ID = re.compile(r"(?:^|[^A-Za-z])secret[_\-]?id$", re.IGNORECASE)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def holds(name: str, value: str) -> bool:
    """True for the names that hold a secret only if the value has a certain form.

    `secret_id` with a UUID (elsewhere it is a name), `auth` with the base64 of `user:password`.
    """
    if _SECRET_ID.search(name[-_MAX_NAME:]):
        return _UUID.fullmatch(value) is not None
    return name == "auth" and is_user_and_password(value.encode(errors="replace"))


_TELLING = re.compile(r"pass|pwd", re.IGNORECASE)
_OBJECT = re.compile(r"[a-z0-9][a-z0-9\-]{0,62}/[a-z0-9][a-z0-9.\-]{0,252}")


def is_of_password(name: str) -> bool:
    """True if the name speaks of a password, which may be any word."""
    return _TELLING.search(name) is not None


def refers(name: str, value: str) -> bool:
    """True for `namespace/name` under the name of a secret: it tells which one, elsewhere."""
    return "secret" in name.lower() and not is_of_password(name) and bool(_OBJECT.fullmatch(value))


def is_user_and_password(value: bytes) -> bool:
    """True if the value is the base64 of printable text with a colon in it."""
    try:
        text = binascii.a2b_base64(value + b"=" * (-len(value) % 4), strict_mode=True)
    except (binascii.Error, ValueError):
        return False
    name, colon, word = text.partition(b":")
    return bool(colon and word) and len(name) <= _MAX_NAME and text.isascii()
