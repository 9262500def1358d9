"""The pages of concepts state what the SQL functions do, and the glossary has their words."""

import re
from itertools import takewhile
from pathlib import Path

import pytest

from airflow_provider_taskq.queue import Condition, Insertion, Junction, NewTask, Order, Result, State, TaskQueue
from airflow_provider_taskq.queue.models import Revival
from tests.queue.conftest import everything, task_in

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONCEPTS = DOCS / "concepts"
PAGES = [
    *(ROOT / "README.md", DOCS / "index.md", DOCS / "tutorial.md"),
    *sorted({*CONCEPTS.glob("*.md"), *(DOCS / "how-to").glob("*.md")} - {CONCEPTS / "glossary.md"}),
]
NOT_PROSE = re.compile(r"^ *```.*?^ *```|<!--.*?-->|`[^`\n]*`", re.DOTALL | re.MULTILINE)
SAME_PUSH = "the same identifier earlier in the same push"


def table(page: str, first: str) -> list[list[str]]:
    """The cells of the table of a page whose head begins with a text, without the head."""
    text = (CONCEPTS / page).read_text(encoding="utf-8")
    rows = takewhile(lambda line: line.startswith("|"), text[text.index(f"| {first} |") :].splitlines())
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in list(rows)[2:]]


def cells() -> list[tuple[str, Insertion, str]]:
    """Each cell of the table of insertions, with its row and its column."""
    rows = table("insertions.md", "older task")
    return [(row[0], insertion, cell) for row in rows for insertion, cell in zip(Insertion, row[1:], strict=True)]


@pytest.mark.promise("An older task changes as the table of insertions says")
@pytest.mark.parametrize(("older", "insertion", "cell"), cells())
def test_a_push_does_what_the_table_of_insertions_says(
    queue: TaskQueue, older: str, insertion: Insertion, cell: str
) -> None:
    queue.create_topic("work")
    if older == SAME_PUSH:
        state = State.READY
        queue.push("work", ["a", NewTask("a")], insertion)
    else:
        state = State[older]
        task_in(queue, queue.register("worker"), state)
        queue.push("work", ["a"], insertion)
    expected = {"kept": state, "REDUNDANT": State.REDUNDANT, "deleted": None, "not stored": None}[cell]
    *before, after = everything(queue)
    assert [task.state for task in before] == [state for state in (expected,) if state is not None]
    assert after.state is State.READY


def test_the_pages_of_concepts_have_every_state_result_and_choice() -> None:
    assert {row for row, _, _ in cells()} == {SAME_PUSH, *State.__members__}
    for names in (State, Result, Insertion, Condition, Junction, Order, Revival):
        assert set(names.__members__) <= glossary()
    assert [(int(row[0]), row[1]) for row in table("index.md", "| state")] == [(each, each.name) for each in State]
    assert [(int(row[0]), row[1]) for row in table("index.md", "number | result")] == [
        (each, each.name) for each in Result
    ]
    diagram = (CONCEPTS / "states.svg").read_text(encoding="utf-8")
    assert {*State.__members__, *Result.__members__} <= set(re.findall(r">([A-Z]+)<", diagram))


def glossary() -> set[str]:
    """The words of the glossary."""
    return {row[0].partition("</a>")[2].strip("`") for row in table("glossary.md", "word")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_glossary_has_each_word_that_a_page_introduces(page: Path) -> None:
    """A page introduces a word in bold or italics and in small letters, and emphasizes nothing else in this way."""
    text = NOT_PROSE.sub("", page.read_text(encoding="utf-8"))
    introduced = re.findall(r"(?<!\*)\*{1,2}([a-z][a-z -]*)\*{1,2}(?!\*)", text)
    known = {word + ending for word in glossary() for ending in ("", "s", "es", "d")}
    assert [word for word in introduced if word not in known] == []
