"""Presigned addresses, made for the endpoint that the caller will use and for an hour at most."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.settings import ObjectSettings

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client


@dataclass(frozen=True, slots=True)
class Signed:
    """A request that its holder may send; every header is signed and must be sent as it is."""

    method: str
    url: str
    headers: dict[str, str]


class Signer:
    """Signs requests to one bucket. All keys are full ones."""

    def __init__(self, settings: ObjectSettings, client: Callable[[], S3Client]) -> None:
        """`client` gives the client whose endpoint callers can reach."""
        self._settings = settings
        self._client = client

    @property
    def binds_content(self) -> bool:
        """Whether a signed upload can be bound to the SHA-256 of its body."""
        return self._settings.checksum == "sha256"

    async def sign_put(
        self, full_key: str, content_type: str, byte_size: int, sha256_hex: str
    ) -> Signed:
        """An upload that succeeds with exactly these bytes, whoever sends it and however often."""
        checksum = base64.b64encode(bytes.fromhex(sha256_hex)).decode()
        url = await self._sign(
            "put_object",
            Key=full_key,
            ContentType=content_type,
            ContentLength=byte_size,
            ChecksumSHA256=checksum,
        )
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(byte_size),
            "x-amz-checksum-sha256": checksum,
        }
        return Signed("PUT", url, headers)

    async def sign_part(
        self, full_key: str, upload_id: str, part_number: int, byte_size: int
    ) -> Signed:
        """The upload of one part of exactly this size."""
        url = await self._sign(
            "upload_part",
            Key=full_key,
            UploadId=upload_id,
            PartNumber=part_number,
            ContentLength=byte_size,
        )
        return Signed("PUT", url, {"Content-Length": str(byte_size)})

    async def sign_get(self, full_key: str, content_type: str, disposition: str) -> Signed:
        """A download with this type and disposition, whatever was given with the upload."""
        url = await self._sign(
            "get_object",
            Key=full_key,
            ResponseContentType=content_type,
            ResponseContentDisposition=disposition,
        )
        return Signed("GET", url, {})

    async def _sign(self, operation: str, **parameters: Any) -> str:
        return await self._client().generate_presigned_url(
            operation,
            Params={"Bucket": self._settings.bucket, **parameters},
            ExpiresIn=self._settings.url_seconds,
        )
