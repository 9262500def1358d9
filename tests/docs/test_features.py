"""The names that the tables of features and of the source systems give for TaskQ exist."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.promise("A program in any language calls the same functions")

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_provider_taskq"
MODULES = ("queue", "queue.recurring", "worker", "worker.composite", "consumer")  # and not those that import Airflow
SPAN = re.compile(r"`([^`]+)`")
FREE = {  # values and variables
    *("function", "moment", "psql", "spark", "task", "taskq", "taskq_worker", "composite"),
    *("all", "fail_first", "exhausted", "ignore"),
}


def spans(page: str) -> list[str]:
    """The code spans of the table rows of a page, but not those of the first cell, which has the source's names."""
    rows = [row for row in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    return sorted({span for row in rows for span in SPAN.findall(row.split(" | ", 1)[1])})


@cache
def exported() -> dict[str, Any]:
    """The public names of the package."""
    found: dict[str, Any] = {}
    for name in MODULES:
        module = importlib.import_module(f"{PACKAGE.name}.{name}")
        names = getattr(module, "__all__", [each for each in vars(module) if not each.startswith("_")])
        found |= {each: getattr(module, each) for each in names}
    return found


def parameters(thing: object) -> set[str]:
    """The names of the parameters of a class, function or method."""
    with suppress(TypeError, ValueError):
        return set(inspect.signature(thing).parameters) if callable(thing) else set()
    return set()


def members(thing: object) -> set[str]:
    """The names of the attributes and fields of a class."""
    own = {each.name for each in fields(thing)} if is_dataclass(thing) else set()
    return own | set(dir(thing)) | set(getattr(thing, "__annotations__", {}))


@cache
def known() -> set[str]:
    """All exported names, and those of their members and parameters."""
    found = {*exported(), *FREE}
    for thing in exported().values():
        methods = [getattr(thing, each, None) for each in members(thing) if not each.startswith("_")]
        found |= members(thing) | parameters(thing) | {name for each in methods for name in parameters(each)}
    return found


def owners(function: str) -> list[object]:
    """What has this name: an exported name, or methods."""
    if function in exported():
        return [exported()[function]]
    return [method for thing in exported().values() if (method := getattr(thing, function, None)) is not None]


def missing(span: str) -> Iterator[str]:
    """The names of an expression that do not exist."""
    for node in ast.walk(ast.parse(span, mode="eval")):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != "f":
            given = {name for each in owners(node.func.id) for name in parameters(each)}
            yield from (str(each.arg) for each in node.keywords if each.arg not in given)
        if isinstance(node, ast.keyword) and node.arg not in known():
            yield str(node.arg)
        if isinstance(node, ast.Attribute):
            of = exported().get(node.value.id) if isinstance(node.value, ast.Name) else None
            if node.attr not in (members(of) if of is not None else known()):
                yield node.attr
        if isinstance(node, ast.Name) and node.id not in known() and node.id not in ("f", "c", "group", "gate"):
            yield node.id


@cache
def sources(*packages: str) -> str:
    """The sources of packages, as one text."""
    return "\n".join(file.read_text(encoding="utf-8") for each in packages for file in (PACKAGE / each).glob("*.py"))


def is_named_elsewhere(span: str) -> bool:
    """Whether a span is a file, a command, a relation of SQL, or a name of a module."""
    if "/" in span:
        return any((folder / span).exists() for folder in (PACKAGE, PACKAGE / "queue" / "sql"))
    if span.startswith("taskq "):
        return all(f'"{word}' in sources("cli") or f"def {word}" in sources("cli") for word in span.split()[1:])
    if span.isidentifier() and span not in exported():
        return re.search(rf"^(class|def) {span}\b", sources("operators", "spark"), re.MULTILINE) is not None
    module, _, name = span.rpartition(".")
    if module == "taskq":
        return any(span in file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.sql"))
    for package in ("", f"{PACKAGE.name}."):
        with suppress(ImportError, ValueError):
            return hasattr(importlib.import_module(package + module), name)
    return False


@pytest.mark.parametrize("page", ["why/evidence/features.md", "reference/names.md"])
def test_every_name_of_a_table_of_features_exists(page: str) -> None:
    found = spans(page)
    assert len(found) > 60
    wrong = {}
    for span in found:
        if not is_named_elsewhere(span):
            call = f"f({span})" if re.match(r"\w+=", span) else span
            wrong[span] = list(missing(re.sub(r"=(?=[,)])", "=...", call.removeprefix("@"))))
    assert {span: names for span, names in wrong.items() if names} == {}
