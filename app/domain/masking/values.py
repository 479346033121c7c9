"""Where an assigned value begins and ends, and which values are no secrets.

Everything here looks at one line and a bounded number of bytes, so it is linear however often it
is asked.
"""

from __future__ import annotations

import re

MAX_VALUE_BYTES = 16 * 1024
MIN_VALUE_BYTES = 4
SHORT_WORD = 7
"""So many small letters may be a word in a setting (`prod`, `default`)."""

# Which bytes follow decides whether a quote or a separator ends an unquoted value.
_PLAIN = re.compile(
    rb"""(?:
        [^\s,;&|<>"'`\\]
      | \\ (?! \\{0,7}["'`] )
      | ["'`] (?! [\s,;:)}\]] | \Z )
      | [,;] (?! [\s"'{\[\\] | [\w.\-]{0,40}\s?[=:] | \Z )
    ){1,16384}""",
    re.VERBOSE,
)
_OPENING = re.compile(rb"""(?:\[[ \t]{0,8})?(?:[bBuUrRfF]{1,2}(?=["']))?(\\{0,7})(["'`])""")
_UNESCAPED = {
    b'"': re.compile(rb'(?:[^"\\\r\n]|\\[^\r\n]){0,16384}'),
    b"'": re.compile(rb"(?:[^'\\\r\n]|\\[^\r\n]){0,16384}"),
    b"`": re.compile(rb"[^`\r\n]{0,16384}"),
}
_REST = re.compile(rb"[^\r\n]{0,16384}")
_QUOTED_REST = re.compile(rb"""[^\r\n"'`\\]{0,16384}""")

_REFERENCE = (
    b"{{", b"${", b"$(", b"<%", b"{%", b"(sensitive", b"(known", b"(redacted", b"(hidden",
    b"(unchanged", b"(not ", b"(none", b"(null", b"(empty", b"(unset", b"!vault", b"!ref", b"!sub",
    b"vault://", b"vault:", b"op://", b"arn:", b"file://", b"secret://", b"secrets://", b"env://",
    b"awssm://", b"gcpsm://", b"ref+", b"enc[", b"$ansible_vault", b"random_password.", b"@file:",
    b"[withheld", b"ssh-", b"ecdsa-", b"-----begin cert", b"-----begin publ",
)  # fmt: skip
_WORDS = frozenset(
    b"""null none nil true false yes no on off undefined unset empty redacted masked hidden filtered
    sensitive secret password passwd token credentials required optional default unknown invalid
    expired missing incorrect rejected accepted denied forbidden unauthorized unavailable not
    string str bytes int number bool boolean object any optional[str] string! [redacted] [masked]
    [filtered] [hidden] [secret] (secret) value_specified_in_no_log_parameter changed unchanged
    generated configmap tls opaque bearer basic ok done failed found created deleted updated set
    present absent enabled disabled skipped required. invalid. expired. incorrect. n/a nan todo
    must should cannot can't is was has are the for from and with""".split()
)
_NEVER = re.compile(
    rb"""
      \*+ | \.+ | -+ | _+ | [xX]{3,} | \d{1,5}
    | \$[A-Za-z_][A-Za-z0-9_]* | %[A-Za-z_]\w*% | <[^<>]*> | \[[A-Z_ ]*\]
    | (?:~|\.{1,2})?(?:/[a-z0-9_.@\-]+){2,}/? | (?:~|\.{1,2})(?:/[\w.@\-]+)+/?
    | /(?:etc|var|run|tmp|home|root|opt|usr|mnt|srv|app|data|Users|secrets?|vault|workspace|builds?
        |config|keys|certs?|proc|dev)(?:/[\w.@\-]+)*/?
    | sha(?:1|256|384|512)[:\-][0-9a-fA-F+/=A-Za-z]+
    """,
    re.VERBOSE,
)
_CODE = re.compile(
    rb"""
      (?:self|cls|os|process\.env|env|config|settings|args|var|local|data|module|each|this|params?
        |request|ctx|opts|options|values|inputs?|secrets|vars|github|steps)\.[A-Za-z_][\w.]*[)\]},]*
    | [A-Za-z_][\w.]*\( (?: ["'].* | [\w.,=]*\)[)\]},;.\w]* )?
    """,
    re.VERBOSE,
)
_LETTERS = re.compile(rb"[A-Za-z][a-z'\-]*[.:!?]{0,3}")
_PROSE = re.compile(rb"[ \t]{1,8}[A-Za-z(\[\"'`]")


def is_placeholder(value: bytes, *, quoted: bool = True) -> bool:
    """True for what stands where a secret would: a reference, a template, a mask, `null`, a path.

    Except for openings such as `${`, whose end may stand anywhere, the whole value is compared:
    `no` is none, `no-Xy72` may be one. Without quotes a piece of program text counts as well.
    """
    value = value.strip() if quoted else value.strip().rstrip(b"])}>,;:")
    if len(value) <= 64 and value.lower() in _WORDS:  # noqa: PLR2004 - the longest is 35
        return True
    if value[:16].lower().startswith(_REFERENCE):
        return True
    if len(value) > 512:  # noqa: PLR2004 - a bound
        return False
    return bool(_NEVER.fullmatch(value) or (not quoted and _CODE.fullmatch(value)))


def is_prose(data: bytes, start: int, end: int) -> bool:
    """True if `data[start:end]` is a word of a sentence: letters only, and a word after it."""
    return (
        end - start <= 32  # noqa: PLR2004 - no word is longer
        and _LETTERS.fullmatch(data, start, end) is not None
        and _PROSE.match(data, end) is not None
    )


def is_word(value: bytes) -> bool:
    """True if a value is made of small letters after its first, as words are."""
    return len(value) <= 32 and _LETTERS.fullmatch(value) is not None  # noqa: PLR2004


def extent(data: bytes, at: int) -> tuple[int, int, bool]:
    """Where the value that begins at `at` starts and ends, and whether it was quoted.

    An opening quote counts with the backslashes before it, and only the same ends it. Without its
    end the value takes the rest of the line, at most MAX_VALUE_BYTES.
    """
    opening = _OPENING.match(data, at)
    if opening is None:
        plain = _PLAIN.match(data, at)
        return at, plain.end() if plain else at, False
    start = opening.end()
    escape, quote = opening[1], opening[2]
    if not escape:
        found = _UNESCAPED[quote].match(data, start)
        return start, found.end() if found else start, True
    limit = line_end(data, start)
    closing = re.compile(rb"(?<!\\)" + re.escape(escape + quote))
    end = closing.search(data, start, limit)
    return start, end.start() if end else limit, True


_BLANKS = re.compile(rb"[ \t]{0,64}")


def skip_blanks(data: bytes, at: int) -> int:
    """The next place that holds no blank."""
    blanks = _BLANKS.match(data, at)
    return blanks.end() if blanks else at


def line_start(data: bytes, at: int, most: int) -> int:
    """Where the line begins that holds `at`, at most `most` bytes before it."""
    low = max(0, at - most)
    return max(low, data.rfind(b"\n", low, at) + 1, data.rfind(b"\r", low, at) + 1)


def line_end(data: bytes, at: int) -> int:
    """The end of the line without its break, at most MAX_VALUE_BYTES away."""
    rest = _REST.match(data, at)
    return rest.end() if rest else at


def quoted_end(data: bytes, at: int) -> int:
    """The end of the line or the next quote, whichever comes first."""
    rest = _QUOTED_REST.match(data, at)
    return rest.end() if rest else at
