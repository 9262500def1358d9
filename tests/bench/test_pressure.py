"""The arena of the benchmark, on its smallest scale and with TaskQ alone, and its charts."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.peers.compare import write_payloads
from bench.peers.sites import Started
from bench.pressure import runs
from bench.pressure.faults import FAULTS, cell, details
from bench.pressure.lineup import LINEUP
from bench.pressure.runs import Scale
from bench.pressure.section import measure
from bench.pressure.shapes import SHAPES


@pytest.mark.slow
@pytest.mark.faults
def test_a_round_writes_its_samples_and_its_chart_and_loses_nothing(tmp_path: Path) -> None:
    name = "restart"
    programs = os.environ.get("TASKQ_TEST_PROGRAMS")
    scale = Scale(rate=200, seconds=3, backlog=1_000, programs=Path(programs) if programs else None)
    command = [sys.executable, "-m", "bench.peers.worker"]
    peer = Started(LINEUP["taskq"].spec, command, {}, write_payloads(tmp_path, scale.backlog))

    measure({"taskq": peer}, [SHAPES[name]], scale, tmp_path)

    one = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["peers"]["taskq"]
    assert one["pushed"] > 200
    assert one["missing"] == 0
    assert one["handled"] >= one["pushed"]
    assert len({len(column) for column in one["samples"].values()}) == 1
    assert any(one["samples"]["wal"])
    svg = ET.fromstring((tmp_path / f"{name}.svg").read_text(encoding="utf-8"))  # noqa: S314 -- we wrote it
    assert SHAPES[name].title in "".join(svg.itertext())


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
