"""The bucket that holds every body. Uploads come before the record, reads are streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError

from app.domain.errors import ObjectStoreUnavailable
from app.settings import ObjectSettings

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

_READ_BYTES = 64 * 1024
_FAILURES = (BotoCoreError, ClientError, OSError, TimeoutError)


_GONE = ("NoSuchKey", "404", "NotFound")


def is_gone(error: ObjectStoreUnavailable) -> bool:
    """Whether the store answered that there is no such object, and did not fail otherwise."""
    cause = error.__cause__
    return isinstance(cause, ClientError) and cause.response["Error"].get("Code") in _GONE


class ObjectStore:
    """One bucket, under one prefix. Keys here are without the prefix."""

    def __init__(self, settings: ObjectSettings) -> None:
        """Nothing is connected before `start`."""
        self.settings = settings
        self._stack = AsyncExitStack()
        self._client: S3Client | None = None

    async def start(self) -> None:
        """Make the client; it connects when it is first used."""
        settings = self.settings
        self._client = await self._stack.enter_async_context(
            get_session().create_client(
                "s3",
                endpoint_url=settings.endpoint_url,
                region_name=settings.region,
                aws_access_key_id=settings.access_key_id.get_secret_value(),
                aws_secret_access_key=settings.secret_access_key.get_secret_value(),
                verify=str(settings.ca_file) if settings.ca_file else None,
                config=AioConfig(
                    signature_version="s3v4",
                    s3={"addressing_style": "path"},
                    connect_timeout=settings.timeout_seconds,
                    read_timeout=settings.timeout_seconds,
                    max_pool_connections=32,
                    retries={"max_attempts": 2, "mode": "standard"},
                    # A store that does not know checksum trailers would store them in the body.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        )

    async def stop(self) -> None:
        """Close all connections."""
        await self._stack.aclose()

    @property
    def _s3(self) -> S3Client:
        if self._client is None:
            raise ObjectStoreUnavailable
        return self._client

    def full_key(self, key: str) -> str:
        """The key as the bucket knows it."""
        return self.settings.prefix + key

    async def put(self, key: str, body: bytes, sha256_base64: str) -> None:
        """Store a body whose SHA-256 the store itself verifies where it can.

        The same key and body again are the same object, so a repeat is harmless. Raises
        ObjectStoreUnavailable.
        """
        try:
            await self._s3.put_object(
                Bucket=self.settings.bucket,
                Key=self.full_key(key),
                Body=body,
                ContentType="application/octet-stream",
                ChecksumSHA256=sha256_base64,
            )
        except _FAILURES as error:
            raise ObjectStoreUnavailable from error

    async def read(
        self, full_key: str, first: int | None = None, last: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes from `first` to `last` inclusive, in pieces. Raises ObjectStoreUnavailable."""
        extra: dict[str, Any] = {}
        if first is not None or last is not None:
            extra["Range"] = f"bytes={first or 0}-{'' if last is None else last}"
        try:
            answer = await self._s3.get_object(Bucket=self.settings.bucket, Key=full_key, **extra)
            async with answer["Body"] as body:
                while piece := await body.read(_READ_BYTES):
                    yield piece
        except _FAILURES as error:
            raise ObjectStoreUnavailable from error

    async def check(self) -> None:
        """Raise ObjectStoreUnavailable unless the bucket answers."""
        try:
            await self._s3.head_bucket(Bucket=self.settings.bucket)
        except _FAILURES as error:
            raise ObjectStoreUnavailable from error
