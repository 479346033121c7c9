"""Uploads in parts. Until one is completed there is no object; after it nothing can change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from app.objects.failures import FAILURES, is_missing, unavailable

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Part:
    """One uploaded part."""

    part_number: int
    etag: str
    byte_size: int


@dataclass(frozen=True, slots=True)
class Upload:
    """One upload that was begun and neither completed nor aborted; `key` is the full one."""

    key: str
    upload_id: str
    initiated_at: datetime


class Multipart:
    """The multipart uploads of one bucket. All keys are full ones."""

    def __init__(self, bucket: str, client: Callable[[], S3Client]) -> None:
        """`client` gives the store's client at the time of the call."""
        self._bucket = bucket
        self._client = client

    async def begin(self, full_key: str, content_type: str) -> str:
        """Begin an upload and return its id. Raises ObjectStoreUnavailable."""
        try:
            answer = await self._client().create_multipart_upload(
                Bucket=self._bucket, Key=full_key, ContentType=content_type
            )
        except FAILURES as error:
            raise unavailable(error, "multipart.begin") from error
        return answer["UploadId"]

    async def list_parts(self, full_key: str, upload_id: str) -> list[Part] | None:
        """The parts that have arrived, by number; None: there is no such upload (any more)."""
        parts: list[Part] = []
        marker = 0
        while True:
            try:
                answer = await self._client().list_parts(
                    Bucket=self._bucket, Key=full_key, UploadId=upload_id, PartNumberMarker=marker
                )
            except FAILURES as error:
                if is_missing(error):
                    return None
                raise unavailable(error, "multipart.list_parts") from error
            found = answer.get("Parts", [])
            parts += [Part(one["PartNumber"], one["ETag"], one["Size"]) for one in found]
            if not answer.get("IsTruncated") or not found:
                return parts
            marker = parts[-1].part_number

    async def complete(self, full_key: str, upload_id: str, parts: Sequence[Part]) -> bool:
        """Make the object of these parts. False: the store knows no such upload (any more).

        A store may tell its failure within an answer of 200; that too raises
        ObjectStoreUnavailable, and the repeat finds out what became of it.
        """
        listed = [{"PartNumber": part.part_number, "ETag": part.etag} for part in parts]
        try:
            await self._client().complete_multipart_upload(
                Bucket=self._bucket,
                Key=full_key,
                UploadId=upload_id,
                MultipartUpload={"Parts": listed},  # type: ignore[typeddict-item]
            )
        except FAILURES as error:
            if is_missing(error):
                return False
            raise unavailable(error, "multipart.complete") from error
        return True

    async def abort(self, full_key: str, upload_id: str) -> None:
        """Give an upload up and free its parts; one that is not there is given up already.

        A part that is in flight just then may stay behind: list and abort again later.
        """
        try:
            await self._client().abort_multipart_upload(
                Bucket=self._bucket, Key=full_key, UploadId=upload_id
            )
        except FAILURES as error:
            if not is_missing(error):
                raise unavailable(error, "multipart.abort") from error

    async def list_open(self, full_prefix: str, *, after: Upload | None = None) -> list[Upload]:
        """At most a thousand uploads that are neither completed nor aborted, in order of keys."""
        marker: Any = {}
        if after is not None:
            marker = {"KeyMarker": after.key, "UploadIdMarker": after.upload_id}
        try:
            answer = await self._client().list_multipart_uploads(
                Bucket=self._bucket, Prefix=full_prefix, MaxUploads=_PAGE, **marker
            )
        except FAILURES as error:
            raise unavailable(error, "multipart.list_open") from error
        return [
            Upload(one["Key"], one["UploadId"], one["Initiated"])
            for one in answer.get("Uploads", [])
        ]
