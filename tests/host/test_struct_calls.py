"""Calls of a parameter class: from the second on they take CPython's vectorcall road, which must not show."""

from __future__ import annotations

import sys

import pytest

import metalane
from metalane import u32


def make() -> type:
    @metalane.metal_struct
    class Pair:
        x: u32
        y: u32 = 7

    return Pair


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_every_way_to_give_fields(calls: int) -> None:
    pair = make()
    for _ in range(calls):
        assert (pair(1).x, pair(1).y) == (1, 7)
        assert (pair(x=2).x, pair(y=3, x=2).y) == (2, 3)
        assert bytes(pair(4, y=5)) == bytes([4, 0, 0, 0, 5, 0, 0, 0])
        for bad in (lambda: pair(), lambda: pair(1, 2, 3), lambda: pair(1, x=2), lambda: pair(1, z=2)):
            with pytest.raises(TypeError):
                bad()
        with pytest.raises(metalane.ArgumentError, match="x must be an integer"):
            pair(x=-1)


def test_init_set_later_is_called() -> None:
    pair = make()
    pair(1)
    seen = []
    pair.__init__ = lambda self, *args, **kwargs: seen.append((args, kwargs))
    pair(5, y=6)
    assert seen == [((5,), {"y": 6})]
    del pair.__init__
    assert pair(8).x == 8
    assert len(seen) == 1


def test_new_of_a_subclass_is_called() -> None:
    pair = make()

    class Eleven(pair):
        def __new__(cls, *args: object) -> object:
            return super().__new__(cls, 11)

    class Plain(pair):
        pass

    for _ in range(3):
        assert Eleven(1).x == 11
        assert (Plain(9).x, type(Plain(9))) == (9, Plain)


def test_instances_let_go_of_their_class() -> None:
    pair = make()
    pair(1)
    before = sys.getrefcount(pair)
    for _ in range(100):
        pair(1)
        with pytest.raises(metalane.ArgumentError):
            pair(-1)
    assert sys.getrefcount(pair) == before
