"""Tickets under asyncio: awaiting, cancelling, callbacks, limits, several loops."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import statistics
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import metalane
from metalane import aio

# Work that is held or that fails, of kernels that nothing is asked of.
pytestmark = [pytest.mark.cpu, pytest.mark.metalane_check(False)]

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void wait_for_flag(device atomic_uint* flag [[buffer(0)]]) {
  while (atomic_load_explicit(flag, memory_order_relaxed) == 0u) {}
}
kernel void add_one(device uint* x [[buffer(0)]]) { x[0] += 1; }
kernel void wild(device uint* x [[buffer(0)]]) { x[1u << 30] = 1; }
"""


class Work:
    """Submissions of a CPU device: some that run until they are freed, some that end at once, some that fail."""

    def __init__(self) -> None:
        self.device = metalane.Device("cpu")
        self.device.registry.register_source("work", SOURCE)
        self._views: list[np.ndarray] = []

    def commit(self, kernel: str, buffer: metalane.Buffer) -> metalane.Ticket:
        encoder = self.device.command_encoder()
        encoder.dispatch(kernel, [buffer], threads=1, threads_per_threadgroup=1)
        return encoder.commit()

    def held(self) -> metalane.Ticket:
        flag = self.device.zeros(1, "u32")
        self._views.append(flag.numpy())  # taken before the launch: later it would wait
        return self.commit("wait_for_flag", flag)

    def quick(self) -> metalane.Ticket:
        return self.commit("add_one", self.device.zeros(1, "u32"))

    def failing(self) -> metalane.Ticket:
        return self.commit("wild", self.device.zeros(1, "u32"))

    def free(self) -> None:
        for view in self._views:
            view[0] = 1
        self._views.clear()


@pytest.fixture
def work() -> Iterator[Work]:
    one = Work()
    yield one
    one.free()


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


# Awaiting -------------------------------------------------------------------------------------------------------------


def test_the_loop_runs_while_a_ticket_is_awaited(work: Work) -> None:
    async def main() -> int:
        ticket = work.held()
        waiting = asyncio.ensure_future(ticket)
        turns = 0
        for _ in range(20):
            await asyncio.sleep(0)
            turns += 1
        assert not waiting.done()
        work.free()
        await waiting
        assert ticket.done
        return turns

    assert asyncio.run(main()) == 20


def test_a_finished_ticket_does_not_suspend(work: Work) -> None:
    ticket = work.quick()
    ticket.wait()
    waiting = ticket.__await__()
    with pytest.raises(StopIteration):
        next(waiting)


def test_awaiting_without_a_loop_says_so(work: Work) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        next(work.held().__await__())


def test_gather_over_many(work: Work) -> None:
    counter = work.device.zeros(1, "u32")

    async def main() -> None:
        gate = work.held()
        tickets = [work.commit("add_one", counter) for _ in range(1000)]
        waiting = asyncio.gather(*tickets)
        await asyncio.sleep(0)
        assert not any(ticket.done for ticket in tickets)
        work.free()
        assert await waiting == [None] * 1000
        assert gate.done

    asyncio.run(main())
    assert counter.tolist() == [1000]


def test_many_tickets_that_finish_together_wake_the_loop_once(work: Work) -> None:
    """What has come to a loop that was busy meanwhile is delivered in one go."""
    wakes = []

    async def main() -> None:
        gate = work.held()
        tickets = [work.quick() for _ in range(300)]
        waiting = asyncio.gather(gate, *tickets)
        await asyncio.sleep(0)
        channel = aio._channel()
        take = channel._queue.take

        class Counting:
            """The queue, with a note of what each wake-up brought."""

            def take(self) -> list[int]:
                wakes.append(take())
                return wakes[-1]

        channel._queue = Counting()
        work.free()
        while not tickets[-1].done:  # the loop is held up
            time.sleep(0.001)
        await waiting

    asyncio.run(main())
    assert [len(numbers) for numbers in wakes] == [301]


def test_several_awaiters_and_none_of_them_twice(work: Work) -> None:
    async def wait(ticket: metalane.Ticket, out: list[int], number: int) -> None:
        await ticket
        out.append(number)

    async def main() -> list[int]:
        ticket, out = work.held(), []
        tasks = [asyncio.create_task(wait(ticket, out, number)) for number in range(5)]
        await asyncio.sleep(0)
        work.free()
        await asyncio.gather(*tasks)
        return out

    assert sorted(asyncio.run(main())) == [0, 1, 2, 3, 4]


def test_the_error_comes_to_every_awaiter_as_its_own_object(work: Work) -> None:
    async def main() -> list[BaseException]:
        gate, ticket = work.held(), work.failing()
        waiting = asyncio.gather(aio.wait(ticket), aio.wait(ticket), return_exceptions=True)
        await asyncio.sleep(0)
        work.free()
        await gate
        return await waiting

    first, second = asyncio.run(main())
    assert isinstance(first, metalane.CommandBufferError)
    assert isinstance(second, metalane.CommandBufferError)
    assert str(first) == str(second)
    assert first is not second


def test_an_awaited_error_counts_as_reported(work: Work) -> None:
    """After that a launch that writes the failed range anew is the retry, as after wait()."""
    buffer = work.device.zeros(1, "u32")

    async def main() -> None:
        with pytest.raises(metalane.CommandBufferError):
            await work.commit("wild", buffer)
        await work.commit("add_one", buffer)

    asyncio.run(main())
    buffer.numpy()


# Cancelling -----------------------------------------------------------------------------------------------------------


def test_cancelling_leaves_the_work_and_other_awaiters_alone(work: Work) -> None:
    async def main() -> None:
        ticket = work.held()
        cancelled, stays = asyncio.ensure_future(ticket), asyncio.ensure_future(ticket)
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ticket, 0.001)
        assert not ticket.done
        assert not stays.done()
        work.free()
        await stays

    asyncio.run(main())


def test_waits_that_are_given_up_leave_nothing_behind(work: Work) -> None:
    async def main() -> None:
        ticket = work.held()
        for _ in range(200):
            waiting = asyncio.ensure_future(ticket)
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        channel = aio._channel()
        assert len(channel._numbers) == len(channel._tickets) == 1
        assert list(channel._waiters.values()) == [set()]
        work.free()
        await ticket
        assert not channel._numbers
        assert not channel._tickets
        assert not channel._waiters

    asyncio.run(main())


def test_a_loop_that_closed_meanwhile_is_no_harm_and_no_leak(work: Work) -> None:
    async def give_up(ticket: metalane.Ticket) -> asyncio.Task[None]:
        waiting = asyncio.create_task(aio.wait(ticket))
        await asyncio.sleep(0)
        return waiting

    asyncio.run(give_up(work.quick()))
    gc.collect()
    before = descriptors()
    for _ in range(20):
        loop = asyncio.new_event_loop()
        waiting = loop.run_until_complete(give_up(work.held()))
        waiting.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    gone = weakref.ref(loop)
    del loop, waiting
    work.free()
    work.quick().wait()  # behind all of them
    gc.collect()
    assert gone() is None
    assert descriptors() == before


# Loops and threads ----------------------------------------------------------------------------------------------------


def test_several_loops_in_several_threads_await_the_same_tickets(work: Work) -> None:
    tickets = [work.held(), *(work.quick() for _ in range(50))]
    ready = threading.Barrier(4)
    done: list[int] = []

    async def main() -> None:
        waiting = asyncio.gather(*tickets)
        await asyncio.sleep(0)
        ready.wait(20)
        await waiting
        done.append(threading.get_ident())

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(3)]
    for thread in threads:
        thread.start()
    ready.wait(20)
    work.free()
    for thread in threads:
        thread.join(20)
    assert len(set(done)) == 3


def test_each_loop_of_a_thread_has_its_own_channel(work: Work) -> None:
    async def twice() -> tuple[object, object]:
        await asyncio.gather(work.quick(), work.quick())
        first = aio._channel()
        await work.quick()
        return first, aio._channel()

    (a, b), (c, d) = asyncio.run(twice()), asyncio.run(twice())
    assert a is b
    assert c is d
    assert a is not c


def test_tickets_of_one_submission_are_equal(work: Work) -> None:
    with work.device.command_encoder() as encoder:
        encoder.dispatch("add_one", [work.device.zeros(1, "u32")], threads=1, threads_per_threadgroup=1)
    other = work.quick()
    assert encoder.ticket == encoder.ticket
    assert hash(encoder.ticket) == hash(encoder.ticket)
    assert encoder.ticket != other
    assert encoder.ticket != 3


# Callbacks ------------------------------------------------------------------------------------------------------------


def test_callbacks_run_in_order_of_completion_on_one_other_thread(work: Work) -> None:
    calls: list[tuple[int, str]] = []
    done = threading.Event()
    gate, *tickets = work.held(), *(work.quick() for _ in range(20))
    for number, ticket in reversed(list(enumerate(tickets))):
        ticket.add_done_callback(
            lambda given, number=number: calls.append((number, threading.current_thread().name))
        )
    tickets[-1].add_done_callback(lambda given: done.set())
    assert not calls
    work.free()
    assert done.wait(20)
    assert calls == [(number, "metalane-callbacks") for number in range(20)]
    assert gate.done


def test_a_callback_of_a_finished_ticket_runs_at_once(work: Work) -> None:
    ticket, calls = work.quick(), []
    ticket.wait()
    ticket.add_done_callback(lambda given: calls.append((given, threading.get_ident())))
    assert calls == [(ticket, threading.get_ident())]


@pytest.mark.parametrize("kind", [KeyError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_callback_that_raises_is_logged_and_the_next_one_runs(
    work: Work, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    done = threading.Event()
    gate, ticket = work.held(), work.quick()

    def fail(given: metalane.Ticket) -> None:
        raise kind("planted")

    with caplog.at_level(logging.ERROR, logger="metalane"):
        gate.add_done_callback(fail)
        ticket.add_done_callback(lambda given: done.set())
        work.free()
        assert done.wait(20)
    assert "planted" in caplog.text


def test_a_callback_must_be_callable(work: Work) -> None:
    with pytest.raises(metalane.DTypeError, match=r"add_done_callback.*callable.*3 \(int\)"):
        work.quick().add_done_callback(3)


# Limits ---------------------------------------------------------------------------------------------------------------


def test_no_more_than_the_limit_is_in_flight(work: Work) -> None:
    limit = metalane.InFlightLimit(3)
    seen: list[int] = []

    async def step() -> None:
        async with limit.slot() as slot:
            seen.append(limit.in_flight)
            ticket = work.quick()
            slot.hold_until(ticket)
        await ticket

    async def main() -> None:
        await asyncio.gather(*(step() for _ in range(100)))

    asyncio.run(main())
    assert len(seen) == 100
    assert max(seen) == 3
    assert (limit.in_flight, limit.waiting, limit.max_in_flight) == (0, 0, 3)


def test_first_come_first_served_for_tasks_and_threads_together(work: Work) -> None:
    limit = metalane.InFlightLimit(1)
    order: list[str] = []

    def block(name: str) -> None:
        with limit.slot():
            order.append(name)

    async def wait(name: str) -> None:
        async with limit.slot():
            order.append(name)

    async def main() -> None:
        waiting = []
        with limit.slot() as slot:
            slot.hold_until(work.held())
            for number in range(6):
                name = str(number)
                if number % 2:
                    waiting.append(asyncio.create_task(wait(name)))
                    await asyncio.sleep(0)
                else:
                    waiting.append(asyncio.create_task(asyncio.to_thread(block, name)))
                while limit.waiting != number + 1:
                    await asyncio.sleep(0.001)
        work.free()
        await asyncio.gather(*waiting)

    asyncio.run(main())
    assert order == ["0", "1", "2", "3", "4", "5"]


def test_a_failing_submission_gives_its_place_back(work: Work) -> None:
    limit = metalane.InFlightLimit(1)

    async def main() -> None:
        with pytest.raises(metalane.ArgumentError):
            async with limit.slot():
                work.device.command_encoder().dispatch("add_one", [], threads=1)
        async with limit.slot() as slot:
            ticket = work.failing()
            slot.hold_until(ticket)
        with pytest.raises(metalane.CommandBufferError):
            await ticket
        async with limit.slot():
            assert limit.in_flight == 1

    asyncio.run(asyncio.wait_for(main(), 20))
    assert limit.in_flight == 0


def test_cancelling_who_waits_for_a_place_lets_the_next_one_in(work: Work) -> None:
    limit = metalane.InFlightLimit(1)

    async def wait() -> None:
        async with limit.slot():
            pass

    async def main() -> None:
        with limit.slot() as slot:
            slot.hold_until(work.held())
        first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert limit.waiting == 2
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert limit.waiting == 1
        work.free()
        await second
        assert not aio._channel()._waiters

    asyncio.run(asyncio.wait_for(main(), 20))
    assert limit.in_flight == 0


def test_a_place_that_comes_to_a_cancelled_task_goes_on(work: Work) -> None:
    """Granted and cancelled within one turn of the loop."""
    limit = metalane.InFlightLimit(1)

    async def wait() -> None:
        async with limit.slot():
            raise AssertionError("it was cancelled")

    async def main() -> None:
        slot = limit.slot()
        slot.__enter__()
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        slot.__exit__(None, None, None)
        assert (limit.in_flight, limit.waiting) == (1, 0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(main())
    assert limit.in_flight == 0


def test_timeouts_of_places(work: Work) -> None:
    limit = metalane.InFlightLimit(1)
    with limit.slot():
        with pytest.raises(metalane.TimeoutError, match=r"InFlightLimit\.slot.*0\.01 s"), limit.slot(0.01):
            pass

        async def main() -> None:
            with pytest.raises(metalane.TimeoutError, match=r"InFlightLimit\.slot.*0\.01 s"):
                async with limit.slot(timeout=0.01):
                    pass

        asyncio.run(main())
        assert (limit.in_flight, limit.waiting) == (1, 0)


def test_a_timeout_of_0_takes_what_is_free(work: Work) -> None:
    limit = metalane.InFlightLimit(1)

    async def main() -> None:
        async with limit.slot(timeout=0):
            assert limit.in_flight == 1
            with pytest.raises(metalane.TimeoutError, match=r"InFlightLimit\.slot.* 0 s"):
                async with limit.slot(timeout=0):
                    pass

    asyncio.run(main())
    with limit.slot(timeout=0), pytest.raises(metalane.TimeoutError), limit.slot(timeout=0):
        pass
    assert (limit.in_flight, limit.waiting) == (0, 0)


def test_wrong_use_of_slots(work: Work) -> None:
    for wrong in (0, -1, 1.5, "many", None):
        with pytest.raises(metalane.ArgumentError, match="max_in_flight"):
            metalane.InFlightLimit(wrong)
    limit = metalane.InFlightLimit(2)
    for wrong in (-1, float("nan"), "soon"):
        with pytest.raises(metalane.ArgumentError, match="timeout"):
            limit.slot(timeout=wrong)
    slot = limit.slot()
    with pytest.raises(metalane.ArgumentError, match="within the slot's block"):
        slot.hold_until(work.quick())
    with slot:
        with pytest.raises(metalane.ArgumentError, match="one block"):
            slot.__enter__()
        with pytest.raises(metalane.DTypeError, match=r"hold_until.*a Ticket"):
            slot.hold_until(3)
        slot.hold_until(work.quick())
        with pytest.raises(metalane.ArgumentError, match="none of the limit's places"):
            slot.hold_until(work.quick())


# The process ----------------------------------------------------------------------------------------------------------


def python(script: str) -> subprocess.CompletedProcess[str]:
    text = f"SOURCE = {SOURCE!r}\nimport asyncio, os, sys, threading\nimport metalane\n" + textwrap.dedent(
        script
    )
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)


def test_asyncio_is_imported_by_who_uses_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, metalane; print('asyncio' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "False", done.stderr


def test_exit_with_callbacks_and_awaiters_left() -> None:
    done = python("""
        device = metalane.Device("cpu")
        device.registry.register_source("work", SOURCE)
        encoder = device.command_encoder()
        encoder.dispatch("wait_for_flag", [device.zeros(1, "u32")], threads=1, threads_per_threadgroup=1)
        ticket = encoder.commit()
        ticket.add_done_callback(print)
        async def main():
            task = asyncio.ensure_future(ticket)
            await asyncio.sleep(0)
        asyncio.run(main())
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_has_callbacks_and_limits_of_its_own() -> None:
    done = python("""
        device = metalane.Device("cpu")
        device.registry.register_source("work", SOURCE)
        flag = device.zeros(1, "u32")
        view = flag.numpy()
        encoder = device.command_encoder()
        encoder.dispatch("wait_for_flag", [flag], threads=1, threads_per_threadgroup=1)
        ticket, limit = encoder.commit(), metalane.InFlightLimit(1)
        ticket.add_done_callback(lambda ticket: None)
        pid = os.fork()
        if pid == 0:
            for call in (lambda: ticket.add_done_callback(print), lambda: limit.slot().__enter__(),
                         lambda: asyncio.run(main())):
                async def main():
                    await ticket
                try:
                    call()
                except metalane.DeviceError as error:
                    assert "fork" in str(error)
                else:
                    os._exit(3)
            fresh = metalane.Device("cpu")
            encoder = fresh.command_encoder()
            encoder.fill(fresh.zeros(1 << 22, "f32"), 1)
            called, mine = threading.Event(), encoder.commit()
            mine.add_done_callback(lambda ticket: called.set())
            async def main():
                await mine
            asyncio.run(main())
            os._exit(0 if called.wait(20) else 4)
        status = os.waitpid(pid, 0)[1]
        view[0] = 1
        ticket.wait()
        sys.exit(os.waitstatus_to_exitcode(status))
    """)
    assert done.returncode == 0, done.stderr


def test_a_loop_stays_on_time_while_tickets_come_and_go(work: Work) -> None:
    """A short form of benchmarks/event_loop.py, with room for busy machines: no wake-up waits for a device's work."""
    busy = work.device.zeros(1 << 20, "u32")

    async def keep(until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            await work.commit("add_one", busy)
            count += 1
        return count

    async def main() -> tuple[list[float], int]:
        until = time.perf_counter() + 0.5
        workers = [asyncio.create_task(keep(until)) for _ in range(100)]
        late = []
        while time.perf_counter() < until:
            begin = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - begin - 0.001)
        return late, sum(await asyncio.gather(*workers))

    late, count = asyncio.run(main())
    assert count >= 100
    assert statistics.median(late) < 0.05


def test_waiting_costs_no_processor_time(work: Work) -> None:
    """No thread polls: a loop that waits for a ticket which waits for another device's sleeps."""
    other = metalane.Device("cpu")
    encoder = other.command_encoder()
    encoder.wait_for(work.held())
    encoder.fill(other.zeros(1, "u32"), 1)
    ticket = encoder.commit()

    async def main() -> float:
        waiting = asyncio.ensure_future(ticket)
        await asyncio.sleep(0.1)
        begin = time.thread_time()
        await asyncio.sleep(0.5)
        used = time.thread_time() - begin
        work.free()
        await waiting
        return used

    assert asyncio.run(main()) < 0.1
