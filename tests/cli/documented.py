"""The commands that patchctl shows to its users: on every page, in every help text, and in the hints that it prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
from distribution import REPO
from markdown_pages import pages_of, release_of_shell

from patchctl.cli import cli

SCRIPT = re.compile(r"^(?:python3? )?(scripts/[a-z_/]+\.(?:py|sh))\b")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_ENVIRONMENT = re.compile(r"^(?:[A-Z_]+=\S* )+")


class Shown(NamedTuple):
    """A command, what PATCHCTL_RELEASE has where it stands, whether it is shown to be run as it is, and where: a command in a sentence
    or a hint may name a verb alone."""

    command: str
    release: str | None
    whole: bool
    where: str


def pages() -> list[Path]:
    """Every page of the repository."""
    below = (
        p for folder in ("patches", "scripts", "standins", "benchmarks") for p in sorted((REPO / folder).rglob("*.md"))
    )
    return [*pages_of(REPO), REPO / "CONTRIBUTING.md", *below]


def _blocks(text: str) -> tuple[list[str], str]:
    """The code blocks of a page, and the page without the fenced ones."""
    fence = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [*fence.findall(text), *re.findall(r"(?:^ {4}\S.*\n)+", text, re.MULTILINE)], fence.sub("", text)


def in_blocks(page: Path) -> Iterator[tuple[str, str | None]]:
    """The lines of a page's code blocks that run the tool, make or a script, each with the release that PATCHCTL_RELEASE has then,
    for whoever pastes one after the other; a line that ends in a backslash goes on."""
    release: str | None = None
    for block in _blocks(page.read_text(encoding="utf-8"))[0]:
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            # Beside the command stands what it does, behind a # or three blanks.
            one = re.split(r" {3,}(?![ -])", line.strip().removeprefix("$ "))[0]
            release = release_of_shell(one, release)
            for command in _parts(one.partition(" #")[0]):
                yield command, release


def _parts(line: str) -> Iterator[str]:
    """The commands of a line of a shell that are ours."""
    for found in re.split(r"&&|\||\$\(|;", line):
        command = re.sub(r'\)"?$', "", re.split(r" (?:2?>|&$)", found.strip())[0]).strip()
        if re.match(r"patchctl |make ", _ENVIRONMENT.sub("", command)) or SCRIPT.match(command):
            yield command


def in_spans(page: Path) -> Iterator[tuple[str, bool]]:
    """The commands in the inline code of a page; those in the tables of the pages of commands are shown whole."""
    text = re.sub(r"(?:^ {4}\S.*\n)+", "", _blocks(page.read_text(encoding="utf-8"))[1], flags=re.MULTILINE)
    for paragraph in re.split(r"\n(?=\n|\|)", text):
        row = page.name == "commands.md" and paragraph.strip().startswith("|")
        for span in _SPAN.findall(paragraph):
            for command in _parts(" ".join(span.split())):
                yield command, row


def helped(command: click.Command) -> Iterator[str]:
    """The help of a verb and of those below it."""
    yield command.help or ""
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helped(below)


def in_help() -> Iterator[tuple[str, bool]]:
    """The examples of `--help`, which are whole, and the commands that its sentences name."""
    for text in helped(cli):
        for line in text.splitlines():
            for column in re.split(r"(?<=\S) {3,}|: (?=patchctl )", line.partition(" #")[0]):
                if re.match(r'(?:[A-Z_]+=\S+ )*(?:eval "\$\()?patchctl ', column.strip()):
                    yield from ((command, True) for command in _parts(column.strip()))
        for span in _SPAN.findall(text):
            yield from ((command, False) for command in _parts(" ".join(span.split())))


def in_messages() -> Iterator[tuple[str, str]]:
    """The commands in the texts of the tool's code, with their file: what stands in `...`, or begins a hint. The value of an f-string
    is {}."""
    for file in sorted((REPO / "patchctl").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr | ast.keyword)]
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            text = _text(node) if id(node) not in parts else ""
            found = _SPAN.findall(text)
            if isinstance(node, ast.keyword) and node.arg == "hint" and _text(node.value).startswith("patchctl "):
                found = [_text(node.value).partition(", ")[0]]
            for span in found:
                yield from ((command, file.relative_to(REPO).as_posix()) for command in _parts(" ".join(span.split())))


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "".join(_text(part) or "{}" for part in node.values) if isinstance(node, ast.JoinedStr) else ""


def all_shown() -> list[Shown]:
    """Each command once a release, whole where it is so anywhere."""
    found: dict[tuple[str, str | None], Shown] = {}

    def add(command: str, release: str | None, whole: bool, where: str) -> None:
        known = found.get((command, release))
        if known is None or (whole and not known.whole):
            found[command, release] = Shown(command, release, whole, where)

    for page in pages():
        name = page.relative_to(REPO).as_posix()
        for command, release in in_blocks(page):
            add(command, release, True, name)
        for command, whole in in_spans(page):
            add(command, None, whole, name)
    for command, whole in in_help():
        add(command, None, whole, "--help")
    for command, file in in_messages():
        add(command, None, False, file)
    return list(found.values())
