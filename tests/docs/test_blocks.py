"""What the pages are tested with finds errors: a page with a wrong block fails."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.docs.blocks import BlockError, check_output, read_blocks, read_commands, split_statements
from tests.docs.pages import Page

Run = Callable[[str], None]


@pytest.fixture
def run(dsn: str, tmp_path: Path, python_environment: Mapping[str, str]) -> Run:
    """Runs the text of a page."""

    def run_text(text: str) -> None:
        path = tmp_path / "page.md"
        path.write_text(text)
        folder = tmp_path / "run"
        folder.mkdir()
        with Page(folder, dsn, python_environment) as page:
            page.run(read_blocks(path, tmp_path))

    return run_text


def test_blocks_are_read_with_title_place_and_output(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        '# A page\n\n=== "SQL"\n\n    ```sql\n    SELECT 1;\n    ```\n\n    ```text\n    1\n    ```\n\n'
        '<!-- setup: python\na = 1\n-->\n\n```python title="b.py"\nb = 2\n```\n\nShown:\n\n```text\nno output\n```\n'
        "<!-- until: SELECT true -->\n```bash\nsleep 9\n```\n"
    )
    statement, setup, file, shell = read_blocks(path, tmp_path)
    assert (statement.place, statement.text) == ("page.md:6", "SELECT 1;\n")
    assert statement.expected is not None
    assert statement.expected.text == "1\n"
    assert (setup.language, setup.text, setup.hidden) == ("python", "a = 1\n", True)
    assert (file.title, file.expected) == ("b.py", None)
    assert (shell.condition, shell.background) == ("SELECT true", False)


@pytest.mark.parametrize("fence", ["```", "```pycon", "``` mermaid"])
def test_a_block_needs_a_language_that_is_known(tmp_path: Path, fence: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"{fence}\nx\n```\n")
    with pytest.raises(BlockError, match=r"^page\.md:1: .* is no language"):
        read_blocks(path, tmp_path)


def test_a_console_block_has_commands_with_their_output(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("```console\n$ echo a \\\n> b\na b\n$ true\n```\n")
    (block,) = read_blocks(path, tmp_path)
    assert [(command.text, command.expected) for command in read_commands(block)] == [
        ("echo a \\\nb", "a b"),
        ("true", ""),
    ]


def test_statements_are_split_at_semicolons_outside_of_quotes() -> None:
    script = "SELECT ';' AS \"a;b\"; -- no; end\nDO $x$ BEGIN PERFORM 1; END $x$;\n/* a; */\n"
    assert split_statements(script) == ["SELECT ';' AS \"a;b\"", "-- no; end\nDO $x$ BEGIN PERFORM 1; END $x$"]


@pytest.mark.parametrize(
    ("expected", "actual", "equal"),
    [
        ("a  b", "a b\n", True),
        ("a", "b", False),
        ("a", "a\nb", False),
        ("a\n…", "a\nb\nc", True),
        ("since … minutes", "since 12 minutes", True),
        (" a | b\n---+---\n 1 | 2\n(1 row)", "a|b\n1|2\n(1 row)", True),
        ("(1 row)", "(2 rows)", False),
        ("ended 2026-11-21 10:53:24 UTC (2 minutes ago)", "ended 2027-01-01 00:00:00 UTC (40 s ago)", True),
        ("in 6 h 4 min", "in 1 day", True),
        ("27 tasks", "28 tasks", False),
    ],
)
def test_an_output_is_compared_line_by_line(expected: str, actual: str, equal: bool) -> None:
    assert (check_output(expected, actual) is None) == equal


def test_a_page_runs_in_one_database_one_shell_and_one_namespace(run: Run) -> None:
    run(
        "```sql\nSELECT taskq.create_topic('orders');\nSELECT taskq.push('orders', 'a');\n```\n"
        "```bash\nexport NAME=orders; mkdir below; cd below\n```\n"
        '```bash\ntaskq topics --json | grep -c "$NAME"; basename "$PWD"\n```\n```text\n1\nbelow\n```\n'
        '```python title="rules.py"\ndef handle(task):\n    return None\n```\n'
        "```python\nimport os\nfrom airflow_provider_taskq.worker import Worker\nfrom rules import handle\n"
        "Worker(os.environ['TASKQ_DSN'], 'orders', handle).drain()\ndone = 1\n```\n"
        "```python\nprint(done)\n```\n```text\n1\n```\n"
        "```bash\nTASKQ_DSN=postgresql://user@host/database taskq topics\n```\n```text\n…\norders …\n```\n"
        "```console\n$ taskq stats orders\ntopic … SUCCEEDED …\n…\norders … 1 …\n```\n"
        "```sql\nSELECT identifier, state FROM taskq.tasks;\n```\n\n"
        "```text\n identifier | state\n a | SUCCEEDED\n(1 row)\n```\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```sql\nSELECT taskq.push('none', 'a');\n```", r"page\.md:2: ERROR: .*none"),
        ("```sql\nSELECT 1 AS a;\n```\n```text\na\n2\n(1 row)\n```", "expected"),
        ("```bash\nfalse\n```", r"page\.md:2: exit code 1"),
        ("```bash\nfalse | true\n```", r"exit code 1"),
        ("```bash\necho a\n```\n\n```text\nb\n```", "expected"),
        ("```console\n$ taskq topics show none\n```", "exit code 1"),
        ("```python\n1 / 0\n```", r'File "page\.md", line 2(.|\n)*ZeroDivisionError'),
        ("```python\nprint(1)\n```\n```text\n2\n```", "expected"),
        ("```yaml\na: [\n```", r"page\.md:2"),
        ("```json\n{a}\n```", r"page\.md:2"),
        ('```python title="unused.py"\na = 1\n```', "no other block uses unused.py"),
        ('```python title="../a.py"\na = 1\n```', "is not in the folder"),
        ("```bash\necho && pip install psycopg\n```", "a page installs in lines that start with pip install"),
    ],
)  # fmt: skip
def test_a_page_with_a_wrong_block_fails(run: Run, text: str, message: str) -> None:
    with pytest.raises(BlockError, match=message):
        run(text + "\n")


def test_an_error_may_be_part_of_the_page(run: Run) -> None:
    run(
        "```sql\nSELECT taskq.push('none', 'a');\n```\n```text\nERROR:  …none…\n```\n"
        "```python\nint('a')\n```\n```text\nValueError: invalid literal …\n```\n"
        "```console\n$ taskq topics show none\nError: …none…\n```\n"
    )


def test_a_block_runs_until_its_condition_or_behind_the_page(run: Run) -> None:
    run(
        "```sql\nSELECT taskq.create_topic('orders');\n```\n"
        "<!-- background: SELECT count(*) = 1 FROM taskq.tasks WHERE state = 'SUCCEEDED' -->\n"
        "```bash\necho 'def handle(task): pass' >rules.py\n"
        "taskq push orders a; taskq worker rules:handle --topic orders\n```\n"
        "<!-- until: SELECT count(*) = 2 FROM taskq.tasks WHERE state = 'SUCCEEDED' -->\n"
        "```python\nimport os, threading\nfrom airflow_provider_taskq.queue import TaskQueue, connect\n"
        "with connect() as conn:\n    TaskQueue(conn).push('orders', ['b'])\nthreading.Event().wait()\n```\n"
        "```python\nprint('on')\n```\n```text\non\n```\n"
    )


@pytest.mark.slow
def test_a_dag_of_a_page_is_parsed(run: Run) -> None:
    with pytest.raises(BlockError, match=r"(?s)no_such_module"):
        run("```python\nimport no_such_module\nfrom airflow.sdk import DAG\nwith DAG('a'):\n    pass\n```\n")
