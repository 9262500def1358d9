"""The arena of the benchmark, on its smallest scale and with TaskQ alone, and its charts."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers.compare import write_payloads
from bench.peers.sites import Started
from bench.pressure import runs
from bench.pressure.faults import FAULTS, cell, details
from bench.pressure.lineup import LINEUP
from bench.pressure.runs import Scale


@pytest.mark.slow
@pytest.mark.faults
def test_a_fault_loses_no_job_and_pauses_the_worker(tmp_path: Path) -> None:
    programs = os.environ.get("TASKQ_TEST_PROGRAMS")
    scale = Scale(rate=200, seconds=3, backlog=1_000, at_once=True, programs=Path(programs) if programs else None)
    command = [sys.executable, "-m", "bench.peers.worker"]
    peer = Started(LINEUP["taskq"].spec, command, {}, write_payloads(tmp_path, scale.backlog))
    contender = replace(LINEUP["taskq"], mode={**LINEUP["taskq"].mode, "lease": 10.0})

    found = runs.run(contender, peer, FAULTS["worker-kills"], scale, 400)

    assert found["pushed"] > 200
    assert found["missing"] == 0
    assert found["pause"] > 0.1
    assert found["restarts"]["consumer"] > 0
    assert cell(found) in details(found)
