"""That random programs show a barrier that is missing: between barriers the double runs launches in shuffled order."""

from __future__ import annotations

import numpy as np
from host.test_graph_programs import SOURCE, WORDS, expected, random_program, record

import metalane


def test_programs_without_barriers_go_wrong() -> None:
    device = metalane.Device("metal")
    device.registry.register_source("programs", SOURCE)
    pipelines = {name: device.registry.pipeline(name) for name in ("mix", "put")}
    rng = np.random.default_rng(1)
    memory = device.zeros(WORDS, "u32")
    wrong = {True: 0, False: 0}
    for _ in range(100):
        program = random_program(rng)
        start = rng.integers(1 << 32, size=WORDS, dtype=np.uint32)
        for auto_barriers in wrong:
            memory.numpy()[:] = start
            encoder = device.command_encoder(auto_barriers=auto_barriers)
            record(encoder, program, memory, pipelines)
            encoder.commit_and_wait()
            salts = [launch.salt for launch in program]
            wrong[auto_barriers] += not np.array_equal(memory.numpy(), expected(program, salts, start))
    assert wrong[True] == 0
    assert wrong[False] > 20
