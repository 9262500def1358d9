"""Hears that a topic has something new, on a connection of its own; without it waits are polled for, no more."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextvars import Context

import psycopg
from psycopg.rows import TupleRow

log = logging.getLogger(__name__)

_PATIENCE = 30.0
_LONGEST_BACK_OFF = 60.0


class Listener:
    """Listens on the channel `taskq`, again and again if need be, and passes on the topics that it hears of."""

    def __init__(
        self, connect: Callable[[], Awaitable[psycopg.AsyncConnection[TupleRow]]], hear: Callable[[str], None]
    ) -> None:
        self._connect = connect
        self._hear = hear
        self._listening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listens from soon on, unless it does already."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen_on(), context=Context())

    def stop(self) -> None:
        """Listens no more. Waits for nothing: a server that stands still is left behind."""
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None

    async def _listen_on(self) -> None:
        """Listens until it is stopped; what goes wrong is tried again, seldom, as nothing depends on it."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(_PATIENCE):
                    connection = await self._connect()
                failures = 0
                await self._listen(connection)
            except Exception as error:  # noqa: BLE001  whatever it is, the waits are looked after without it
                failures += 1
                log.info("Notifications are not heard now, the topics are polled: %s", error)
            pause = min(2.0**failures, _LONGEST_BACK_OFF)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311  so that triggerers do not come in step

    async def _listen(self, connection: psycopg.AsyncConnection[TupleRow]) -> None:
        """Listens on a connection until it is lost."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await connection.execute("LISTEN taskq")
            async for notice in connection.notifies():
                self._hear(notice.payload)
        finally:
            await connection.close()
