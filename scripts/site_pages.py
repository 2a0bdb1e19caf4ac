"""Hook of mkdocs.yml: build the site from a copy of docs/ that stands on its own.

The pages of the repository's root become pages of the site. What else lies outside docs/ has no address there, so a link to
it becomes its path: no URL of the repository would be right for every clone.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
DOCS = REPO / "docs"
COPY = REPO / "build/site-pages"
ROOT_PAGES = {"README.md": "index.md", "README.zh-CN.md": "zh-CN/index.md", "CONTRIBUTING.md": "contributing.md"}
FENCE = re.compile(r"^\s*(```|~~~)")
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<to>[^)\s]+)\)")
ELSEWHERE = re.compile(r"[a-z]+:")
HEADING = re.compile(r"(?m)^#+ (.+)$")
# The site's own switch between languages does this.
TO_THE_OTHER_LANGUAGE = re.compile(r"(?m)^\[(中文|English)\]\([^)]+\)\n")


def on_config(config: Any) -> Any:
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(DOCS, COPY)
    for page in DOCS.rglob("*.md"):
        _copy(page, page)
    for root, made in ROOT_PAGES.items():
        _copy(REPO / root, DOCS / made)
    for page in (COPY / "zh-CN").rglob("*.md"):
        english = (COPY / page.relative_to(COPY / "zh-CN")).read_text(encoding="utf-8")
        page.write_text(with_anchors_of(english, page.read_text(encoding="utf-8")), encoding="utf-8")
    (COPY / "cli.md").write_text(commands(), encoding="utf-8")
    (COPY / "features").mkdir()
    for path, text in features().items():
        (COPY / path).write_text(text, encoding="utf-8")
    stacks = COPY / "patches/README.md"
    stacks.write_text(
        f"{stacks.read_text(encoding='utf-8')}\nBy feature, with releases as columns: [features](../features/README.md).\n",
        encoding="utf-8",
    )
    config["docs_dir"] = str(COPY)
    return config


def commands() -> str:
    """A page with the help of every verb, as click prints it."""
    sys.path.insert(0, str(REPO))
    import click

    from patchctl.__main__ import compose
    from patchctl.cli import cli

    def help_of(command: click.Command, parent: click.Context | None, name: str) -> Iterator[str]:
        context = click.Context(command, parent, name, terminal_width=100)
        yield f"{'##' if parent else '#'} {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
        if isinstance(command, click.Group):
            for below in command.list_commands(context):
                found = command.get_command(context, below)
                yield from help_of(found, context, below) if found else ()

    compose()
    return "\n".join(help_of(cli, None, "patchctl"))


def features() -> dict[str, str]:
    """One page a feature and their index, by path below docs/."""
    sys.path[:0] = [str(REPO), str(REPO / "scripts")]
    from feature_pages import feature_pages, rules_of_features

    from patchctl.__main__ import compose
    from patchctl.catalog.overview import overview
    from patchctl.manifest.distribution import Distribution

    compose()
    dist = Distribution.load(REPO)
    return feature_pages(dist, overview(dist, None), rules_of_features(dist))


def _copy(source: Path, page: Path) -> None:
    text = TO_THE_OTHER_LANGUAGE.sub("", source.read_text(encoding="utf-8"))
    (COPY / page.relative_to(DOCS)).write_text(rewrite(text, source, page), encoding="utf-8")


def rewrite(text: str, source: Path, page: Path) -> str:
    """What `source` says, with the links that it needs where it stands in place of `page`; fenced code is left alone."""
    lines, fenced = [], False
    for line in text.splitlines():
        fenced ^= bool(FENCE.match(line))
        lines.append(line if fenced else LINK.sub(lambda link: _rewritten(link, source, page), line))
    return "\n".join(lines) + "\n"


def with_anchors_of(english: str, text: str) -> str:
    """A translation with the anchors of the English page before its headings, so that links of pages in English reach them."""
    anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(_prose(english))]
    places = [found.start() for found in HEADING.finditer(_prose(text))]
    if len(anchors) != len(places):
        raise ValueError(f"{len(places)} headings, and {len(anchors)} in English: {anchors[0]}")
    for place, anchor in reversed(list(zip(places, anchors, strict=True))):
        text = f'{text[:place]}<a id="{anchor}"></a>\n\n{text[place:]}'
    return text


def _prose(text: str) -> str:
    """The text with its fenced code blanked; every character keeps its place."""
    return re.sub(r"(?ms)^```.*?^```", lambda code: " " * len(code[0]), text)


def _rewritten(link: re.Match[str], source: Path, page: Path) -> str:
    path, hash_, anchor = link["to"].partition("#")
    if not path or ELSEWHERE.match(path):
        return link[0]
    target = Path(os.path.normpath(source.parent / path))
    name = os.path.relpath(target, REPO)
    if name in ROOT_PAGES:
        target = DOCS / ROOT_PAGES[name]
    elif target.is_dir() or not target.is_relative_to(DOCS):
        return _as_path(link["text"], name)
    return f"{link['image']}[{link['text']}]({os.path.relpath(target, page.parent)}{hash_}{anchor})"


def _as_path(text: str, name: str) -> str:
    return text if name in text.replace("`", "") else f"{text} (`{name}`)"
