"""A bounded queue for one model, first come, first served."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from divevlm.serve.http.limits import RequestError


class Places:
    """One request has its turn, `queue` others wait, more are sent away."""

    def __init__(self, queue: int) -> None:
        self.queue, self.taken, self.waiting, self.running = queue, 0, 0, 0
        self.seconds = 1.0  # that a turn takes, of late
        self._turn = asyncio.Lock()

    def take(self) -> Place:
        if self.taken > self.queue:
            wait = max(1, math.ceil(self.seconds * self.taken))
            message = f"{self.taken} requests are here already: try again in about {wait} s"
            raise RequestError(429, message, headers={"Retry-After": str(wait)})
        return Place(self)


class Place:
    """Taken until it is given back: by `leave`, or when the turn is over."""

    def __init__(self, places: Places) -> None:
        self.places, self.here, self.begun = places, True, 0.0
        places.taken += 1

    async def turn(self) -> Callable[[], None]:
        """Wait for it. Gives what ends it."""
        self.places.waiting += 1
        try:
            await self.places._turn.acquire()
        finally:
            self.places.waiting -= 1
        self.places.running, self.begun = 1, time.monotonic()
        return self.over

    def over(self) -> None:
        """Of the turn: once, when the model is free."""
        places = self.places
        places.seconds += 0.2 * (time.monotonic() - self.begun - places.seconds)
        places.running = 0
        self.leave()
        places._turn.release()

    def leave(self) -> None:
        if self.here:
            self.here = False
            self.places.taken -= 1
