"""Roles as threads that take turns: one runs at a time, and a seeded scheduler says which.

Priorities are drawn at random and change at random points (the source of the method: Burckhardt, Kothari, Musuvathi,
Nagarakatte: A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs, ASPLOS 2010), so that one role runs
ahead as far as barriers allow, and then another one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

CHANGE = 0.05
"""The probability with which a priority is drawn anew at a point where roles may take turns."""


class ProtocolError(Exception):
    """The roles of a kernel do not keep in step; the message names role, line of the text, and barrier or slot."""


class _Stop(BaseException):
    """Ends a thread whose launch has failed elsewhere."""


class Role:
    """One partition of `warp_specialize`."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name, self.work = name, work
        self.ready: Callable[[], bool] | None = None
        self.where = ""
        self.priority = 0.0
        self.products: list[Any] = []
        self.copies_out: list[Any] = []
        self.waits: list[Any] = []  # barriers waited for since the last copies
        self.copied = False
        self.turn = threading.Semaphore(0)
        self.done = False


class Scheduler:
    """`progress` makes something happen that no role does (a copy lands), and says whether it did, or what it did
    wrong."""

    def __init__(self, seed: int, progress: Callable[[], bool | ProtocolError]) -> None:
        self.random = random.Random(seed)
        self.progress = progress
        self.roles: list[Role] = []
        self.role: Role | None = None
        self.error: BaseException | None = None
        self._over = threading.Semaphore(0)

    def run(self, roles: Sequence[Role]) -> None:
        """Runs all of them to their ends, or raises what one of them raised."""
        self.roles, self.error = list(roles), None
        threads = [threading.Thread(target=self._thread, args=(r,), daemon=True) for r in roles]
        for role, thread in zip(roles, threads, strict=True):
            role.priority = self.random.random()
            thread.start()
        self._hand_on()
        self._over.acquire()
        for role, thread in zip(roles, threads, strict=True):
            role.turn.release()
            thread.join()
        self.role = None
        if self.error is not None:
            raise self.error

    def point(self) -> None:
        """The role that runs may lose its turn here."""
        role = self.role
        if role is None:
            return
        if self.random.random() < CHANGE:
            role.priority = self.random.random()
        self._give(role)

    def wait(self, ready: Callable[[], bool], where: str) -> None:
        """The role that runs goes on when `ready()` holds and it is its turn."""
        role = self.role
        assert role is not None, "a wait outside of every role"
        role.where, role.ready = where, ready
        self._give(role)
        role.ready = None

    def _give(self, role: Role) -> None:
        following = self._pick()
        if isinstance(following, ProtocolError):
            raise following
        if following is role:
            return
        self._hand_on()
        role.turn.acquire()
        if self.error is not None:
            raise _Stop

    def _pick(self) -> Role | ProtocolError | None:
        while True:
            able = [r for r in self.roles if not r.done and (r.ready is None or r.ready())]
            if able:
                return max(able, key=lambda r: r.priority)
            progressed = self.progress()
            if progressed is not True:
                return progressed or None

    def _hand_on(self) -> None:
        """The turn goes to the next role; with none left the launch is over."""
        following = self._pick()
        if isinstance(following, ProtocolError):
            self.error, self.role = following, None
        else:
            self.role = following
        if self.role is not None:
            self.role.turn.release()
            return
        stuck = [r for r in self.roles if not r.done]
        if stuck and self.error is None:
            self.error = ProtocolError("deadlock: " + "; ".join(f"{r.name} waits at {r.where}" for r in stuck))
        self._over.release()

    def _thread(self, role: Role) -> None:
        role.turn.acquire()
        try:
            if self.error is None:
                role.work()
        except BaseException as error:
            # Where another role has failed, this one is told to stop.
            if self.error is None:
                self.error = error
                self._over.release()
            return
        role.done = True
        if self.error is None:
            self._hand_on()
