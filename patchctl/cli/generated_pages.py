"""Every page that is made from the code rather than from patches; a page is written only where a distribution keeps it.

JSON Schemas of what verbs print with `--json` and docs/json.md come from the classes that are printed, docs/environment.md from `VARIABLES`:
a test compares it with what the code and the tests name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import click

from patchctl import extension
from patchctl.catalog.pages import table_row
from patchctl.cli.app import JsonOption
from patchctl.doc import Doc, Spread
from patchctl.errors import EXIT_CODES, Tried
from patchctl.manifest.diagnostics import Problem
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.schema import models
from patchctl.manifest.typeinfo import Key, Shape, doc, expects, fields_of, keys_of, laid_out, shape_of
from patchctl.manifest.types import OneOrMore

# By group and name: what it is for, and what holds where it is not set. Markdown of a page in docs/.
VARIABLES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Of every command": {
        "PATCHCTL_ROOT": (
            "the distribution, a folder or a bundle; `--root` wins",
            "the nearest folder upward with `manifests/`, else what `patchctl use` chose, else the installed one"
            " ([which](install.md#which-distribution-a-run-takes))",
        ),
        "PATCHCTL_RELEASE": (
            "the release of profiles, recipes and upstreams; `--release` wins",
            "the newest release on which the profile is proven",
        ),
        "PATCHCTL_WORKSPACE": (
            "the workspace, for commands and scripts; `--workspace` wins, for scripts also `WORKSPACE`, which images set."
            " On a node of a cluster: at `ray start`",
            "`workspace`",
        ),
        "PATCHCTL_CACHE": (
            "the folder of sources and computed stacks, an absolute path; `--cache` wins",
            "`cache` of the user configuration, else `$XDG_CACHE_HOME/patchctl`, else `~/.cache/patchctl`",
        ),
        "PATCHCTL_CONFIG": (
            "the user configuration ([sources](sources.md))",
            "`$XDG_CONFIG_HOME/patchctl/config.yaml`, else `~/.config/patchctl/config.yaml`",
        ),
        "PATCHCTL_TORCH_PYTHON": (
            "the Python of training, with torch, for `preflight`, `doctor`, `prove`, `rebase`, `script` and tests; `--python` wins",
            "patchctl's own interpreter",
        ),
        "PATCHCTL_LANG": (
            "`en` or `zh-CN`, for what `apply`, `doctor`, `preflight`, `revert`, `status` and `train.sh` print; `--lang` wins",
            "`LC_ALL`, else `LC_MESSAGES`, else `LANG`",
        ),
        "PATCHCTL_NO_PROGRESS": ("silences progress on standard error", "shown after two seconds"),
        "_PATCHCTL_COMPLETE": ("`bash_source`, `zsh_source` or `fish_source`: prints the shell's completion", ""),
        "PATCHCTL_SET": ("refused: the former name of `PATCHCTL_RELEASE`", ""),
    },
    "Of scripts": {
        "PATCHCTL_RAY_STATE_DIR": (
            "where `ray_cluster.sh` and `train.sh` remember the cluster; `--state` wins",
            "`$TMPDIR/patchctl-ray-$UID`",
        ),
        "PATCHCTL_RAY_STATE": ("set by `ray_cluster.sh` in what it starts, so that `stop` ends nothing else", ""),
        "PATCHCTL_HOST_ROOT": ("another root in which scripts look for NPUs and drivers, for tests", "`/`"),
    },
    "Of simulated NPUs": {
        "PATCHCTL_NPUS": ("number of NPUs that Ray sees", "1"),
        "PATCHCTL_NPU": ("kind of NPU that vllm-ascend sees, `A2` or `A3`", "`A3`"),
        "PATCHCTL_STANDINS": ("0 turns the stand-ins off ([demo](demo.md))", "on"),
        "PATCHCTL_STANDINS_WATCH": (
            "functions that a test has called after an import, as `MODULE=PLACE:FUNCTION,...`",
            "",
        ),
    },
    "Of tests and make": {
        "PATCHCTL_MIRRORS": (
            "folder of local git repositories, one an upstream; `make` sets it from `MIRRORS=DIR`",
            "tests that need them are skipped",
        ),
        "PATCHCTL_MBRIDGE": (
            "mbridge's git repository; `make` sets it from `MBRIDGE=DIR`",
            "tests that need it are skipped",
        ),
        "PATCHCTL_TREES": ("workspace with the patched trees, as `--trees`", "patchctl builds it"),
        "PATCHCTL_TEST_TREES": ("folder of the lists of files that sources are compared with", "`manifests/trees`"),
        "PATCHCTL_TEST_FORKS": ("0 starts every process of a test anew", "they are forked"),
        "PATCHCTL_PROOF_CACHE": ("where `prove` has its tests keep what several of them need; `prove` sets it", ""),
        "PATCHCTL_RAY_PYTHON": (
            "a Python that has Ray",
            "`PATCHCTL_TORCH_PYTHON`, else tests that need it are skipped",
        ),
        "PATCHCTL_TEST_RAYLET": ("set in every raylet that a test starts, to find it again", ""),
        "PATCHCTL_AISBENCH": ("the program `ais_bench`", "tests that need it are skipped"),
        "PATCHCTL_HISTORY": ("git repositories whose commits the engine replays", "those tests are skipped"),
        "PATCHCTL_HISTORY_COUNT": ("number of commits of each", "200"),
        "PATCHCTL_FUZZ_VERBS": ("number of damaged workspaces", "12"),
        "PATCHCTL_FUZZ_FIRST": ("number of the first", "0"),
        "PATCHCTL_TORTURE": ("number of system calls at which each scenario is stopped", "8"),
    },
}


PAGE = "docs/json.md"
FOLDER = "docs/schema"
_MARK = "<!-- generated by `patchctl "
_NAMES = {str: "string", Path: "string", bool: "boolean", int: "integer", float: "number"}
_PAIR = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}
_Definitions = dict[type, dict[str, Any]]


def output_pages(root: Path) -> dict[str, str]:
    """The schemas by path, where docs/schema/ is kept, and docs/json.md, where it is: what stands above the mark there stays."""
    page, pages = root / PAGE, {}
    if page.is_file() or (root / FOLDER).is_dir():
        cli = click.get_current_context().find_root().command
        printed = {"error": "patchctl.cli.generated_pages:ErrorOutput", **dict(outputs(cli))}
        schemas = {name: schema(name, extension.load(output)) for name, output in printed.items()}
        if (root / FOLDER).is_dir():
            pages = {
                f"{FOLDER}/{name}.json": f"{laid_out(one, ascii_only=False, sort=False)}\n"
                for name, one in schemas.items()
            }
        if page.is_file():
            pages[PAGE] = with_generated(page, "the classes that verbs print", _tables(schemas))
    return pages


def with_generated(page: Path, source: str, lines: Iterable[str]) -> str:
    """The page as it is above the mark, and below it the lines, which are made from `source`."""
    above = page.read_text(encoding="utf-8", errors="replace").partition(_MARK)[0]
    return f"{above}{_MARK}lock` from here on, from {source} -->\n" + "".join(f"{line}\n" for line in lines)


def outputs(command: click.Command, verb: str = "") -> Iterator[tuple[str, str]]:
    """What a command and those below it print, as MODULE:NAME, with the name of its schema."""
    yield from ((verb, option.output) for option in command.params if isinstance(option, JsonOption))
    if isinstance(command, click.Group):
        context = click.Context(command)
        below = ((name, command.get_command(context, name)) for name in command.list_commands(context))
        yield from (found for name, one in below if one for found in outputs(one, f"{verb}.{name}".lstrip(".")))


def schema(name: str, record: type) -> dict[str, Any]:
    """The JSON Schema of what is printed as patchctl.NAME/1. Keys may come, so that others are allowed."""
    title, definitions = f"patchctl.{name}/1", _Definitions()
    body = _record(record, definitions)
    named = {one.__name__: definition for one, definition in definitions.items()}
    if len(named) < len(definitions):
        raise TypeError(f"two classes of {title} have one name: {[one.__name__ for one in definitions]}")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, "type": "object"}
    properties = {"schema": {"const": title}, **body["properties"]}
    return {**head, "properties": properties, "required": ["schema", *body["required"]], "$defs": named}


def _record(record: type, definitions: _Definitions) -> dict[str, Any]:
    keys = keys_of(record)
    properties = {key.name: {"description": key.doc.text, **_key(key, definitions)} for key in keys}
    return {"type": "object", "properties": properties, "required": [k.name for k in keys if not k.doc.optional]}


def _key(key: Key, definitions: _Definitions) -> dict[str, Any]:
    shape = replace(key.shape, nullable=False) if key.doc.optional else key.shape
    return _schema(shape, key.doc.pairs, definitions)


def _schema(shape: Shape, pairs: bool, definitions: _Definitions) -> dict[str, Any]:
    bare = _bare(shape, pairs, definitions)
    if not shape.nullable:
        return bare
    return {**bare, "type": [bare["type"], "null"]} if "type" in bare else {"anyOf": [bare, {"type": "null"}]}


def _bare(shape: Shape, pairs: bool, definitions: _Definitions) -> dict[str, Any]:
    if shape.is_record and not pairs:
        if shape.base not in definitions:
            definitions[shape.base] = {}  # its place, before those of the records in it
            definitions[shape.base] |= _record(shape.base, definitions)
        return {"$ref": f"#/$defs/{shape.base.__name__}"}
    if shape.is_record or (shape.origin is tuple and ... not in shape.args):
        return _PAIR
    if shape.origin is Literal:
        return {"enum": list(get_args(shape.base))}
    if shape.base in _NAMES:
        return {"type": _NAMES[shape.base]}
    is_map = issubclass(shape.origin, Mapping)
    item = _schema(shape_of(shape.args[is_map]), pairs, definitions)
    return {"type": "object", "additionalProperties": item} if is_map else {"type": "array", "items": item}


def _tables(schemas: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    shown: dict[str, Any] = {}
    for one in schemas.values():
        yield from _table(f"## `{one['title']}`", one)
        for name, definition in one["$defs"].items():
            if shown.get(name) != definition:
                shown[name] = definition
                yield from _table(f"### {name}", definition)


def _table(title: str, record: dict[str, Any]) -> Iterator[str]:
    yield from ("", title, "", "| key | type | what |", "|---|---|---|")
    for name, one in record["properties"].items():
        if "description" in one:
            optional = "" if name in record["required"] else "*optional*, "
            yield f"| {name} | {_word(one)} | {optional}{one['description']} |"


def _word(one: dict[str, Any]) -> str:
    if "$ref" in one:
        return str(one["$ref"]).rpartition("/")[2]
    if "anyOf" in one:
        return f"{_word(one['anyOf'][0])} or null"
    if isinstance(one.get("type"), list):
        return f"{_word({**one, 'type': one['type'][0]})} or null"
    if one.get("type") == "array":
        return "pair" if "minItems" in one else f"list of {_word(one['items'])}"
    if one.get("type") == "object":
        return f"map of {_word(one['additionalProperties'])}"
    return "string" if "enum" in one else "number" if one["type"] == "integer" else str(one["type"])


@dataclass(frozen=True)
class TriedFor:
    """A source that was tried."""

    upstream: Annotated[str | None, Doc("upstream name, if `apply` lacks several", optional=True)]
    tried: Annotated[Tried, Spread()]


@dataclass(frozen=True)
class Error:
    """The error that ended the run."""

    kind: Annotated[
        str,
        Doc(
            "`usage`, `manifest`, `patch`, `source-unavailable`, `source-mismatch`, `not-trusted`, `does-not-apply`,"
            " `local-edits`, `busy`, `broken-repository`, `machine`, `git-killed`, `git-refused` or `internal`"
        ),
    ]
    exit_code: Annotated[int, Doc("exit code of the process")]
    what: Annotated[str, Doc("error message")]
    file: Annotated[str | None, Doc("file in which the error occurred")]
    line: Annotated[int | None, Doc("line number in the file, from 1")]
    hint: Annotated[str | None, Doc("suggested action")]
    tried: Annotated[
        list[TriedFor] | None,
        Doc("`source-unavailable`: sources tried, with the reason for each failure", optional=True),
    ] = None
    files: Annotated[list[str] | None, Doc("`local-edits`: files that block the operation", optional=True)] = None
    problems: Annotated[
        list[Problem] | None,
        Doc("`manifest`: the first 50 problems; for `import`, the first 200 problems of all mails", optional=True),
    ] = None


@dataclass(frozen=True)
class ErrorOutput:
    """The printed object."""

    error: Annotated[Error, Doc("details of the error")]


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
    "docs/exit-codes.md": ("patchctl/errors.py", _exit_codes),
    "docs/environment.md": ("patchctl/cli/generated_pages.py", _variables),
    "docs/manifest-keys.md": ("the classes that manifests are read into", _manifest_keys),
}
