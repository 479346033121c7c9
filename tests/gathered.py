"""Requests of one kind in one batch, for tests of what they owe each other."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from app.store import gathering
from app.store.gathering import Gatherer


async def together(
    gatherer: Gatherer[Any, Any], asked: Sequence[Awaitable[Any]]
) -> tuple[list[Any], list[int]]:
    """The answers to all of these, which wait until all are there, and the sizes of the batches."""
    sizes: list[int] = []
    told, gatherer._batched = gatherer._batched, sizes.append
    gatherer._tasks.update({object() for _ in range(gathering.PARALLEL)})  # all are busy
    tasks = [asyncio.ensure_future(one) for one in asked]
    async with asyncio.timeout(20):
        while len(gatherer._waiting) < len(tasks):
            await asyncio.sleep(0.001)
    gatherer._tasks.clear()
    gatherer._begin()
    answers = await asyncio.gather(*tasks)
    gatherer._batched = told
    return answers, sizes
