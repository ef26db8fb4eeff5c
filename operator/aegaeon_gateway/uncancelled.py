"""Calls that are carried to their end though the caller is cancelled: a client that leaves must not stop one
half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def to_its_end(work: Awaitable[T]) -> T:
    """The caller that is cancelled meanwhile goes on, and raises CancelledError, when the work is over."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
