"""Runs the subjects one after another, each in a process of its own, and writes the report.

    python benchmarks/run.py [--quick] [--out FOLDER] [SUBJECT ...]

Every process has the same number of threads, peers' included; see each subject's file for its cases. Results go to
benchmarks/results, with --quick to build/bench-quick; README.md there is the report of all results in the folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import harness
import report

SUBJECTS = tuple(report.TITLES)


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmarks beside the peers.")
    parser.add_argument(
        "subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds of few and small cases")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name it is found in")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    if unknown := set(options.subjects) - set(SUBJECTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    out = options.out or (harness.QUICK_RESULTS if options.quick else harness.RESULTS)
    flags = ["--out", str(out), "--only", options.only, *(["--quick"] if options.quick else [])]
    threads = str(harness.THREADS)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    failed = []
    for subject in options.subjects or SUBJECTS:
        begin = time.monotonic()
        print(f"== {subject}", flush=True)
        command = [sys.executable, str(harness.HERE / f"{subject}.py"), *flags]
        if subprocess.run(command, env=environment).returncode != 0:
            failed.append(subject)
        print(f"== {subject}: {time.monotonic() - begin:.0f} s", flush=True)
    report.write(out)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
