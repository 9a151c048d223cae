"""Large bodies are received slowly and read one at a time, with pauses, so that they do not hold up small requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from seqloom.lab.web.clients import Pace

LARGE = 2**16  # bytes of a body whose reading takes longer than most answers to small requests
BYTES_PER_SECOND = 4 * 2**20  # rate of large bodies that a client sends while others have requests
REST, MOST_REST = 19, 1.0  # how many times longer the pause is than the reading of a body; its maximum in seconds


class Lane:
    """Let large bodies take turns: clients first, then the bodies of a client.

    While requests of other clients are being answered, a pause follows each large body that is many times as long as
    its reading took, at most a second.

    Args:
        has_others: Returns whether requests of other clients are being answered.

    Example:
        >>> import asyncio
        >>> from seqloom.lab.web.lane import Lane
        >>> async def read():
        ...     async with Lane(lambda client: True).take_turn("client", 2**20):
        ...         return "the body is parsed here"
        >>> asyncio.run(read())
        'the body is parsed here'
    """

    def __init__(self, has_others: Callable[[str], bool]) -> None:
        self._has_others = has_others
        self._lock = asyncio.Lock()
        self._of_client: dict[str, tuple[asyncio.Lock, int]] = {}  # and how many bodies use it
        self._free_at = 0.0
        self._pace = Pace(BYTES_PER_SECOND)

    def find_wait(self, client: str, size: int, received: int) -> float:
        """Return how many seconds to wait before more of a body is received.

        Args:
            client: Who sends the body.
            size: Bytes that have just been received.
            received: All bytes of the body so far; those of a small body are not waited for.
        """
        if received < LARGE or not self._has_others(client):
            return 0.0
        return self._pace.find_wait(client, size, asyncio.get_running_loop().time())

    @asynccontextmanager
    async def take_turn(self, client: str, size: int) -> AsyncIterator[None]:
        """Wait until a body may be read.

        Args:
            size: Its bytes; a small one need not wait.
        """
        if size < LARGE:
            yield
            return
        lock, users = self._of_client.get(client, (asyncio.Lock(), 0))
        self._of_client[client] = lock, users + 1
        try:
            async with lock, self._lock:  # at most one body of each client waits for the second lock
                clock = asyncio.get_running_loop().time
                while (wait := self._free_at - clock()) > 0 and self._has_others(client):
                    await asyncio.sleep(wait)
                start = clock()
                try:
                    yield
                finally:
                    self._free_at = clock() + min(MOST_REST, REST * (clock() - start))
        finally:
            lock, users = self._of_client.pop(client)
            if users > 1:
                self._of_client[client] = lock, users - 1
