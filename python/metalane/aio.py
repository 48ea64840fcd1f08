"""Tickets under asyncio: ``await ticket``, callbacks, and limits on what is in flight.

A runtime thread that finishes a submission puts a number on the queues of those who wait, which takes no GIL, and
makes a pipe readable. Each event loop watches one such pipe, so that no thread waits and nothing polls, and that one
wake-up serves all tickets that finish meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
import weakref
from collections.abc import Callable
from types import TracebackType

from ._core import InFlightLimit, Ticket, _InFlightPlace, _WakeQueue
from .errors import ArgumentError, TimeoutError

__all__ = ["InFlightLimit", "InFlightSlot", "add_done_callback", "wait"]

_logger = logging.getLogger("metalane")


class _Channel:
    """What one event loop waits for. Used on the loop's thread alone; owned by the loop, which watches the pipe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = _WakeQueue()
        self._next = 0
        self._waiters: dict[int, set[asyncio.Future[None]]] = {}
        # A ticket is watched once a loop, however many wait for it and give up again.
        self._numbers: dict[Ticket, int] = {}
        self._tickets: dict[int, Ticket] = {}
        loop.add_reader(self._queue.descriptor, self._deliver)

    def _deliver(self) -> None:
        for number in self._queue.take():
            ticket = self._tickets.pop(number, None)
            if ticket is not None:
                del self._numbers[ticket]
            for future in self._waiters.pop(number, ()):
                if not future.done():
                    future.set_result(None)

    async def _until(self, number: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(number, set())
        waiters.add(future)
        try:
            await future
        finally:
            waiters.discard(future)

    async def until_done(self, ticket: Ticket) -> None:
        number = self._numbers.get(ticket)
        if number is None:
            number = self._new_number()
            self._queue.watch(ticket, number)
            self._numbers[ticket] = number
            self._tickets[number] = ticket
        await self._until(number)

    async def place(self, limit: InFlightLimit) -> _InFlightPlace:
        number = self._new_number()
        place = self._queue.ask(limit, number)
        try:
            if not place.granted:
                await self._until(number)
        except BaseException:
            place.give_back()  # before anything else can fail: others wait for it
            self._waiters.pop(number, None)  # the number may come, or not
            raise
        return place

    def _new_number(self) -> int:
        self._next += 1
        return self._next


# Loops own their channels: what waits in a channel refers to its loop.
_channels: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Channel]] = (
    weakref.WeakKeyDictionary()
)
_channels_lock = threading.Lock()


def _channel() -> _Channel:
    """That of the running event loop; RuntimeError where none runs."""
    loop = asyncio.get_running_loop()
    with _channels_lock:
        reference = _channels.get(loop)
        channel = reference() if reference is not None else None
        if channel is None:
            channel = _Channel(loop)
            _channels[loop] = weakref.ref(channel)
    return channel


async def wait(ticket: Ticket) -> None:
    """What ``await ticket`` does: returns once the submission has finished and raises its error.

    Cancelling it leaves the submission, and others who wait for it, alone.
    """
    if not ticket.done:
        await _channel().until_done(ticket)
    error = ticket.error
    if error is not None:
        raise error


class InFlightSlot:
    """A place under a limit, for ``with`` and ``async with``; from :meth:`InFlightLimit.slot`.

    It is given back at the end of the block, or, after :meth:`hold_until`, when that ticket is done.
    """

    def __init__(self, limit: InFlightLimit, timeout: float | None) -> None:
        self._limit = limit
        self._timeout = timeout
        self._entered = False
        self._place: _InFlightPlace | None = None

    def hold_until(self, ticket: Ticket) -> None:
        """Gives the place back when the ticket is done, whether it fails or not. Once, within the block."""
        if self._place is None:
            raise ArgumentError("InFlightSlot.hold_until: it works within the slot's block")
        self._place.hold_until(ticket)

    def _begin(self) -> None:
        if self._entered:
            raise ArgumentError("InFlightSlot: a slot is for one block; take another from InFlightLimit.slot")
        self._entered = True

    def _leave(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.give_back()

    def __enter__(self) -> InFlightSlot:
        self._begin()
        self._place = self._limit._acquire(self._timeout)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    async def __aenter__(self) -> InFlightSlot:
        self._begin()
        if self._timeout == 0:  # wait_for would give up before it asks
            self._place = self._limit._acquire(0.0)
            return self
        try:
            self._place = await asyncio.wait_for(_channel().place(self._limit), self._timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"InFlightLimit.slot: no place came free within {self._timeout:g} s") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()


class _Callbacks:
    """The thread that runs callbacks; started with the first."""

    def __init__(self) -> None:
        self._queue = _WakeQueue()
        self._lock = threading.Lock()
        self._next = 0
        self._waiting: dict[int, tuple[Ticket, Callable[[Ticket], object]]] = {}
        threading.Thread(target=self._run, name="metalane-callbacks", daemon=True).start()

    def add(self, ticket: Ticket, function: Callable[[Ticket], object]) -> None:
        with self._lock:
            self._next += 1
            number = self._next
            self._waiting[number] = (ticket, function)
        try:
            self._queue.watch(ticket, number)
        except BaseException:
            with self._lock:
                del self._waiting[number]
            raise

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._queue.descriptor, select.POLLIN)
        while True:
            poller.poll()
            for number in self._queue.take():
                with self._lock:
                    ticket, function = self._waiting.pop(number)
                try:
                    _call(function, ticket)
                except BaseException:  # sys.exit(), say: this thread is not the callback's to end
                    _log_raised(ticket)
                del ticket, function  # nothing is kept until the next one comes


def _log_raised(ticket: Ticket) -> None:
    _logger.exception("a callback of %r raised", ticket)


def _call(function: Callable[[Ticket], object], ticket: Ticket) -> None:
    try:
        function(ticket)
    except Exception:
        _log_raised(ticket)


_callbacks: _Callbacks | None = None
_callbacks_lock = threading.Lock()


def _forget_callbacks() -> None:
    """In a forked child, which has neither the thread nor work of the parent's devices."""
    global _callbacks, _callbacks_lock, _channels_lock
    _callbacks = None
    _callbacks_lock = threading.Lock()
    _channels_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_callbacks)


def add_done_callback(ticket: Ticket, function: Callable[[Ticket], object]) -> None:
    """What ``ticket.add_done_callback(function)`` does."""
    global _callbacks
    if ticket.done:
        _call(function, ticket)
        return
    with _callbacks_lock:
        if _callbacks is None:
            _callbacks = _Callbacks()
        callbacks = _callbacks
    callbacks.add(ticket, function)
