"""Every page that is made from the code rather than from patches; a page is written only where a distribution keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from patchctl import extension
from patchctl.catalog.pages import table_row
from patchctl.cli.output_pages import output_pages, with_generated
from patchctl.cli.variables import VARIABLES
from patchctl.exit_codes import EXIT_CODES
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.schema import models
from patchctl.manifest.typeinfo import Shape, doc, expects, fields_of, shape_of
from patchctl.manifest.types import OneOrMore


def generated_pages(dist: Distribution) -> dict[str, str]:
    """Pages and schemas by path below the root: what verbs print with --json, and the tables of reference pages."""
    found = output_pages(dist.root)
    for path, (source, lines) in _PAGES.items():
        if (dist.root / path).is_file():
            found[path] = with_generated(dist.root / path, source, lines())
    for name in (name for other in extension.registered() for name in other.pages):
        found |= extension.load(name)(dist)
    return found


def _exit_codes() -> Iterator[str]:
    yield from ("", "| code | meaning | what to do |", "|---|---|---|")
    yield from (table_row(str(one.code), one.meaning, one.remedy) for one in EXIT_CODES)
    yield from ("", "## By command", "", "| code | command | when |", "|---|---|---|")
    for one in EXIT_CODES:
        for commands, when in one.cases.items():
            names = ", ".join(f"`{name}`" for name in commands.split(", ")) if commands else "any"
            yield table_row(str(one.code), names, when)


def _variables() -> Iterator[str]:
    for group, variables in VARIABLES.items():
        yield from ("", f"## {group}", "", "| variable | what it does | without it |", "|---|---|---|")
        yield from (table_row(f"`{name}`", what, default) for name, (what, default) in variables.items())


def _manifest_keys() -> Iterator[str]:
    for model in models().values():
        place, _, what = (model.__doc__ or "").partition("\n")[0].partition(": ")
        yield from ("", f"## `{place}`", "", f"{what[:1].upper()}{what[1:]}", "")
        yield from ("| key | value | what |", "|---|---|---|", *_keys(model, ""))


def _keys(record: type, above: str) -> Iterator[str]:
    """A row for each key, those of mappings below it: `pin.commit`, `files[].path`, `gains.*.what`."""
    for name, field in fields_of(record).items():
        required = "**required**, " if field.required else ""
        path, inner = f"{above}{name}", field.shape
        yield table_row(f"`{path}`", f"{required}{_value(field.shape)}", doc(field.shape) or "")
        while inner.origin in (list, dict):
            path, inner = f"{path}{'[]' if inner.origin is list else '.*'}", shape_of(inner.args[-1])
        if inner.is_record:
            yield from _keys(inner.base, f"{path}.")


def _value(shape: Shape) -> str:
    if shape.is_record:
        return f"mapping{' or null' if shape.nullable else ''}"
    if shape.origin is list:
        one = _value(shape_of(shape.args[0]))
        return f"list of {one}, or one" if shape.mark(OneOrMore) else f"list of {one}"
    if shape.origin is dict:
        return f"mapping of {_value(shape_of(shape.args[0]))} to {_value(shape_of(shape.args[1]))}"
    if shape.origin is Literal:
        return " or ".join(f"`{one}`" for one in shape.args)
    return expects(shape)


# The lines below the mark of each page, and what they are made from.
_PAGES: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "docs/exit-codes.md": ("patchctl/exit_codes.py", _exit_codes),
    "docs/environment.md": ("patchctl/cli/variables.py", _variables),
    "docs/manifest-keys.md": ("the classes that manifests are read into", _manifest_keys),
}
