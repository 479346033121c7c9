"""What a store's refusal means here, and which of them an operator has to be told about."""

from __future__ import annotations

import structlog
from botocore.exceptions import BotoCoreError, ClientError

from app.domain.errors import ObjectStoreUnavailable

_LOG = structlog.get_logger(__name__)

FAILURES = (BotoCoreError, ClientError, OSError, TimeoutError)

_MISSING = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchUpload"})
# To repeat these is of no use before somebody has mended something.
_TO_MEND = {
    "RequestTimeTooSkewed": "the clock of this machine or of the store is wrong",
    "AccessDenied": "the access key may not do this",
    "403": "the access key may not do this",
    "InvalidAccessKeyId": "the store does not know the access key",
    "SignatureDoesNotMatch": "the secret key, the region or the checksum mode does not fit",
    "NoSuchBucket": "the bucket does not exist",
    "QuotaExceeded": "the store is full",
    "XMinioStorageFull": "the store is full",
    "InsufficientStorage": "the store is full",
    "507": "the store is full",
}


def code_of(error: BaseException) -> str:
    """The store's own word for its refusal; for anything else the name of the exception."""
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", "")) or str(status_of(error))
    return type(error).__name__


def status_of(error: BaseException) -> int:
    """The HTTP status of a refusal, 0 where there was no answer."""
    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return 0


def is_missing(error: BaseException) -> bool:
    """Whether the store says that there is no such object or upload."""
    return isinstance(error, ClientError) and code_of(error) in _MISSING


def is_precondition(error: BaseException) -> bool:
    """Whether a condition of ours did not hold."""
    return status_of(error) == 412  # noqa: PLR2004 - Precondition Failed


def unavailable(error: BaseException, operation: str) -> ObjectStoreUnavailable:
    """The error to raise; what only a person can mend is logged with its cause."""
    code = code_of(error)
    if code in _TO_MEND:
        _LOG.error("objects.refused", operation=operation, code=code, cause=_TO_MEND[code])
    return ObjectStoreUnavailable()
