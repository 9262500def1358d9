"""The code blocks of a Markdown page, in order: what is fenced, and what comments of the page add to it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# A block of any other language is an error: what cannot be run or parsed is `text`.
RUN = ("sql", "bash", "console", "python", "java")
PARSED = ("yaml", "json", "toml", "ini")
LANGUAGES = (*RUN, *PARSED, "text")

_FENCE = re.compile(r"^(?P<indent> *)(?P<mark>`{3,}|~{3,})(?P<info>[^`]*)$")
_SETUP = re.compile(r"^ *<!-- setup: (?P<language>\w+)$")
_DIRECTIVE = re.compile(r"^ *<!-- (?P<name>until|background): (?P<condition>.+) -->$")
_CLOCK = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)? UTC"
    r"|(?<!\w)(?:\d[\d.]*|…)(?: (?:ms|s|min|h|d|seconds?|minutes?|hours?|days?)\b(?: \d+)?)+"
)
_TITLE = re.compile(r'title="([^"]+)"')
_INCLUSION = re.compile(r'^ *--8<-- "([^"]+)"$')  # of the extension pymdownx.snippets


class BlockError(Exception):
    """A block is not as it has to be; the message starts with its page and line."""


@dataclass
class Block:
    """A block of code.

    `title` names the file that the block is. `expected` is the `text` block that follows it, with nothing but empty
    lines between: its output. `condition` ends the block (`until`), or says when it is ready (`background`).
    """

    page: str
    line: int  # of the first line of the text, from 1
    language: str
    text: str
    title: str = ""
    hidden: bool = False
    condition: str = ""
    background: bool = False
    expected: "Block | None" = field(default=None, repr=False)

    @property
    def place(self) -> str:
        """Page and line, as editors open them."""
        return f"{self.page}:{self.line}"


def read_blocks(path: Path, root: Path) -> list[Block]:
    """Return the blocks of a page that are run, parsed or saved. Raise BlockError for a block of no known language."""
    blocks: list[Block] = []
    page = str(path.relative_to(root))
    previous: Block | None = None  # the last block, if only empty lines follow it
    for item in _items(page, path.read_text(encoding="utf-8").splitlines()):
        if isinstance(item, str):
            previous = None
        elif item.language != "text":
            item.text = "".join(_include(item, line, root) for line in item.text.splitlines(keepends=True))
            blocks.append(item)
            previous = item
        elif previous and not previous.expected and previous.language in ("sql", "bash", "python", "java"):
            previous.expected = item
    return blocks


def _items(page: str, lines: list[str]) -> Iterator[Block | str]:
    """Yield the blocks, and each line outside of blocks that is not empty."""
    number, condition, background = 0, "", False
    while number < len(lines):
        line = lines[number]
        number += 1
        if found := _DIRECTIVE.match(line):
            condition, background = found["condition"], found["name"] == "background"
            yield line
            continue
        fence, setup = _FENCE.match(line), _SETUP.match(line)
        if not fence and not setup:
            if line.strip():
                yield line
            continue
        closing = re.compile(rf"^ *{fence['mark']}`*~*$" if fence else r"^ *-->$")
        end = next((place for place in range(number, len(lines)) if closing.match(lines[place])), None)
        if end is None:
            raise BlockError(f"{page}:{number}: the block is not closed")
        indent = len(fence["indent"]) if fence else 0
        language = _language(fence["info"]) if fence else str(setup and setup["language"])
        if language not in LANGUAGES:
            raise BlockError(f"{page}:{number}: {language!r} is no language of a block: {', '.join(LANGUAGES)}")
        title = _TITLE.search(fence["info"]) if fence else None
        yield Block(
            page,
            number + 1,
            language,
            "\n".join(text[indent:] for text in lines[number:end]) + "\n",
            title=title[1] if title else "",
            hidden=fence is None,
            condition=condition,
            background=background,
        )
        number, condition, background = end + 1, "", False


def _include(block: Block, line: str, root: Path) -> str:
    """A line of a block, or the file of the repository that it includes."""
    found = _INCLUSION.match(line.rstrip("\n"))
    if not found:
        return line
    file = root / found[1]
    if not file.is_file():
        raise BlockError(f"{block.place}: {found[1]} is not in the repository")
    return file.read_text(encoding="utf-8")


def _language(info: str) -> str:
    """Return the language of the line that opens a block: `python title="a.py"` or `{ .python title="a.py" }`."""
    found = re.match(r"\s*(?:\{\s*\.)?([\w-]*)", info)
    return found[1] if found else ""


@dataclass(frozen=True)
class Command:
    """A command of a `console` block, and the output that follows it."""

    text: str
    expected: str


def read_commands(block: Block) -> list[Command]:
    """Return the commands of a `console` block, each with its output. They follow `$ `, and continue after `> `."""
    commands: list[list[list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append([[line[2:]], []])
        elif not commands:
            raise BlockError(f"{block.place}: a console block starts with a command, after `$ `")
        elif line.startswith("> ") and not commands[-1][1]:
            commands[-1][0].append(line[2:])
        else:
            commands[-1][1].append(line)
    return [Command("\n".join(command), "\n".join(output).strip("\n")) for command, output in commands]


def split_statements(script: str) -> list[str]:
    """Return the statements of an SQL script. Quotes, dollar quotes and comments may contain semicolons."""
    statements, begin = [], 0
    token = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|(\$\w*\$).*?\1|;", re.DOTALL)
    for found in token.finditer(script):
        if found[0] == ";":
            statements.append(script[begin : found.start()])
            begin = found.end()
    statements.append(script[begin:])
    return [each.strip() for each in statements if re.sub(r"--[^\n]*|/\*.*?\*/", "", each, flags=re.DOTALL).strip()]


def check_output(expected: str, actual: str) -> str | None:
    """Return None if an output is the expected one, otherwise both outputs for a message.

    `…` stands for any text within a line; a line with nothing else for any lines. Empty lines, the number of blanks,
    the frames of tables, and what a clock says (`2 minutes`, `66 s`, `2026-11-21 10:53:24 UTC`) do not count.
    """
    wanted, found = _lines(expected), _lines(actual)
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n" for line in wanted
    )
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in found)):
        return None
    return "expected\n" + "\n".join(wanted) + "\n\nbut it was\n" + "\n".join(found)


def _lines(text: str) -> list[str]:
    lines = (re.sub(r"\s*\|\s*", "|", " ".join(_CLOCK.sub("<time>", line).split())) for line in text.splitlines())
    return [line for line in lines if line and not re.fullmatch(r"[-+─━]+", line)]
