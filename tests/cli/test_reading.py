"""Commands that read, as text and as JSON."""

import shlex
from collections.abc import Callable
from datetime import timedelta

import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import Decision, NewTask, Owner, Result, State, TaskQueue, TopicPolicy, connect
from airflow_provider_taskq.queue.policies import RetryPolicy
from tests.cli.conftest import Ask, Run
from tests.internals import damage_task
from tests.queue.conftest import lapse, pass_time, until

pytestmark = pytest.mark.promise("A command prints what it did or one line of error, as text or JSON")

HOSTILE = "\x1b[31mred[bold]x[/bold]\u202e\n:smile:"


@pytest.fixture
def busy(queue: TaskQueue) -> TaskQueue:
    """Tasks 1 to 4 of `work`: failed twice, held, ready, due in an hour; and an empty topic that is paused."""
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=timedelta(0))))
    first = NewTask("a", {"private": "word"}, reference="r", priority=5)
    queue.push("work", [first, "b", "c", NewTask("d", delay=timedelta(hours=1))])
    owner = queue.register("dag/run/task/-1")
    for reason in ("Timeout", "Traceback (most recent call last):\n  ...\nRefused: no"):
        [task] = queue.poll("work", owner)
        queue.complete(owner, {task: Decision(Result.FAILURE, error=reason)})
    queue.poll("work", owner)
    queue.create_topic("quiet")
    queue.pause_topic("quiet")
    return queue


def sequences(answer: dict[str, list[dict[str, int]]]) -> list[int]:
    """The sequences of the tasks in a document."""
    return [task["sequence"] for task in answer["tasks"]]


def test_topics_lists_each_topic_in_one_line(run: Run, ask: Ask, busy: TaskQueue) -> None:
    heading, _, quiet, work = run("topics").stdout.splitlines()
    assert heading.split()[:6] == ["topic", "ready", "scheduled", "running", "failed", "owners"]
    assert quiet.split() == ["quiet", "(paused)", "0", "0", "0", "0", "0"]
    assert work.split()[:6] == ["work", "1", "1", "1", "1", "1"]
    [only] = ask("topics", "--search", "WOR")["topics"]
    counts = {"ready": 1, "scheduled": 1, "running": 1, "failed": 1, "suspended": 0}
    assert {name: only[name] for name in counts} == counts
    assert run("topics", "--search", "none").stdout == "No topic contains 'none'.\n"
    busy.drop_topic("work")
    busy.drop_topic("quiet")
    assert run("topics").stdout == "There are no topics.\n"


def test_topics_lists_more_topics_than_one_query_returns(
    ask: Ask, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_taskq.cli.topics.TOPICS_PER_CALL", 2)
    for number in range(5):
        queue.create_topic(f"topic-{number}")
    names = [one["topic"] for one in ask("topics")["topics"]]
    assert names == [*(f"topic-{number}" for number in range(5)), "work"]


@pytest.mark.usefixtures("busy")
def test_ls_lists_the_newest_task_first(run: Run, ask: Ask) -> None:
    first = min(sequences(ask("ls", "work")))
    assert sequences(ask("ls", "work")) == [first + 3, first + 2, first + 1, first]
    assert sequences(ask("ls", "work", "--oldest")) == [first, first + 1, first + 2, first + 3]
    lines = run("ls", "work").stdout.splitlines()
    assert "scheduled" in lines[2]
    assert "in 59 min" in lines[2]
    assert lines[5].split()[:4] == [str(first), "a", "failed", "2"]
    assert lines[5].endswith("Refused: no")
    assert "private" not in run("ls", "work").output
    assert "private" not in run("ls", "work", "--json").output


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--state", "FAILED"], ["a"]),
        (["--state", "active"], ["b"]),
        (["--status", "scheduled"], ["d"]),
        (["--status", "failed"], ["a"]),
        (["--status", "exhausted"], ["a"]),
        (["--status", "running"], ["b"]),
        (["--identifier", "c"], ["c"]),
        (["--reference", "r"], ["a"]),
        (["--error", "REFUSED"], ["a"]),
        (["--since", "1h"], ["d", "c", "b", "a"]),
        (["--until", "1h"], []),
        (["--state", "READY", "--status", "ready", "--since", "2020-01-01"], ["c"]),
    ],
)
@pytest.mark.usefixtures("busy")
def test_ls_lists_the_tasks_that_match_the_filters(ask: Ask, words: list[str], found: list[str]) -> None:
    assert [task["identifier"] for task in ask("ls", "work", *words)["tasks"]] == found


@pytest.mark.parametrize("order", [[], ["--oldest"]])
@pytest.mark.usefixtures("busy")
def test_ls_with_after_continues_the_previous_page(run: Run, ask: Ask, order: list[str]) -> None:
    whole = sequences(ask("ls", "work", *order))
    pages: list[list[int]] = []
    after: list[str | int] = []
    while True:
        answer = ask("ls", "work", "-n", 3, *order, *after)
        pages.append(sequences(answer))
        if answer["next"] is None:
            break
        after = ["--after", answer["next"]]
    assert pages == [whole[:3], whole[3:]]
    assert f"repeat with --after {whole[2]}" in run("ls", "work", "-n", 3, *order).stdout
    assert run("ls", "work", "--after", whole[3], *order).stdout == "No task matches.\n"


@pytest.mark.usefixtures("busy")
def test_show_hides_payload_and_output(run: Run, ask: Ask) -> None:
    output = run("show", "work", "--identifier", "a").stdout
    for part in ("identifier  a\n", "state       FAILED\n", "payload     18 bytes\n", "Refused: no\n", "ended FAILED"):
        assert part in output
    assert "word" not in output
    assert '{"private":"word"}' in run("show", "work", "-i", "a", "--payload").stdout.replace(" ", "")
    assert output.count(" ms · ran ") + output.count(" s · ran ") == 3, "of the task, of its failure and of its end"
    answer = ask("show", "work", "-i", "a")
    assert "payload" not in answer["task"]
    assert answer["timeline"][-1]["waited"] == answer["task"]["waited"] >= 0
    assert answer["timeline"][-1]["ran"] == answer["task"]["ran"] >= 0
    assert answer["timeline"][0]["waited"] is None
    assert answer["task"]["payload_bytes"] == 18
    assert [event["what"] for event in answer["timeline"]] == ["pushed", "failed", "ended"]
    assert ask("show", "work", answer["task"]["sequence"], "--payload")["task"]["payload"] == {"private": "word"}


def test_show_lists_the_dependencies_of_a_task(run: Run, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    queue.push("work", [NewTask("b", depends_on=[("work", "a")])])
    assert "depends on  a of work (" in run("show", "work", "-i", "b").stdout


def test_why_prints_one_sentence(run: Run, ask: Ask, busy: TaskQueue) -> None:
    assert ask("why", "work", "-i", "d")["why"].startswith("it is due in 59 min")
    assert "it is running: held by dag/run/task/-1" in run("why", "work", "-i", "b").stdout
    busy.pause_topic("work")
    assert ask("why", "work", "-i", "c")["why"] == "its topic is paused"


@pytest.mark.parametrize("verb", ["show", "why"])
@pytest.mark.usefixtures("queue")
def test_an_unknown_task_is_exit_code_1(run: Run, verb: str) -> None:
    assert run(verb, "work", 17, code=1).stderr == (
        "Error: topic 'work' has no task of sequence 17, and none of identifier '17'\n"
    )
    assert "of identifier 'x'" in run(verb, "work", "-i", "x", code=1).stderr
    assert "either by SEQUENCE" in run(verb, "work", code=2).stderr


def test_owners_lists_owners_with_their_tasks(run: Run, ask: Ask, busy: TaskQueue) -> None:
    busy.register("idle")
    lapsed = busy.register("lapsed")
    lapse(busy, lapsed, timedelta(minutes=5))
    assert [(one["owner"], one["held"], one["topics"]) for one in ask("owners")["owners"]] == [
        ("lapsed", 0, []),
        ("idle", 0, []),
        ("dag/run/task/-1", 1, ["work"]),
    ]
    assert "lapsed 5 minutes ago" in run("owners").stdout
    page = ask("owners", "-n", 1)
    assert [one["owner"] for one in ask("owners", "--after", page["next"])["owners"]] == ["idle", "dag/run/task/-1"]
    shown = ask("owners", "show", "dag/run/task/-1")
    assert [task["identifier"] for task in shown["tasks"]] == ["b"]
    assert "holds           1\n" in run("owners", "show", "dag/run/task/-1").stdout
    run("owners", "show", "unknown", code=1)
    assert run("owners", "--search", "none").stdout == "No owner contains 'none'.\n"


def test_stats_counts_tasks_by_state_and_recent_ends(run: Run, ask: Ask, busy: TaskQueue, owner: Owner) -> None:
    busy.complete(owner, dict.fromkeys(busy.poll("work", owner), Result.SUCCESS))
    [quiet, work] = ask("stats")["topics"]
    assert {state: count for state, count in work["counts"].items() if count} == {
        "ACTIVE": 1,
        "READY": 1,
        "FAILED": 1,
        "SUCCEEDED": 1,
    }
    assert set(work["counts"]) == {state.name for state in State}
    assert work["hour"] == {"ended": 2, "succeeded": 1, "failed": 1, "failure_rate": 0.5, "sampled": 1.0}
    assert quiet["hour"]["failure_rate"] is None
    pass_time(busy, timedelta(hours=2))
    [work] = ask("stats", "work")["topics"]
    assert (work["hour"]["ended"], work["day"]["ended"]) == (0, 2)
    assert "50.0%" in run("stats", "work").stdout
    run("stats", "nowhere", code=1)


def test_stats_reads_all_topics_in_a_few_calls(ask: Ask, own_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQ_DSN", make_conninfo(own_dsn, options="-ctrack_functions=all"))
    with connect(own_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        for topic in range(50):
            queue.create_topic(f"topic {topic}")
        queue.push("topic 7", [NewTask("low", priority=-1), NewTask("later", delay=timedelta(hours=1))])
        pass_time(queue, timedelta(minutes=1))
        due = {one["topic"]: one["oldest_due_seconds"] for one in ask("stats")["topics"]}
        assert 60 <= due.pop("topic 7") < 120
        assert list(due.values()) == [None] * 49
        counts = "SELECT sum(calls) FROM pg_stat_user_functions, pg_stat_clear_snapshot()"
        until(lambda: conn.execute(counts.encode()).fetchone() != (None,))  # a session sends its counts at its end
        [(calls,)] = conn.execute(counts.encode()).fetchall()
        assert calls < 50


def test_health_exits_with_1_for_a_warning_or_worse(
    run: Run, ask: Ask, own_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_DSN", own_dsn)  # a database without rows of other tests
    assert ask("health")["worst"] in {"FINE", "NOTICE"}
    assert len(run("health", "--all").stdout.splitlines()) > 9
    with connect(own_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work")
        queue.push("work", ["a"])
        owner = queue.register("owner")
        queue.poll("work", owner)
        lapse(queue, owner, timedelta(hours=1))
    answer = ask("health", code=1)
    assert answer["worst"] == "CRITICAL"
    assert answer["findings"][0]["subject"] == "lapsed leases"
    assert run("health", code=1).stdout.splitlines()[2].startswith("CRITICAL")


@pytest.mark.parametrize(
    "text", ["[1e400]", "9" * 5_000, "[" * 5_000 + "]" * 5_000, "[" * 400 + "]" * 400], ids=lambda text: text[:3]
)
def test_show_prints_an_unreadable_payload_as_its_text(
    run: Run, ask: Ask, queue: TaskQueue, owner: Owner, text: str
) -> None:
    tasks = queue.push("work", [NewTask("a", {"n": 1}), NewTask("b", {"n": 2})])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Decision(Result.SUCCESS, "done")))
    damage_task(queue.conn, tasks[0].sequence, payload=text)
    damage_task(queue.conn, tasks[1].sequence, output=text)
    assert text in run("show", "work", tasks[0].sequence, "--payload").stdout.replace("\n", "")
    first, second = (ask("show", "work", task.sequence, "--payload")["task"] for task in tasks)
    assert (first["payload"], first["payload_text"], first["output"]) == (None, text, "done")
    assert first["payload_unreadable"].startswith("unreadable JSON: ")
    assert (second["output"], second["output_text"], second["payload"]) == (None, text, {"n": 2})
    assert "payload_text" not in second
    assert [task["identifier"] for task in ask("ls", "work")["tasks"]] == ["b", "a"]


def test_commands_print_control_characters_as_escapes(run: Run, queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask(HOSTILE, HOSTILE, reference=HOSTILE), HOSTILE])
    [task] = queue.poll("work", owner)
    queue.complete(owner, {task: Decision(Result.FAILURE, error=HOSTILE)})
    queue.create_topic(HOSTILE)
    looks: list[Callable[[], str]] = [
        lambda: run("ls", "work").output,
        lambda: run("show", "work", task.sequence, "--payload").output,
        lambda: run("why", "work", task.sequence).output,
        lambda: run("topics").output,
        lambda: run("show", "work", "-i", f"{HOSTILE}2", code=1).output,
        lambda: run("ls", f"{HOSTILE}2", code=1).output,
        lambda: run("topics", "drop", HOSTILE, "--dry-run").output,
    ]
    for look in looks:
        output = look()
        assert "\x1b" not in output
        assert "\u202e" not in output
        assert "\\x1b[31mred[bold]x[/bold]\\u202e" in output
        assert ":smile:" in output


@pytest.mark.usefixtures("busy")
def test_a_narrow_terminal_drops_columns_and_only_a_terminal_gets_colors(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    lines = run("ls", "work").stdout.splitlines()
    assert max(map(len, lines)) <= 70
    assert len(lines) == 7  # no cell wraps
    assert lines[6].startswith("The terminal is too narrow for ")
    for name, value, colored in (("TERM", "xterm", False), ("FORCE_COLOR", "1", True), ("NO_COLOR", "1", False)):
        monkeypatch.setenv(name, value)  # FORCE_COLOR as a terminal sets it
        assert ("\x1b[31m" in run("ls", "work").stdout) == colored


def test_errors_groups_failures_and_names_the_command_that_retries_a_group(
    run: Run, ask: Ask, queue: TaskQueue
) -> None:
    assert run("errors").stdout == "No task has failed.\n"
    owner = queue.register("worker")
    queue.push("work", [f"bad-{number}" for number in range(3)])
    errors = [ValueError("no mailbox for bad-0"), ValueError("no mailbox for bad-1"), TimeoutError()]
    tasks = queue.poll("work", owner, 3)
    queue.complete(
        owner, {task: Decision(Result.FAILURE, error=error) for task, error in zip(tasks, errors, strict=True)}
    )
    for words in (["errors"], ["errors", "work"]):
        heading, _, first, second, hint = run(*words).stdout.splitlines()
        assert heading.split() == ["topic", "failed", "error", "messages", "newest", "last"]
        assert first.split()[:2] == ["work", "2"]
        assert "ValueError: no mailbox for #" in first
        assert "TimeoutError" in second
        command = "taskq retry work --state FAILED --error-group 'ValueError: no mailbox for #'"
        assert hint == f"To retry a group: {command}"
    assert [(one["error"], one["failed"]) for one in ask("errors", "work")["errors"]] == [
        ("ValueError: no mailbox for #", 2),
        ("TimeoutError", 1),
    ]
    assert sequences(ask("ls", "work", "--error-group", "TimeoutError")) == [tasks[2].sequence]
    assert ask(*shlex.split(command)[1:], "--yes")["revived"] == 2
    assert [one["error"] for one in ask("errors", "work")["errors"]] == ["TimeoutError"]
    assert ask("ls", "work", "--state", "READY")["tasks"][0]["error_summary"] is None


def test_show_finds_a_task_by_sequence_or_identifier(run: Run, ask: Ask, queue: TaskQueue) -> None:
    queue.push("work", ["c-100"])
    [newest] = queue.push("work", ["c-100"])
    [number] = queue.push("work", [str(newest.sequence)])
    assert ask("why", "work", "c-100")["sequence"] == newest.sequence
    assert ask("show", "work", "c-100")["task"]["sequence"] == newest.sequence
    assert ask("why", "work", newest.sequence)["sequence"] == newest.sequence
    assert ask("why", "work", "-i", newest.sequence)["sequence"] == number.sequence
    [other] = queue.push("work", ["99999999"])
    assert ask("why", "work", "99999999")["sequence"] == other.sequence
    assert "no task of identifier 'c-1'" in run("why", "work", "c-1", code=1).stderr
