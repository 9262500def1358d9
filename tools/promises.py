"""Write docs/why/evidence/guarantees.md: each promise of docs/why/guarantees.md with the tests that prove it.

A promise is the first sentence of a bullet of that page, or the first cell of a row. A module, a class or a test names
it by a mark, `@pytest.mark.promise("...")`, and a specification of interleavings by a line `# promise: ...`. Of a whole
file that proves one promise the page names the file: its tests are read there.

The program reports a promise that no test of `make test` proves, and a mark that names no promise. With --check, it
writes nothing, and reports a page that is not up to date.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PROMISES = "docs/why/guarantees.md"
EVIDENCE = "docs/why/evidence/guarantees.md"
NOT_PROMISED = "## What is not promised"
# The marks of tests that `make test` leaves out, and the target that runs them.
OTHER_TARGETS = {"faults": "test-faults", "documents": "test-docs", "chaos": "chaos"}
ITEM = re.compile(r"(?:- |\d+\. )(?P<sentence>.+?)(?:\.(?= |$)|$)|\| (?P<cell>[^|]+?) \|")
# Not read: bold type, the targets of links, line ends within a bullet, and the heads of tables.
MARKUP = re.compile(r"\*\*|\[([^]]+)\]\([^)]+\)|\n(?= {2,}\w)|(?m:^\|.*\n\|--.*)")
HEAD = """<!-- tools/promises.py writes this page from guarantees.md and the marks of the tests: run `make format`. -->

# Guarantees and their tests

Each promise of [Guarantees](../guarantees.md), with the tests that fail if it is broken: single ones, whose names are
sentences, or all of a file. `make test` runs them with a real PostgreSQL, Airflow and Spark; another target is named.
The page is made of the marks of the tests, and `make check` compares it with them.
"""


class Proof(NamedTuple):
    """A test that proves a promise, and the place of its mark."""

    promise: str
    file: str
    line: int
    sentence: str  # empty: all tests of the file
    target: str = ""  # the target that runs it, unless `make test` does


def read_promises(root: Path) -> Iterator[tuple[str, str]]:
    """Yield heading and text of each promise of the page."""
    heading, page = "", (root / PROMISES).read_text(encoding="utf-8").partition(NOT_PROMISED)[0]
    for line in MARKUP.sub(r"\1", page).splitlines():
        if line.startswith("## "):
            heading = line
        elif found := ITEM.match(line):
            yield heading, " ".join((found["sentence"] or found["cell"]).split())


def read_proofs(root: Path) -> Iterator[Proof]:
    """Yield what the tests and the specifications of interleavings prove."""
    for path in sorted((root / "tests").rglob("*.spec")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if line.startswith("# promise: "):
                yield Proof(line.partition(": ")[2], str(path.relative_to(root)), number, "")
    for path in sorted((root / "tests").rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        assignments = [node for node in module.body if isinstance(node, ast.Assign)]
        of_module = [each.value for each in assignments if ast.unparse(each.targets[0]) == "pytestmark"]
        places = {node.lineno for mark in of_module for node in ast.walk(mark) if isinstance(node, ast.Call)}
        for proof in _proofs(module.body, of_module, str(path.relative_to(root))):
            yield proof._replace(sentence="") if proof.line in places else proof


def _proofs(body: list[ast.stmt], marks: list[ast.expr], file: str) -> Iterator[Proof]:
    """Yield the proofs of the tests of a module or a class, which have its marks, too."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _proofs(node.body, [*marks, *node.decorator_list], file)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found = [mark for each in (*marks, *node.decorator_list) for mark in _marks(each)]
            targets = [OTHER_TARGETS[name] for name, _ in found if name in OTHER_TARGETS]
            for name, call in found:
                if name == "promise" and isinstance(call, ast.Call):
                    promise = ast.literal_eval(call.args[0])
                    yield Proof(promise, file, call.lineno, node.name[5:].replace("_", " "), "".join(targets[:1]))


def _marks(value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the expression of each mark of a decorator or a list of marks."""
    for each in value.elts if isinstance(value, ast.List) else [value]:
        path = ast.unparse(each.func if isinstance(each, ast.Call) else each)
        if path.startswith("pytest.mark."):
            yield path.rpartition(".")[2], each


def find_errors(promises: list[tuple[str, str]], proofs: list[Proof]) -> Iterator[str]:
    """Yield a sentence for each promise without a proof, and for each mark without a promise."""
    known = [promise for _, promise in promises]
    proved = {proof.promise for proof in proofs if not proof.target}
    for place, promise in enumerate(known):
        if promise in known[:place]:
            yield "%s: %r is there twice: remove one" % (PROMISES, promise)
        elif promise not in proved:
            remedy = "mark one with @pytest.mark.promise, or remove the promise"
            yield "%s: no test of `make test` proves %r: %s" % (PROMISES, promise, remedy)
    for file, line, promise in dict.fromkeys((each.file, each.line, each.promise) for each in proofs):
        if promise not in known:
            nearest = "".join(" write %r, or" % each for each in difflib.get_close_matches(promise, known, 1, 0))
            yield "%s:%d: %s has no promise %r:%s add it there" % (file, line, PROMISES, promise, nearest)


def write_page(promises: list[tuple[str, str]], proofs: list[Proof]) -> str:
    """Return the page: under each heading the promises, each with its files and their tests."""
    lines, above = HEAD.splitlines(), ""
    for heading, promise in promises:
        lines += ["", heading] if heading != above else []
        lines += ["", "**%s**" % promise, ""]
        above, of_promise = heading, [each for each in proofs if each.promise == promise]
        for file, of_file in itertools.groupby(of_promise, key=lambda each: each.file):
            lines += _lines(file, list(of_file))
    return "\n".join(lines) + "\n"


def _lines(file: str, proofs: list[Proof]) -> Iterator[str]:
    """Yield the line of a file, and one for each test that has a mark of its own."""
    # Where targets share the tests of a file, the empty one is the least: `make test` runs some of them.
    of_all = [proof.target for proof in proofs if not proof.sentence]
    yield "- [%s](../../../%s)%s" % (file, file, _target(min(of_all, default="")))
    for proof in proofs:
        if proof.sentence:
            yield "    - %s%s" % (proof.sentence, _target(proof.target))


def _target(name: str) -> str:
    return name and " (`make %s`)" % name


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Write the page, or check it; return 1 if there is an error."""
    promises, proofs = list(read_promises(root)), list(read_proofs(root))
    errors, page, file = list(find_errors(promises, proofs)), write_page(promises, proofs), root / EVIDENCE
    if "--check" not in arguments:
        file.write_text(page, encoding="utf-8")
    elif not file.exists() or file.read_text(encoding="utf-8") != page:
        errors.append("%s: the page is not up to date: run `make format`" % EVIDENCE)
    for error in errors:
        print(error)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
