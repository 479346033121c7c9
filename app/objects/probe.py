"""Tries what a store can do, with objects of its own that it removes again, and says what follows.

Nothing is assumed of a store because of its name: `check-config --objects` runs this.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import httpx
from botocore.exceptions import ClientError

from app.domain.errors import ObjectStoreUnavailable
from app.objects.failures import FAILURES, code_of, is_precondition
from app.objects.signing import Signed
from app.objects.store import ObjectStore

_PART_BYTES = 5 * 1024 * 1024
_VARIABLE = "EXECUTION_PLANE_OBJECTS__"


@dataclass(frozen=True, slots=True)
class Finding:
    """One trial. `needed`: the service does not work as it is set without it."""

    name: str
    works: bool
    needed: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class _Trial:
    """What is tried, what it means when it works, and what follows when it does not."""

    name: str
    run: Callable[[Probe], Awaitable[bool]]
    good: str
    otherwise: str
    needed: bool = True


class Probe:
    """One run of all trials against one store."""

    def __init__(self, store: ObjectStore, http: httpx.AsyncClient) -> None:
        """`http` sends the signed requests, as a runner would."""
        self.store = store
        self.http = http
        self.folder = f"check-config/{uuid4().hex}/"
        self.body = os.urandom(70_000)
        self.sha256 = hashlib.sha256(self.body)
        self.made: set[str] = set()

    def key(self, name: str) -> str:
        """The full key of an object of this run."""
        key = self.store.full_key(self.folder + name)
        self.made.add(key)
        return key

    @property
    def checksum(self) -> str:
        """The SHA-256 of the body, in base64."""
        return base64.b64encode(self.sha256.digest()).decode()

    async def run(self) -> list[Finding]:
        """All trials, one after the other; what they made is removed afterwards."""
        try:
            return [await self._judge(trial) for trial in TRIALS]
        finally:
            await self._tidy()

    async def _judge(self, trial: _Trial) -> Finding:
        try:
            works, why = await trial.run(self), ""
        except ObjectStoreUnavailable as error:
            works, why = False, f" ({code_of(error.__cause__ or error)})"
        except (*FAILURES, httpx.HTTPError) as error:
            works, why = False, f" ({code_of(error)})"
        return Finding(
            trial.name, works, trial.needed, trial.good if works else trial.otherwise + why
        )

    async def _tidy(self) -> None:
        with suppress(ObjectStoreUnavailable):  # a store that cannot list them was told of
            for upload in await self.store.multipart.list_open(self.store.full_key(self.folder)):
                await self.store.multipart.abort(upload.key, upload.upload_id)
        await self.store.delete(sorted(self.made))

    async def send(self, signed: Signed, body: bytes) -> int:
        """The status of a signed upload of this body, whatever size it announces."""
        headers = {**signed.headers, "Content-Length": str(len(body))}
        answer = await self.http.request(signed.method, signed.url, content=body, headers=headers)
        return answer.status_code


async def _stores(probe: Probe) -> bool:
    key = probe.key("stored")
    await probe.store.put_at(key, probe.body, probe.checksum, "text/plain")
    head = await probe.store.head(key)
    found = b"".join([piece async for piece in probe.store.read(key)])
    return found == probe.body and head is not None and head.byte_size == len(probe.body)


async def _ranges(probe: Probe) -> bool:
    key = probe.key("stored")
    pieces = [piece async for piece in probe.store.read(key, 10, 19)]
    return b"".join(pieces) == probe.body[10:20]


async def _lists(probe: Probe) -> bool:
    key = probe.key("stored")
    listed = await probe.store.list_objects(probe.folder)
    after = await probe.store.list_objects(probe.folder, after=key)
    return key in {one.key for one in listed} and key not in {one.key for one in after}


async def _verifies(probe: Probe) -> bool:
    wrong = base64.b64encode(hashlib.sha256(b"another").digest()).decode()
    try:
        await probe.store.client.put_object(
            Bucket=probe.store.settings.bucket,
            Key=probe.key("wrong"),
            Body=probe.body,
            ChecksumSHA256=wrong,
        )
    except ClientError:
        return True
    return False


async def _keeps(probe: Probe) -> bool:
    answer = await probe.store.client.head_object(
        Bucket=probe.store.settings.bucket, Key=probe.key("stored"), ChecksumMode="ENABLED"
    )
    return answer.get("ChecksumSHA256") == probe.checksum


async def _signed_put(probe: Probe) -> bool:
    signed = await probe.store.signer.sign_put(
        probe.key("signed"), "text/plain", len(probe.body), probe.sha256.hexdigest()
    )
    other = await probe.send(signed, probe.body[::-1])
    longer = await probe.send(signed, probe.body + b"x")
    right = await probe.send(signed, probe.body)
    return right == httpx.codes.OK and httpx.codes.OK not in {other, longer}


async def _signed_get(probe: Probe) -> bool:
    signed = await probe.store.signer.sign_get(
        probe.key("stored"), "text/css", 'attachment; filename="x"'
    )
    answer = await probe.http.get(signed.url)
    return (
        answer.content == probe.body
        and answer.headers.get("content-type") == "text/css"
        and answer.headers.get("content-disposition") == 'attachment; filename="x"'
    )


async def _parts(probe: Probe) -> bool:
    key, multipart = probe.key("parts"), probe.store.multipart
    upload_id = await multipart.begin(key, "text/plain")
    for number, body in ((1, bytes(_PART_BYTES)), (2, probe.body)):
        signed = await probe.store.signer.sign_part(key, upload_id, number, len(body))
        if await probe.send(signed, body) != httpx.codes.OK:
            return False
    parts = await multipart.list_parts(key, upload_id)
    if parts is None or [part.byte_size for part in parts] != [_PART_BYTES, len(probe.body)]:
        return False
    await multipart.complete(key, upload_id, parts)
    late = await probe.store.signer.sign_part(key, upload_id, 2, len(probe.body))
    refused = await probe.send(late, probe.body) != httpx.codes.OK
    head = await probe.store.head(key)
    return refused and head is not None and head.byte_size == _PART_BYTES + len(probe.body)


async def _lists_parts(probe: Probe) -> bool:
    key, multipart = probe.key("open"), probe.store.multipart
    upload_id = await multipart.begin(key, "text/plain")
    folder = probe.store.full_key(probe.folder)
    listed = {upload.upload_id for upload in await multipart.list_open(folder)}
    await multipart.abort(key, upload_id)
    left = {upload.upload_id for upload in await multipart.list_open(folder)}
    return upload_id in listed and upload_id not in left


async def _conditions(probe: Probe) -> bool:
    place = {"Bucket": probe.store.settings.bucket, "Key": probe.key("stored")}
    try:
        await probe.store.client.put_object(**place, Body=b"", IfNoneMatch="*")  # type: ignore[arg-type]
    except ClientError as error:
        return is_precondition(error)
    await probe.store.put_at(place["Key"], probe.body, probe.checksum, "text/plain")
    return False


async def _batches(probe: Probe) -> bool:
    keys = [probe.key("gone-1"), probe.key("gone-2")]
    for key in keys:
        await probe.store.put_at(key, probe.body, probe.checksum, "text/plain")
    answer = await probe.store.client.delete_objects(
        Bucket=probe.store.settings.bucket, Delete={"Objects": [{"Key": key} for key in keys]}
    )
    left = [key for key in keys if await probe.store.head(key) is not None]
    return not answer.get("Errors") and not left


TRIALS = (
    _Trial(
        "store", _stores, "What is stored comes back as it was.",
        "What is stored does not come back as it was: this store cannot be used.",
    ),
    _Trial(
        "range", _ranges, "A range of a body can be read.",
        "Ranges are not understood: logs and artifacts cannot be read in part.",
    ),
    _Trial(
        "list", _lists, "Objects are listed in order, from any place on.",
        "Listings are not usable: orphans will not be found.",
    ),
    _Trial(
        "verify", _verifies, "A body that is not its SHA-256 is refused.",
        f"SHA-256 is not verified: set {_VARIABLE}CHECKSUM=none, and this service hashes uploads.",
    ),
    _Trial(
        "keep", _keeps, "The SHA-256 is kept and told, so an upload need not be read again.",
        "The SHA-256 is not kept: every uploaded artifact is read once to verify it.",
        needed=False,
    ),
    _Trial(
        "signed-put", _signed_put, "A signed upload is bound to its size and digest.",
        f"A signed upload is not bound to its content: set {_VARIABLE}CHECKSUM=none.",
    ),
    _Trial(
        "signed-get", _signed_get, "A signed download works, with the type that is asked for.",
        f"Signed downloads do not work: keep {_VARIABLE}DOWNLOADS=stream.",
        needed=False,
    ),
    _Trial(
        "parts", _parts, "Large bodies can be sent in parts, which nothing changes afterwards.",
        f"Uploads in parts do not work: set {_VARIABLE}SINGLE_PUT_BYTES to the largest artifact.",
    ),
    _Trial(
        "open-parts", _lists_parts, "Half-done uploads are listed and given up.",
        "Half-done uploads cannot be found: let a lifecycle rule of the bucket remove them.",
        needed=False,
    ),
    _Trial(
        "conditions", _conditions, "Conditional writes are honoured.",
        "Conditional writes are not honoured. Nothing here rests on them.",
        needed=False,
    ),
    _Trial(
        "batch-delete", _batches, "Several objects can be deleted at once.",
        f"Objects are deleted one by one: set {_VARIABLE}DELETES=single.",
        needed=False,
    ),
)  # fmt: skip


def needed_here(finding: Finding, *, checksum: str) -> bool:
    """Whether the store must be able to do this under these settings."""
    return finding.needed and (checksum == "sha256" or finding.name not in {"verify", "signed-put"})


async def probe(store: ObjectStore) -> list[Finding]:
    """Run all trials. Raises ObjectStoreUnavailable if the bucket does not answer at all."""
    await store.check()
    settings = store.settings
    verify: str | bool = str(settings.ca_file) if settings.ca_file else True
    async with httpx.AsyncClient(timeout=settings.timeout_seconds, verify=verify) as http:
        return await Probe(store, http).run()
