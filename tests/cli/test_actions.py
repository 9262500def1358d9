"""Commands that change something. A dry run of each changes nothing."""

import json
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from airflow_provider_taskq.cli import _session
from airflow_provider_taskq.queue import Decision, NewTask, Owner, Result, State, Task, TaskQueue, TopicPolicy
from tests.cli.conftest import Ask, Run
from tests.internals import block_verbs
from tests.queue.conftest import everything, image, known, lapse, states

pytestmark = pytest.mark.promise("A command asks before it removes anything, and a dry run changes nothing")


@pytest.fixture
def failed(queue: TaskQueue, owner: Owner) -> list[int]:
    """Three FAILED tasks: a and b with one error, c with another."""
    queue.push("work", [NewTask(name, {"n": 1}, reference=f"for {name}") for name in "abc"])
    tasks = queue.poll("work", owner, 3)
    reasons = ["Timeout: no answer", "Timeout: no answer", "Refused"]
    decisions: dict[Task | int, Decision | Result] = {
        task: Decision(Result.FAILURE, error=why) for task, why in zip(tasks, reasons, strict=True)
    }
    queue.complete(owner, decisions)
    return [task.sequence for task in tasks]


def trail(queue: TaskQueue) -> list[tuple[str, str | None, int]]:
    """The audit log, the oldest line first: action, topic, count."""
    return [(line.action, line.topic, line.count) for line in reversed(queue.audit_trail())]


def test_push_stores_a_task_for_each_identifier(ask: Ask, queue: TaskQueue) -> None:
    queue.push("work", ["before"])
    words = ("--payload", '{"total": 12}', "--reference", "r", "--priority", "5", "--delay", "90s", "--ttl", "1h")
    answer = ask("push", "work", "a", "b", *words, "--depends-on", "work:before", "--insertion", "replace")
    assert [task["identifier"] for task in answer["tasks"]] == ["a", "b"]
    task = known(queue, answer["tasks"][0]["sequence"])
    assert (task.payload, task.reference, task.priority) == ({"total": 12}, "r", 5)
    assert timedelta(seconds=89) < task.available_at - task.created <= timedelta(seconds=90)
    assert [found.identifier for found in queue.dependencies("work", task.sequence)] == ["before"]
    assert trail(queue) == [("push", "work", 2)]


def test_push_reads_json_lines(ask: Ask, queue: TaskQueue, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(
        '"a"\n\n{"identifier": "b", "payload": {"n": 1}, "priority": 3, "delay": "2m", "suspended": false}\n'
        '{"identifier": "c", "available_at": "2026-11-21T09:30:00Z", "ttl": 60, "depends_on": [["work", "a"]]}\n'
    )
    assert ask("push", "work", "--file", file)["pushed"] == 3
    assert [task.identifier for task in everything(queue)] == ["a", "b", "c"]
    assert everything(queue)[1].payload == {"n": 1}
    assert everything(queue)[2].status == "blocked"
    assert ask("push", "work", "-f", "-", stdin='"d"\n')["tasks"][0]["identifier"] == "d"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"identifier": "b", "payload": "secret-word"', "line 2: unreadable JSON: Expecting ',' delimiter, at char"),
        (
            '{"identifier": "b", "colour": "secret-word"}',
            "line 2: unknown field 'colour': a task has identifier, payload",
        ),
        ('{"identifier": "b", "delay": "later"}', "line 2: invalid duration 'later'"),
        ('{"identifier": "b", "available_at": "2026-11-21T09:30"}', "position 1: its available_at has no time zone"),
    ],
)
def test_push_names_an_invalid_line_and_stores_nothing(run: Run, queue: TaskQueue, line: str, reason: str) -> None:
    refused = run("push", "work", "--file", "-", code=1, stdin=f'"a"\n{line}\n')
    assert reason in refused.stderr
    assert "secret-word" not in refused.output
    assert everything(queue) == []


def test_push_of_a_stream_prints_only_the_count(ask: Ask, queue: TaskQueue) -> None:
    lines = "".join(f'"task-{number}"\n' for number in range(500))
    answer = ask("push", "work", "--stream", "--file", "-", stdin=lines)
    assert answer["pushed"] == 500
    assert answer["last"] - answer["first"] == 499
    assert "tasks" not in answer
    assert queue.count("work")["work"][State.READY].count == 500


def test_push_reads_a_payload_from_a_file_or_stdin(ask: Ask, queue: TaskQueue, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"n": 1}')
    ask("push", "work", "a", "--payload", f"@{file}")
    ask("push", "work", "b", "--payload", "@-", stdin='{"n": 2}')
    assert [task.payload for task in everything(queue)] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("push", "work"), "give an IDENTIFIER"),
        (("push", "work", "a", "--file", "-"), "give no identifier"),
        (("push", "work", "a", "--payload", "{"), "unreadable JSON"),
        (("push", "work", "a", "--depends-on", "x"), "TOPIC:IDENTIFIER"),
        (("offer", "work"), "give an IDENTIFIER"),
    ],
)
def test_push_and_offer_refuse_invalid_arguments_with_exit_code_2(
    run: Run, queue: TaskQueue, words: tuple[str, ...], reason: str
) -> None:
    assert reason in run(*words, code=2).stderr
    assert everything(queue) == []


UNREADABLE = {
    "an exponent": ("[1e99999999999999999999999]", "a number outside the range of a double"),
    "digits": ("9" * 5_000, "a number outside the range of a double"),
    "depth": ("[" * 50_000 + "]" * 50_000, "nested deeper"),
    "depth that Python reads": ("[" * 150 + "]" * 150, "nested deeper than 100 levels"),
}


@pytest.mark.parametrize(("payload", "reason"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_push_refuses_a_payload_that_some_clients_cannot_read(
    run: Run, queue: TaskQueue, payload: str, reason: str
) -> None:
    by_option = run("push", "work", "a", "--payload", "@-", stdin=payload, code=1 if "100" in reason else 2)
    lines = f'"a"\n{{"identifier": "b", "payload": {payload}}}\n'
    by_line = run("push", "work", "--file", "-", stdin=lines, code=1)
    for message in (by_option.stderr, by_line.stderr):
        assert reason in message
        assert len(message) < 500
    assert "line 2" in by_line.stderr or "position 1" in by_line.stderr
    assert everything(queue) == []


def test_push_with_dry_run_checks_tasks_and_stores_nothing(run: Run, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    before = image(queue)
    assert (
        run("push", "work", "a", "b", "--insertion", "DELETE", "--dry-run").stdout == "Would push 2 tasks into work.\n"
    )
    assert image(queue) == before
    assert trail(queue) == []


def test_retry_of_named_tasks_needs_no_confirmation(ask: Ask, run: Run, queue: TaskQueue, failed: list[int]) -> None:
    assert "Would retry 1 task" in run("retry", "work", failed[0], "--dry-run").stdout
    assert known(queue, failed[0]).state is State.FAILED
    answer = ask("retry", "work", failed[0])
    assert answer["tasks"] == [{"sequence": failed[0], "goes_on_as": failed[0]}]
    assert known(queue, failed[0]).state is State.READY
    assert "have not ended" in run("retry", "work", *failed, code=1).stderr
    event = queue.timeline("work", failed[0])[-1]
    assert (event.actor, event.role) == (_session.actor(), queue.conn.info.user)
    assert f"{_session.actor()} via role {queue.conn.info.user}" in run("show", "work", failed[0]).stdout


def test_retry_by_filter_needs_a_confirmation(ask: Ask, run: Run, queue: TaskQueue, failed: list[int]) -> None:
    choice = ("retry", "work", "--state", "FAILED", "--error", "timeout", "--since", "1h")
    assert "This retries 2 tasks of work." in run(*choice, code=2).stderr
    assert ask(*choice, "--dry-run")["revived"] == 2
    assert ask(*choice, "--yes", "--size", "1")["revived"] == 1
    assert [state for _, state in states(queue)] == [State.READY, State.FAILED, State.FAILED]
    assert ask(*choice, "--yes", "--by", "append")["tasks"][0]["goes_on_as"] > failed[2]
    assert ask("retry", "work", "--state", "FAILED", "--yes")["revived"] == 1
    assert ask("retry", "work", "--state", "FAILED", "--yes")["revived"] == 0
    assert trail(queue) == [("retry", "work", count) for count in (1, 1, 1, 0)]


def test_reassign_changes_the_result_of_ended_tasks(ask: Ask, run: Run, queue: TaskQueue, failed: list[int]) -> None:
    assert ask("reassign", "work", *failed[:2], "--result", "SUCCESS", "--dry-run")["reassigned"] == 2
    assert ask("reassign", "work", failed[0], "--result", "success")["reassigned"] == 1
    assert known(queue, failed[0]).state is State.SUCCEEDED
    run("reassign", "work", "--state", "FAILED", "--result", "FILTER", code=2)
    assert ask("reassign", "work", "--state", "FAILED", "-i", "b", "--result", "FILTER", "--yes")["reassigned"] == 1
    assert [state for _, state in states(queue)] == [State.SUCCEEDED, State.FILTERED, State.FAILED]


def test_pause_and_resume_print_the_changed_topics(ask: Ask, run: Run, queue: TaskQueue) -> None:
    queue.create_topic("other")
    assert run("pause", "work", "--dry-run").stdout == "work: would be paused\n"
    assert run("pause", "work").stdout == "work: paused\n"
    assert run("pause", "work", "other").stdout == "work: was paused already\nother: paused\n"
    assert ask("resume", "work")["topics"] == [{"topic": "work", "changed": True}]
    run("resume", "other", "nowhere", code=1)
    assert [one.paused for one in queue.browse_topics()] == [True, False]  # all, or none


def test_release_gives_back_the_tasks_of_an_owner(ask: Ask, run: Run, queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b"])
    queue.poll("work", owner, 2)
    assert run("release", "owner", "--dry-run").stdout == "Would give back 2 tasks of owner.\n"
    assert "which holds 2 tasks" in run("release", "owner", code=2).stderr
    assert len(queue.held(owner)) == 2
    assert ask("release", "owner", "--yes")["released"] == 2
    assert [state for _, state in states(queue)] == [State.READY, State.READY]
    assert "ended already" in run("release", "owner", "--yes", code=1).stderr
    assert "does not exist" in run("release", "unknown", "--yes", code=1).stderr


def test_expire_takes_lapsed_leases(ask: Ask, run: Run, queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a"])
    queue.poll("work", owner)
    lapse(queue, owner)
    assert ask("expire", "--grace", "1h")["tasks"] == 0
    assert run("expire", "--dry-run").stdout == "1 task would be taken back from lapsed leases.\n"
    assert len(queue.held(owner)) == 1
    assert run("expire").stdout == "1 task was taken back from lapsed leases.\n"
    assert queue.held(owner) == []


def test_purge_removes_ended_tasks(ask: Ask, run: Run, queue: TaskQueue, failed: list[int]) -> None:
    queue.push("work", ["d"])
    assert run("purge", "work", "--dry-run").stdout == "Would purge 3 tasks of work.\n"
    assert "This purges 3 tasks of work for good." in run("purge", "work", code=2).stderr
    assert ask("purge", "work", "--before", "1h", "--yes")["matching"] == 0
    assert ask("purge", "work", "--state", "FAILED", "--to", failed[0], "--yes")["removed"] == 1
    assert ask("purge", "work", "--yes")["removed"] == 2
    assert states(queue) == [("d", State.READY)]
    assert ask("purge", "work", "--all", "--dry-run")["matching"] == 1
    assert ask("purge", "work", "--all", "--yes")["removed"] == 1
    assert "only one of the three" in run("purge", "work", "--all", "--state", "READY", code=2).stderr
    assert "not known" in run("purge", "nowhere", "--yes", code=1).stderr
    assert trail(queue) == [("purge", "work", count) for count in (1, 2, 1)]


def test_purge_commits_in_batches(
    ask: Ask, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch, failed: list[int]
) -> None:
    monkeypatch.setattr("airflow_provider_taskq.cli.actions.PURGE_BATCH", 2)
    assert ask("purge", "work", "--yes")["removed"] == len(failed)
    assert trail(queue) == [("purge", "work", 2), ("purge", "work", 1)]


def test_topics_creates_alters_and_drops_a_topic(ask: Ask, run: Run, queue: TaskQueue) -> None:
    created = ask(
        "topics", "create", "orders", "--own-tables", "--max-attempts", "5", "--base", "90s", "--horizon", "1d"
    )
    assert created == {"topic": "orders", "created": True}
    assert queue.conn.execute("SELECT FROM taskq.topic_summaries WHERE topic = 'orders' AND own_tables").rowcount == 1
    assert run("topics", "create", "orders").stdout == "Topic orders exists; its policy is unchanged.\n"
    policy = queue.policy("orders")
    assert (policy.retry.max_attempts, policy.retry.base, policy.retry.horizon) == (
        *(5, timedelta(seconds=90)),
        timedelta(days=1),
    )
    assert ask("topics", "alter", "orders", "--probe", "--dry-run")["policy"]["probe"] is True
    assert queue.policy("orders") == policy
    assert ask("topics", "alter", "orders", "--horizon", "none", "--on-expiry", "expire")["policy"]["horizon"] is None
    changed = queue.policy("orders")
    assert (changed.on_expiry, changed.retry.horizon, changed.retry.base) == ("expire", None, policy.retry.base)
    assert "base               1m30s\n" in run("topics", "show", "orders").stdout
    summary = ask("topics", "show", "orders")["summary"]
    assert (summary["ready"], summary["paused"]) == (0, False)
    run("pause", "orders")
    assert "paused" in run("topics", "show", "orders").stdout
    assert "at least one option" in run("topics", "alter", "orders", code=2).stderr
    queue.push("orders", ["a"])
    assert run("topics", "drop", "orders", "--dry-run").stdout == "Would remove topic orders with 1 task.\n"
    assert "for good" in run("topics", "drop", "orders", code=2).stderr
    assert ask("topics", "drop", "orders", "--yes") == {
        "topic": "orders",
        "dropped": True,
        "tasks": 1,
        "dry_run": False,
    }
    assert queue.topics() == ["work"]
    assert [action for action, _, _ in trail(queue)] == ["create", "alter", "pause", "drop"]


def test_every_field_of_a_policy_has_an_option(ask: Ask, queue: TaskQueue) -> None:
    given = {
        "max_attempts": 7,
        "base": "1s",
        "factor": 3.0,
        "max_delay": "1h",
        "horizon": "2h",
        "max_elapsed": "3h",
        "jitter": 0.5,
        "on_expiry": "expire",
        "max_crashes": 9,
        "max_payload_bytes": 10,
        "ttl": "4h",
        "keep_succeeded": "7d",
        "keep_failed": "90d",
    }
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    ask("topics", "create", "full", *words, "--probe", "--notify")
    answer = ask("topics", "show", "full")["policy"]
    seconds = {"base": 1, "max_delay": 3600, "horizon": 7200, "max_elapsed": 10_800, "ttl": 14_400}
    seconds |= {"keep_succeeded": 604_800, "keep_failed": 7_776_000}
    assert answer == {**given, **seconds, "probe": True, "notify": True}
    assert queue.policy("full") != TopicPolicy()


def test_ticks_are_installed_and_uninstalled(ask: Ask, run: Run, queue: TaskQueue) -> None:
    words = ("ticks", "install", "work", "report", "--every", "6h", "--payload", '{"kind": "daily"}')
    assert ask(*words, "--dry-run")["installed"] == 4
    assert everything(queue) == []
    made = ask(*words)
    assert made["installed"] == 4
    assert ask(*words)["installed"] == 0
    assert everything(queue)[0].payload == {"kind": "daily"}
    listed = ask("ticks")["ticks"]
    assert [(line["prefix"], line["waiting"]) for line in listed] == [("report", 4)]
    assert "report" in run("ticks", "--topic", "work").stdout
    removal = ("ticks", "uninstall", "work", "report", made["config_hash"])
    assert ask(*removal, "--dry-run")["removed"] == 4
    assert ask(*removal)["removed"] == 4
    assert run("ticks").stdout == "No tick waits.\n"
    last = queue.now() - timedelta(hours=13)
    queue.install_ticks("work", "report", made["config_hash"], [(last, None)])
    assert ask(*words, "--catch-up", "all", "--dry-run")["installed"] - ask(*words, "--dry-run")["installed"] in (2, 3)
    for bad in (
        [],
        ["--every", "1h", "--cron", "@daily"],
        ["--daily", "noon"],
        ["--daily", "09:00", "--daily", "12:00+02:00"],
    ):
        run("ticks", "install", "work", "report", *bad, code=2)
    refused = run("ticks", "install", "work", "report", "--every", "1s", "--ahead", "2d", code=2).stderr
    assert "a schedule makes at most 100,000 ticks in one call: install fewer ahead" in refused
    assert ask("ticks", "install", "work", "x", "--daily", "06:00", "--zone", "Europe/Berlin")["installed"] >= 1
    assert ask("ticks", "install", "work", "y", "--cron", "0 6 * * *")["installed"] >= 1


def test_maintain_expires_leases_and_purges_until_nothing_is_left(
    ask: Ask, run: Run, queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", keep_failed=0)
    queue.push("work", [f"{number}" for number in range(1_100)])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 1_099), Result.FAILURE))
    queue.poll("work", owner)
    lapse(queue, owner)
    assert "Would take 1 task back from lapsed leases, and purge " in run("maintain", "--dry-run").stdout
    assert queue.count_tasks("work") == 1_100
    answer = ask("maintain")
    assert (answer["expired"], answer["purged"], answer["more"]) == (1, 1_099, False)
    assert run("maintain").stdout == "Took 0 tasks back from lapsed leases, and purged 0 tasks.\n"
    assert trail(queue) == []


def test_owners_purge_removes_owners_without_a_heartbeat(ask: Ask, queue: TaskQueue) -> None:
    queue.release(queue.register("old"))
    assert ask("owners", "purge", "--older-than", "1h")["owners"] == 0
    assert ask("owners", "purge", "--older-than", "0s", "--dry-run")["owners"] == 1
    assert ask("owners", "purge", "--older-than", "0s")["owners"] == 1


@pytest.mark.usefixtures("queue")
def test_json_documents_are_ascii(run: Run) -> None:
    answer = run("push", "work", "\u202ename\x1b[2J", "--json").stdout
    assert answer.isascii()
    assert json.loads(answer)["tasks"][0]["identifier"] == "\u202ename\x1b[2J"


def test_a_database_error_is_one_line_on_stderr(run: Run, queue: TaskQueue, dsn: str) -> None:
    with psycopg.connect(dsn) as blocker:
        block_verbs(blocker)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGOPTIONS", "-c lock_timeout=50ms")
            assert run("pause", "work", code=1).stderr == "Error: canceling statement due to lock timeout\n"
    assert queue.browse_topics()[0].paused is False


def test_offer_prints_the_outcome_of_each_identifier_and_drop_removes_it(ask: Ask, queue: TaskQueue) -> None:
    [before] = queue.push("work", [NewTask("a", 1)])
    answer = ask("offer", "work", "a", "b", "--payload", "2", "--reference", "r")
    assert [(task["identifier"], task["outcome"]) for task in answer["tasks"]] == [("a", "UPDATED"), ("b", "CREATED")]
    assert answer["tasks"][0]["sequence"] == before.sequence
    assert (known(queue, before).payload, known(queue, before).reference) == (2, "r")
    ignored = ask("offer", "work", "-f", "-", "--if-exists", "ignore", stdin='{"identifier": "a", "payload": 3}\n')
    assert [task["outcome"] for task in ignored["tasks"]] == ["IGNORED"]
    assert ask("drop", "work", "a", "--dry-run")["dropped"] is True
    assert ask("drop", "work", "a")["dropped"] is True
    assert ask("drop", "work", "a")["dropped"] is False
    assert [info.identifier for info in everything(queue)] == ["b"]
    assert trail(queue) == [("offer", "work", 2), ("offer", "work", 1), ("drop", "work", 1), ("drop", "work", 0)]


def test_offer_of_an_invalid_task_stores_nothing(run: Run, queue: TaskQueue) -> None:
    line = '{"identifier": "b", "suspended": true}\n'
    assert "neither suspended nor depends" in run("offer", "work", "-f", "-", code=1, stdin=f'"a"\n{line}').stderr
    assert "Would offer 1 task" in run("offer", "work", "a", "--dry-run").stdout
    assert everything(queue) == []


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (["retry", "work", "a", "b"], State.READY),
        (["reassign", "work", "a", "b", "--result", "SUCCESS"], State.SUCCEEDED),
        (["purge", "work", "a", "b", "--yes"], None),
    ],
)
def test_ended_tasks_are_named_by_identifier(
    run: Run, queue: TaskQueue, failed: list[int], words: list[str], state: State | None
) -> None:
    run(*words)
    found = {task.sequence: task.state for task in everything(queue)}
    assert [found.get(sequence) for sequence in failed[:2]] == [state, state]
    assert found[failed[2]] is State.FAILED


def test_an_identifier_of_several_tasks_is_refused_with_their_sequences(
    run: Run, queue: TaskQueue, owner: Owner, failed: list[int]
) -> None:
    queue.push("work", ["a"])
    run("retry", "work", "a", "--dry-run")  # of its two tasks only one has ended
    again = queue.poll("work", owner)[0]
    queue.complete(owner, {again: Result.FAILURE})
    error = run("retry", "work", "a", code=1).stderr
    assert (
        f"topic 'work' has several tasks of identifier 'a': name one by its sequence: {failed[0]}, {again.sequence}"
        in (" ".join(error.split()))
    )
    assert "has no task of identifier 'x'" in run("retry", "work", "x", code=1).stderr
    for command in ("retry", "why"):
        assert "has no task of identifier '999" in run(command, "work", "9" * 5000, code=1).stderr
    assert (
        f"only a READY task can be changed or canceled: sequence {failed[2]}"
        in run("cancel", "work", "c", code=1).stderr
    )
