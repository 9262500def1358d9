"""What the pages are tested with finds errors: a page with a wrong block fails."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.docs.blocks import BlockError, read_blocks
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
        "```sql\nSELECT identifier, state FROM taskq.tasks; SELECT taskq.push('none', 'a');\n```\n\n"
        "```text\n identifier | state\n a | SUCCEEDED\n(1 row)\nERROR:  …none…\n```\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```sql\nSELECT taskq.push('none', 'a');\n```", r"page\.md:2: ERROR: .*none"),
        ("```sql\nSELECT 1 AS a;\n```\n```text\na\n2\n(1 row)\n```", "expected"),
        ("```pycon\nx\n```", r"page\.md:1: .* is no language"),
        ("```bash\nfalse\n```", r"page\.md:2: exit code 1"),
        ("```bash\necho a\n```\n\n```text\nb\n```", "expected"),
        ("```python\n1 / 0\n```", r'File "page\.md", line 2(.|\n)*ZeroDivisionError'),
        ("```yaml\na: [\n```", r"page\.md:2"),
        ('```python title="unused.py"\na = 1\n```', "no other block uses unused.py"),
        ("```bash\necho && pip install psycopg\n```", "a page installs in lines that start with pip install"),
    ],
)  # fmt: skip
def test_a_page_with_a_wrong_block_fails(run: Run, text: str, message: str) -> None:
    with pytest.raises(BlockError, match=message):
        run(text + "\n")
