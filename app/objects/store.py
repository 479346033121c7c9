"""The bucket that holds every body. Uploads come before the record, reads are streamed.

Nothing here rests on what only some stores have: checksums that the store verifies and several
objects a delete are used where the settings or the store's answers say so. `docs/storage.md` has
the settings for each kind of store, `check-config --objects` tries what one can do.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from app.domain.errors import ObjectStoreUnavailable
from app.objects.failures import FAILURES, code_of, is_missing, is_precondition, unavailable
from app.objects.hashing import Hashing
from app.objects.multipart import Multipart
from app.objects.signing import Signer
from app.settings import ObjectSettings

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

_READ_BYTES = 64 * 1024
_DELETE_BATCH = 1000
_NOT_FOUND = "NoSuchKey"
# The store does not know the request, or not in the form in which it comes; one by one it does.
_NO_BATCHES = frozenset(
    {"NotImplemented", "MethodNotAllowed", "MissingContentMD5", "InvalidRequest", "InvalidArgument"}
)


@dataclass(frozen=True, slots=True)
class Head:
    """What the store says of one object; `sha256` in hex where it keeps it."""

    byte_size: int
    etag: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing; `key` is the full one."""

    key: str
    byte_size: int
    modified_at: datetime


class ObjectStore:
    """One bucket, under one prefix. A `full_key` is with the prefix, a `key` without."""

    def __init__(self, settings: ObjectSettings) -> None:
        """Nothing is connected before `start`."""
        self.settings = settings
        self._stack = AsyncExitStack()
        self._client: S3Client | None = None
        self._signing: S3Client | None = None
        self.multipart = Multipart(settings.bucket, lambda: self._s3)
        self.signer = Signer(settings, lambda: self._signing or self._s3)
        self.hashing = Hashing(self.read)

    async def start(self) -> None:
        """Make the clients; one connects when it is first used."""
        settings = self.settings
        self._client = await self._make_client(settings.endpoint_url)
        public = settings.public_endpoint_url
        if public is not None and public != settings.endpoint_url:
            # Addresses are signed for the host that the caller will use; none is rewritten after.
            self._signing = await self._make_client(public)

    async def _make_client(self, endpoint_url: str | None) -> S3Client:
        settings = self.settings
        return await self._stack.enter_async_context(
            get_session().create_client(
                "s3",
                endpoint_url=endpoint_url,
                region_name=settings.region,
                aws_access_key_id=settings.access_key_id.get_secret_value(),
                aws_secret_access_key=settings.secret_access_key.get_secret_value(),
                verify=str(settings.ca_file) if settings.ca_file else None,
                config=AioConfig(
                    signature_version="s3v4",
                    s3={"addressing_style": settings.addressing_style},
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
        """End what is being hashed and close all connections."""
        await self.hashing.stop()
        await self._stack.aclose()

    @property
    def _s3(self) -> S3Client:
        if self._client is None:
            raise ObjectStoreUnavailable
        return self._client

    def full_key(self, key: str) -> str:
        """The key as the bucket knows it."""
        return self.settings.prefix + key

    async def put(
        self,
        key: str,
        body: bytes,
        sha256_base64: str,
        content_type: str = "application/octet-stream",
    ) -> None:
        """Store a body whose digest the store itself verifies: SHA-256 where it can, else MD5.

        The same key and body again are the same object, so a repeat is harmless. Raises
        ObjectStoreUnavailable.
        """
        try:
            await self._s3.put_object(
                Bucket=self.settings.bucket,
                Key=self.full_key(key),
                Body=body,
                ContentType=content_type,
                **self._integrity(body, sha256_base64),
            )
        except FAILURES as error:
            raise unavailable(error, "put") from error

    def _integrity(self, body: bytes, sha256_base64: str) -> Any:
        if self.settings.checksum == "sha256":
            return {"ChecksumSHA256": sha256_base64}
        md5 = hashlib.md5(body, usedforsecurity=False)
        return {"ContentMD5": base64.b64encode(md5.digest()).decode()}

    async def put_once(self, key: str, body: bytes) -> None:
        """Store a small body unless there is one already, as far as the store can tell.

        A store without conditional writes overwrites: read back what stands there afterwards.
        """
        place: Any = {
            "Bucket": self.settings.bucket,
            "Key": self.full_key(key),
            "Body": body,
            "ContentType": "application/json",
        }
        try:
            await self._s3.put_object(**place, IfNoneMatch="*")
        except FAILURES as error:
            if is_precondition(error):
                return
            if code_of(error) not in _NO_BATCHES:
                raise unavailable(error, "put") from error
            try:
                await self._s3.put_object(**place)
            except FAILURES as again:
                raise unavailable(again, "put") from again

    async def find(self, full_key: str, limit: int) -> bytes | None:
        """The first `limit` bytes of an object, or None if there is none."""
        try:
            answer = await self._s3.get_object(Bucket=self.settings.bucket, Key=full_key)
            async with answer["Body"] as body:
                return await body.read(limit)
        except FAILURES as error:
            if is_missing(error):
                return None
            raise unavailable(error, "get") from error

    async def read(
        self, full_key: str, first: int | None = None, last: int | None = None
    ) -> AsyncIterator[bytes]:
        """The bytes from `first` to `last` inclusive, in pieces. Raises ObjectStoreUnavailable."""
        extra: dict[str, Any] = {}
        if first is not None or last is not None:
            extra["Range"] = f"bytes={first or 0}-{'' if last is None else last}"
        try:
            answer = await self._s3.get_object(Bucket=self.settings.bucket, Key=full_key, **extra)
            async with answer["Body"] as body:
                while piece := await body.read(_READ_BYTES):
                    yield piece
        except FAILURES as error:
            raise unavailable(error, "get") from error

    async def head(self, full_key: str) -> Head | None:
        """What the store says of an object; None: there is none."""
        extra: Any = {"ChecksumMode": "ENABLED"} if self.settings.checksum == "sha256" else {}
        try:
            answer = await self._s3.head_object(Bucket=self.settings.bucket, Key=full_key, **extra)
        except FAILURES as error:
            if is_missing(error):
                return None
            raise unavailable(error, "head") from error
        return Head(answer["ContentLength"], answer["ETag"], _hex(answer.get("ChecksumSHA256")))

    async def delete(self, full_keys: Sequence[str]) -> dict[str, str]:
        """Delete objects; answer the store's word for each that it did not delete.

        One that is not there counts as deleted. At most a thousand keys a request; a store that
        knows no such request is asked for one after the other. A single refused key, told within
        an answer of 200, is found in the result. Raises ObjectStoreUnavailable when the store does
        not answer: some may be deleted then, and to ask again is harmless.
        """
        refused: dict[str, str] = {}
        for start in range(0, len(full_keys), _DELETE_BATCH):
            batch = full_keys[start : start + _DELETE_BATCH]
            refused |= await self._delete_batch(batch)
        return refused

    async def _delete_batch(self, full_keys: Sequence[str]) -> dict[str, str]:
        if self.settings.deletes == "single":
            return await self._delete_singly(full_keys)
        try:
            answer = await self._s3.delete_objects(
                Bucket=self.settings.bucket,
                Delete={"Objects": [{"Key": key} for key in full_keys], "Quiet": True},
            )
        except ClientError as error:
            if code_of(error) in _NO_BATCHES:
                return await self._delete_singly(full_keys)
            raise unavailable(error, "delete") from error
        except FAILURES as error:
            raise unavailable(error, "delete") from error
        return {
            str(one.get("Key")): str(one.get("Code"))
            for one in answer.get("Errors", [])
            if one.get("Code") != _NOT_FOUND
        }

    async def _delete_singly(self, full_keys: Sequence[str]) -> dict[str, str]:
        refused: dict[str, str] = {}
        for key in full_keys:
            try:
                await self._s3.delete_object(Bucket=self.settings.bucket, Key=key)
            except ClientError as error:
                if not is_missing(error):
                    refused[key] = code_of(error)
            except FAILURES as error:
                raise unavailable(error, "delete") from error
        return refused

    async def list_objects(
        self, key_prefix: str, *, after: str | None = None, limit: int = 1000
    ) -> list[Listed]:
        """At most `limit` (and at most 1000) objects in the order of their keys.

        `key_prefix` is without the store's prefix, `after` a full key that was listed before.
        """
        extra: Any = {} if after is None else {"StartAfter": after}
        try:
            answer = await self._s3.list_objects_v2(
                Bucket=self.settings.bucket,
                Prefix=self.full_key(key_prefix),
                MaxKeys=limit,
                **extra,
            )
        except FAILURES as error:
            raise unavailable(error, "list") from error
        return [
            Listed(one["Key"], one["Size"], one["LastModified"])
            for one in answer.get("Contents", [])
        ]

    async def check(self) -> None:
        """Raise ObjectStoreUnavailable unless the bucket answers."""
        try:
            await self._s3.head_bucket(Bucket=self.settings.bucket)
        except FAILURES as error:
            raise unavailable(error, "head_bucket") from error


def _hex(sha256_base64: str | None) -> str | None:
    """The digest in hex. That of a multipart object is one of its parts and none of its bytes."""
    if sha256_base64 is None or "-" in sha256_base64:
        return None
    return base64.b64decode(sha256_base64).hex()
