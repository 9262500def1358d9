"""The program itself: help, exit codes, the option of the database, imports and start-up time."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.cli import _options, actions, push
from airflow_provider_taskq.cli.program import SECTIONS, SYNONYMS, VERBS, airflow_program, standalone
from airflow_provider_taskq.queue import Insertion, Result, Revival, State, TaskQueue, connect, encoding
from airflow_provider_taskq.queue.durations import LONGEST_DURATION
from tests.cli.conftest import Ask, Run
from tests.roles import logged_in

pytestmark = pytest.mark.promise("A command prints what it did or one line of error, as text or JSON")


def python(program: str) -> str:
    """The output of a Python program."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def test_every_command_has_its_own_help(run: Run) -> None:
    for verb in VERBS:
        output = run(verb, "--help").stdout
        assert output.startswith(f"Usage: taskq {verb} ")
        assert ("--json" in output) == (verb != "completion")


def test_both_programs_have_the_same_commands_and_their_own_database_option() -> None:
    for program, option in ((standalone(), "--dsn"), (airflow_program(), "--conn-id")):
        command = program.get_command(program.make_context("taskq", ["verify"]), "purge")
        assert command is not None
        assert option in {name for parameter in command.params for name in parameter.opts}


def test_help_imports_no_driver_and_a_command_imports_neither_airflow_nor_spark() -> None:
    program = (
        "import sys; from airflow_provider_taskq.cli.program import VERBS, standalone\n"
        "try: standalone().main(['--help'], 'taskq')\n"
        "except SystemExit: pass\n"
        "print([name for name in ('airflow', 'psycopg', 'pyspark', 'rich', 'sqlalchemy') if name in sys.modules])\n"
        "for verb in VERBS: standalone().get_command(None, verb)\n"
        "print([name for name in ('airflow', 'pyspark', 'pyarrow', 'sqlalchemy') if name in sys.modules])"
    )
    assert python(program).splitlines()[-2:] == ["[]", "[]"]


@pytest.mark.parametrize("module", ["click", "rich"])
def test_a_missing_library_names_the_packages_to_install(module: str) -> None:
    """Both distributions bring the libraries; an installation without dependencies, as on a cluster, may lack them."""
    program = (
        "import sys, importlib.util; find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name: None if name == {module!r} else find(name)\n"
        "from airflow_provider_taskq.cli.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"taskq: the command line needs {module}: pip install click rich\n"


@pytest.mark.parametrize(
    "words", [("airflow", "topics"), ("--conn-id", "warehouse", "topics"), ("topics", "show", "work", "--conn-id", "x")]
)
def test_what_is_airflows_is_refused_with_the_name_of_its_program(words: tuple[str, ...], run: Run) -> None:
    refused = run(*words, code=2)
    assert "`airflow taskq ...`" in refused.output
    assert "--dsn or TASKQ_DSN" in refused.output
    assert "--conn-id" not in run("topics", "--help").output


def test_the_options_accept_the_names_of_the_queue() -> None:
    assert tuple(state.name for state in State) == _options.STATES
    assert tuple(State[name] for name in actions.ENDED) == tuple(State)[2:7]
    assert tuple(Insertion) == push.INSERTIONS
    assert tuple(Revival) == actions.REVIVALS
    assert tuple(result.name for result in Result) == actions.RESULTS
    assert (_options.LONGEST_STORED, _options.LONGEST_DURATION) == (encoding.MAX_STORED_DURATION, LONGEST_DURATION)


def test_exit_codes_distinguish_usage_errors_from_other_errors(run: Run) -> None:
    assert "No such command" in run("polish", code=2).stderr
    assert "Missing argument" in run("ls", code=2).stderr
    refused = run("ls", "nowhere", code=1)
    assert refused.stderr == "Error: topic 'nowhere' is not known; create it with: taskq topics create nowhere\n"
    assert refused.stdout == ""


def test_json_prints_an_error_as_a_document(run: Run) -> None:
    for words, code in ((("show", "nowhere", "1"), 1), (("ls", "work", "--size", "0"), 2)):
        refused = run("--json", *words, code=code)
        assert json.loads(refused.stdout)["error"]
        assert refused.stderr


def test_a_password_in_an_argument_is_refused_and_not_printed(run: Run) -> None:
    for dsn in (
        "postgresql://me:secret-word@localhost/db",
        "postgresql://localhost/db?password=secret-word",
        "host=localhost password=secret-word",
        "postgresql://me:secret-word@x@localhost/db",
        "postgresql://me:secret-word@local host/db",
        "host=localhost sslpassword=secret-word",
        "host=localhost oauth_client_secret=secret-word",
        "host=localhost scram_client_key=secret-word",
        "host=localhost scram_server_key=secret-word",
    ):
        refused = run("verify", "--dsn", dsn, code=2)
        assert "secret-word" not in refused.output
        assert "--dsn" in refused.stderr


def test_the_database_option_works_before_and_after_the_command(
    ask: Ask, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = conninfo_to_dict(dsn)
    password = parts.pop("password", None)
    named = make_conninfo("", **{name: value for name, value in parts.items() if value is not None})
    monkeypatch.delenv("TASKQ_DSN")
    if password:
        monkeypatch.setenv("PGPASSWORD", str(password))
    assert ask("--dsn", named, "verify")["matches"] is True
    assert ask("verify", "--dsn", named)["matches"] is True


def test_a_missing_database_is_an_error_that_names_the_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKQ_DSN")
    for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    assert "set TASKQ_DSN" in run("topics", code=1).stderr


def test_every_option_has_an_environment_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQ_JSON", "1")
    assert json.loads(run("verify").stdout)["matches"] is True


def test_the_help_lists_the_commands_by_section(run: Run) -> None:
    output = run("--help").stdout
    for section, verbs in SECTIONS.items():
        assert f"{section}:" in output
        assert all(does in " ".join(output.split()) for _, does in verbs.values())


@pytest.fixture
def complete(dsn: str, repository: Path) -> Callable[..., list[str]]:
    """The completions of the last word, requested as bash does."""

    def complete(*words: str) -> list[str]:
        env = {"COMP_WORDS": " ".join(["taskq", *words]), "COMP_CWORD": str(len(words)), "TASKQ_DSN": dsn}
        result = subprocess.run(
            [sys.executable, "-c", "from airflow_provider_taskq.cli.__main__ import main; main()"],
            env={**env, "_TASKQ_COMPLETE": "bash_complete", "PYTHONPATH": str(repository)},
            capture_output=True,
            text=True,
            check=True,
        )
        return [line.partition(",")[2] for line in result.stdout.splitlines()]

    return complete


def test_a_shell_completes_commands_options_topics_and_states(run: Run, complete: Callable[..., list[str]]) -> None:
    run("topics", "create", "orders")
    run("topics", "create", "other")
    assert complete("pu") == ["push", "purge"]
    assert complete("ls", "ord") == ["orders"]
    assert complete("ls", "orders", "--state", "F") == ["FAILED", "FILTERED"]
    assert "--identifier" in complete("ls", "orders", "--id")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("topcs",), "topics"),
        (("topics", "creat"), "create"),
        (("delete",), "purge"),
        (("topics", "delete"), "drop"),
        (("xyzzy",), None),
    ],
)
def test_a_misspelled_command_or_a_synonym_gets_a_suggestion(
    run: Run, words: tuple[str, ...], meant: str | None
) -> None:
    assert (f"Did you mean {meant!r}?" if meant else "No such command") in run(*words, code=2).stderr
    assert set(SYNONYMS.values()) <= set(VERBS)
    assert not set(SYNONYMS) & set(VERBS)


def test_an_unknown_topic_names_the_command_that_creates_it(run: Run) -> None:
    for words in (["ls", "no where"], ["push", "no where", "a"]):
        message = run(*words, code=1).stderr
        assert "taskq topics create 'no where'" in message
        assert "create_topic" not in message
    run("topics", "create", "mail")
    assert "did you mean 'mail'?" in run("ls", "mial", code=1).stderr


@pytest.fixture
def denied(own_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A role without access as which the command line connects; `own_dsn` has a topic `work` with a task."""
    with connect(own_dsn, autocommit=True) as conn:
        TaskQueue(conn).create_topic("work")
        TaskQueue(conn).push("work", ["first"])
        with logged_in(conn, own_dsn) as role:
            monkeypatch.setenv("TASKQ_DSN", role)
            yield str(conninfo_to_dict(role)["user"])


def grant(dsn: str, role: str, kind: str, topics: list[str] | None = None) -> None:
    """Grants the role a kind of access."""
    with connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT taskq.grant_access(%s, %s, %s)", (role, kind, topics))


@pytest.mark.parametrize("reads", [False, True], ids=["no access", "reader"])
@pytest.mark.parametrize(
    ("words", "kind", "first"),
    [
        (("topics",), "reader", "reader"),
        (("ls", "work"), "reader", "reader"),
        (("stats",), "reader", "reader"),
        (("owners",), "reader", "reader"),
        (("why", "work", "first"), "reader", "reader"),
        (("push", "work", "a"), "producer", "producer"),
        (("ticks", "install", "work", "hourly", "--every", "1h"), "producer", "reader"),
        (("maintain",), "consumer", "consumer"),
        (("expire",), "consumer", "consumer"),
        (("pause", "work"), "operator", "operator"),
        (("topics", "create", "mail"), "operator", "reader"),
        (("owners", "purge"), "operator", "reader"),
    ],
)
def test_a_role_is_told_which_kind_a_command_needs_and_may_carry_it_out_with_that_kind(
    run: Run, own_dsn: str, denied: str, words: tuple[str, ...], kind: str, first: str, reads: bool
) -> None:
    told = kind if reads else first  # a role without access is told the first of the kinds
    if reads:
        grant(own_dsn, denied, "reader")
    if (reads, kind) != (True, "reader"):
        assert f"SELECT taskq.grant_access('{denied}', '{told}')" in run(*words, code=1).stderr
    grant(own_dsn, denied, kind)
    run(*words)


def test_a_reader_of_some_topics_is_told_that_a_command_needs_access_to_every_topic(
    run: Run, own_dsn: str, denied: str
) -> None:
    grant(own_dsn, denied, "reader", ["work"])
    message = run("health", code=1).stderr
    assert f"grants the right on every topic with: SELECT taskq.grant_access('{denied}', 'reader')" in message
    grant(own_dsn, denied, "reader")
    run("health")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("json",), "Error: "),
        (("no_such_module:handle",), "Error: "),
        (("json:no_such_function",), "Error: "),
        (("json:__name__",), "Error: "),
        (("tests.cli.handlers:deliver", "--max-failed", "3"), "--max-failed needs --drain"),
        (("tests.cli.handlers:deliver", "--drain", "--max-failed", "many"), "expected a count such as 0 or 10, or a"),
    ],
)
def test_a_worker_refuses_a_handler_or_a_max_failed_that_is_none(
    run: Run, words: tuple[str, ...], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert error in " ".join(run("worker", *words, "--topic", "work", code=2).stderr.split())
