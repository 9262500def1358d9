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
from bench.pressure.chart import Chart, Line, Panel, number
from bench.pressure.faults import COMPARED, FAULTS, NOTICES, cell, details, legend
from bench.pressure.lineup import LINEUP
from bench.pressure.runs import Files, Scale
from bench.pressure.section import chart, measure
from bench.pressure.shapes import SHAPES, Site, in_background
from demo.postgres import EmbeddedPostgres


@pytest.mark.slow
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


def test_the_legend_says_what_each_queue_was_told() -> None:
    text = legend(COMPARED, Scale())
    assert all(f"{LINEUP[name].spec.name} {NOTICES[name]}" in text for name in COMPARED)
    assert "procrastinate 100." in text


def test_a_chart_names_its_units_and_interrupts_lines_at_missing_values() -> None:
    line = Line("ours & theirs", "#123456", [(1, 10.0), (2, None), (3, 2_000.0)], is_ours=True)
    drawn = Chart("Title", [Panel("Delay, ms", [line], logarithmic=True)], (1, 2), 3).draw()

    svg = ET.fromstring(drawn)  # noqa: S314 -- we wrote it
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Title", "Delay, ms", "seconds", "ours & theirs", "10", "1k"} <= set(texts)
    strokes = [path.get("d", "") for path in svg.iter("{http://www.w3.org/2000/svg}path") if path.find("*") is not None]
    assert [stroke.count("M") for stroke in strokes] == [2]
    assert "prefers-color-scheme:dark" in drawn


def test_a_long_line_is_thinned() -> None:
    points = [(float(at), float(at % 7)) for at in range(36_000)]
    drawn = Chart("An hour", [Panel("Jobs", [Line("one", "#123456", points)])], (1, 2), 36_000).draw()
    assert len(drawn) < 6_000


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.1, "0.1"), (20, "20"), (1_500, "1.5k"), (2_000_000, "2M")])
def test_numbers_of_a_scale_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_the_chart_of_a_shape_with_a_peer_that_handled_nothing_can_be_drawn() -> None:
    names = ("at", "depth", "rate", "p50", "p99", "dead", "bytes", "wal", "cpu")
    samples = {name: [None, None] for name in names} | {"at": [1.0, 2.0], "depth": [5.0, 5.0], "rate": [0.0, 0.0]}
    one = {"rate": 10.0, "capacity": 20.0, "begin": 1.0, "end": 2.0, "samples": samples}
    drawn = chart(SHAPES["burst"], {"peers": {"taskq": one}}).draw()
    assert ET.fromstring(drawn).get("role") == "img"  # noqa: S314 -- we wrote it
