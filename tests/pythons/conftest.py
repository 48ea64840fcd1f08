"""Says which interpreters are tested."""

from __future__ import annotations

from pythons.interpreters import FOUND, VERSIONS


def pytest_report_header() -> str:
    missing = [version for version in VERSIONS if version not in FOUND]
    return (
        f"CPythons tested: {', '.join(FOUND) or 'none'}; not on this machine: {', '.join(missing) or 'none'}"
    )
