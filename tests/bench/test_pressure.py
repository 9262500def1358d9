"""The arena of the benchmark, on its smallest scale and with TaskQ alone, and its charts."""

import json
import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from xml.etree import ElementTree as ET

import pytest

from bench.peers.compare import write_payloads
from bench.peers.load import LoadMeter, Timing
from bench.peers.sites import Started
from bench.pressure import runs
from bench.pressure.faults import FAULTS, cell, details
from bench.pressure.lineup import LINEUP
from bench.pressure.runs import Files, Scale
from bench.pressure.section import measure
from bench.pressure.shapes import SHAPES, Site, in_background
from demo.postgres import EmbeddedPostgres


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


def test_handled_jobs_are_on_record_before_they_end_also_the_repeated_ones(tmp_path: Path) -> None:
    files = Files(tmp_path)
    timing = Timing(time.monotonic(), 1.0, 10.0)
    jobs = [{"number": number, "pushed": time.monotonic()} for number in (1, 2, 2)]
    meter = LoadMeter(files.records, timing, at_once=True)
    for job in jobs:
        meter.handle(job)
    assert [number for number, _ in files.handled()] == [1, 2, 2]

    later = LoadMeter(files.records, timing, at_once=False)  # the next worker, in a run without faults
    later.handle({**jobs[0], "number": 3})
    assert len(files.handled()) == 3
    assert later.line().keys() == {"p50", "p99", "most"}
    later.handle(jobs[0])
    assert later.line() == {}
    assert [number for number, _ in files.handled()] == [1, 2, 2, 3, 1]
    files.produced.write_text('{"ranges": [[1, 5]]}\n', encoding="utf-8")
    assert files.missing() == 2


def test_an_error_of_a_fault_fails_the_run() -> None:
    with closing(EmbeddedPostgres()) as server:
        site = Site(server, "", "", "", 1.0, {})
        with pytest.raises(RuntimeError, match="connect to the server itself"), FAULTS["cut"].act(site):
            pass


def test_work_in_the_background_ends_with_the_block() -> None:
    ended = []

    def work(over: Event) -> None:
        assert over.wait(30)
        ended.append(1)

    with in_background(work, 2):
        assert not ended
    assert len(ended) == 2
