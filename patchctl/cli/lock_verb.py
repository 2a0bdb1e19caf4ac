"""patchctl lock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import click

from patchctl.cli.app import App, Style, complete_upstream, json_option, source_options
from patchctl.errors import DONE, FINDINGS, SourceUnavailable


@dataclass(frozen=True)
class LockRow:
    """One stack's lock: what differed, the forms that were computed, and where the others were looked for."""

    upstream: str
    stack: str
    file: str
    differences: tuple[str, ...]
    forms: tuple[str, ...]
    unavailable: dict[str, list[tuple[str, str]]]


@click.command("lock")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a lock would differ.")
@click.option("--upstream", metavar="NAME", shell_complete=complete_upstream, help="Only the stacks of this upstream.")
@click.option(
    "--skip-unavailable", is_flag=True, help="With --check: exit 0 although a stack had no form that could be checked."
)
@source_options
@json_option
@click.pass_obj
def command(
    app: App,
    check: bool,
    upstream: str | None,
    skip_unavailable: bool,
    source: str,
    mirrors: tuple[str, ...],
    offline: bool,
    as_json: bool,
) -> int:
    """Write the lock of every stack, or with --check fail when one would differ.

    The lock holds the digest of every patch, the blobs before and after each of them, and the resulting commits and
    trees for each form of the source. A form that cannot be had keeps its record while pin and patches are the same, and
    is "unknown" otherwise. The lists of every pin's files, which `identify` reads, are written with it.
    """
    from patchctl.manifest.lock import lock_file, read_lock, render_lock
    from patchctl.manifest.trees import check_tree_list, update_tree_list
    from patchctl.stack.locking import compute_lock, diff_locks

    dist = app.distribution
    if upstream is not None:
        dist.upstream(upstream)
    options = app.source_options(source, mirrors, offline)
    rows: list[LockRow] = []
    for (name, _), stack in sorted(dist.stacks.items()):
        if upstream not in (None, name):
            continue
        computed = compute_lock(dist, stack, options, app.progress(as_json))
        differences = diff_locks(read_lock(dist.root, stack), computed.lock)
        base = next(iter(computed.bases.values()), None)
        if base is not None:
            listed = (check_tree_list if check else update_tree_list)(dist.root, stack, base)
            differences += [listed] if listed else []
        file = lock_file(dist.root, stack.upstream, stack.name)
        if differences and not check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(render_lock(computed.lock), encoding="utf-8")
        tried: dict[str, list[tuple[str, str]]] = {
            form: [(t.place, t.reason) for t in failure.tried] for form, failure in computed.unavailable.items()
        }
        rows.append(LockRow(name, stack.name, str(file), tuple(differences), tuple(computed.bases), tried))
    app.emit(
        "lock", {"check": check, "stacks": [asdict(r) for r in rows]}, lambda style: _text(rows, check, style), as_json
    )
    if check and any(row.differences for row in rows):
        return FINDINGS
    if check and not skip_unavailable and any(not row.forms for row in rows):
        return SourceUnavailable.code
    return DONE


def _text(rows: list[LockRow], check: bool, style: Style) -> Iterable[str]:
    for row in rows:
        word = style.good("in step") if not row.differences else style.bad("differs") if check else "written"
        yield f"{row.upstream:<12} {row.stack}  {word}  computed in form: {', '.join(row.forms) or 'none'}"
        yield from (f"    {d}" for d in row.differences)
        for form, tried in row.unavailable.items():
            yield f"    {style.note('not checked')}: form {form}"
            yield from (f"        tried {place}: {reason}" for place, reason in tried)
