"""What the documents show works: README's program runs, and links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_programs_of_the_readme_run() -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    printed = []
    for program in programs:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed == ["[0. 2. 4. 6.]\n", "[6. 6. 6. 6.]\n"]


@pytest.mark.parametrize("document", ["async.md", "profiling.md"])
def test_the_programs_of_these_documents_run(document: str, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / document).read_text(), re.DOTALL)
    assert programs
    for program in programs:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(d.relative_to(ROOT)) for d in DOCUMENTS])
def test_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert missing == []


def test_the_readme_lists_every_document() -> None:
    text = (ROOT / "README.md").read_text()
    unlisted = [str(d.relative_to(ROOT)) for d in DOCUMENTS if f"({d.relative_to(ROOT)})" not in text]
    assert unlisted == ["README.md"]


def test_make_targets_in_documents_exist() -> None:
    rules = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"^    make (\w+)", document.read_text(), re.MULTILINE))
        assert named <= rules, document
