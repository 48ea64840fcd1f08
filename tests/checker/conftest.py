"""The checker watches shaders on the CPU device, on Linux."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("cpu")
    item.add_marker("linux")
