"""patchctl export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, complete_upstream, find_stack, json_option, note, release_option
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, WrongUse
from patchctl.terminal.style import Style
from patchctl.terminal.text import patch_count

if TYPE_CHECKING:
    from patchctl.git.catfile import ObjectReader
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Stack
    from patchctl.source.types import Base, SourceOptions
    from patchctl.stack.export import Exported
    from patchctl.stack.patches import StackPatch
    from patchctl.stack.result_cache import StackResult


@click.command("export")
@click.argument("name", metavar="UPSTREAM[/STACK]", shell_complete=complete_upstream)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The work tree of `edit` [default: edit/UPSTREAM-STACK].",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a file would differ. Needs no work tree.")
@click.option(
    "--mbox",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write plain patches for `git am` into DIR, carried files inside, instead.",
)
@click.option(
    "--for-upstream",
    metavar="FEATURE",
    help="With --mbox: this feature alone, as upstream could take it, after what it requires.",
)
@release_option
@source_options
@json_option("patchctl.report.stacks:ExportOutput")
@click.pass_obj
def command(
    app: App,
    name: str,
    folder: Path | None,
    check: bool,
    mbox: Path | None,
    for_upstream: str | None,
    sources: Sources,
    as_json: bool,
) -> int:
    """Write the commits of a work tree back to patch files.

    What nobody changed stays as it is, byte for byte, on every machine. --check without a work tree builds the stack,
    turns its commits back into files, and compares. --mbox gives the way out for those without patchctl: `git am
    --committer-date-is-author-date` with the committer patchctl <patchctl@localhost> makes the same commit ids of them.
    --for-upstream FEATURE writes that feature alone, with a mail for each that it requires before it, carried files at their places and
    our trailers left out; LEFT-OUT.txt says what upstream will ask for beside that.
    """
    options = sources.options()
    if for_upstream is not None:
        if mbox is None:
            raise WrongUse("--for-upstream FEATURE writes mails", hint="name their folder with --mbox DIR")
        return _for_upstream(app, find_stack(app.distribution, name), for_upstream, mbox, options, as_json)
    if mbox is not None:
        return _mbox(app, find_stack(app.distribution, name), mbox, options, as_json)
    with nullcontext(app.distribution) if check else app.writing() as dist:
        stack = _opened(dist, name, folder) or find_stack(dist, name)
        exported, changes = _export(app, dist, stack, folder, options, check=check)

    def text(style: Style) -> Iterable[str]:
        yield from changes
        if not changes:
            yield f"{stack.upstream}/{stack.name}: {patch_count(len(exported))}, nothing differs"
        elif not check:
            yield "next: patchctl lock"

    from patchctl.report.stacks import ExportOutput

    data = ExportOutput(stack.upstream, stack.name, check, changes)
    app.emit("export", data, text, as_json)
    return FINDINGS if check and changes else DONE


def _opened(dist: Distribution, name: str, folder: Path | None) -> Stack | None:
    """The stack of the work tree, where UPSTREAM and no release is named: of --dir, else of the only one that `edit` made of it. What was
    opened stays meant when the default release is another one since: an export can leave a feature of the newest release unproven."""
    from patchctl.workspace.edit import default_folder, stack_of

    own = [s for (upstream, _), s in dist.stacks.items() if upstream == name]
    if len(own) < 2 or dist.named_release is not None:
        return None
    noted = {stack_of(folder.absolute())} if folder else {stack_of(default_folder(s).absolute()) for s in own}
    opened = [s for s in own if f"{s.upstream}/{s.name}" in noted]
    if len(opened) != 1:
        return None
    note(f"{name} means {name}/{opened[0].name}, which has a work tree")
    return opened[0]


def _export(
    app: App, dist: Distribution, stack: Stack, folder: Path | None, options: SourceOptions, *, check: bool
) -> tuple[list[Exported], list[str]]:
    """The stack's patches as they are in the work tree, and what differs; written unless `check` says no."""
    from patchctl.stack.export import compare_stack
    from patchctl.stack.plan import load_patches
    from patchctl.workspace.edit import default_folder

    patches = load_patches(dist, stack)
    tree = (folder or default_folder(stack)).absolute()
    if not tree.exists() and not check:
        hint = f"`patchctl edit {stack.upstream}/{stack.name}` makes one, or name it with --dir"
        raise WrongUse(f"there is no work tree at {tree}", hint=hint)
    exported = _from_tree(tree, stack, patches) if tree.exists() else _from_memory(app, stack, patches, options)
    target = dist.root / "patches" / stack.upstream / stack.name
    own = [p for p in patches if p.file.parent.parent == target]
    ours = _without_inherited(stack, exported, [p for p in patches if p.file.parent.parent != target])
    changes = compare_stack(target, ours, own)
    if not check:
        changes += _write(dist, stack, tree, patches, exported, ours)
    return exported, changes


def _without_inherited(stack: Stack, exported: list[Exported], inherited: list[StackPatch]) -> list[Exported]:
    """The patches that are this stack's own. Raises WrongUse when one of the stack that it extends was changed."""
    given = {e.name: (e.data, e.carried) for e in exported}
    if any(given.get(p.file.name) != (p.data, p.carried) for p in inherited):
        what = f"a patch of the stack that {stack.name} extends was changed"
        raise WrongUse(what, hint=f"edit {stack.upstream}/{stack.extends}")
    names = {p.file.name for p in inherited}
    return [e for e in exported if e.name not in names]


def _write(
    dist: Distribution,
    stack: Stack,
    tree: Path,
    patches: list[StackPatch],
    exported: list[Exported],
    ours: list[Exported],
) -> list[str]:
    """Write files, then the manifest's list, then remove what is gone, so that a kill leaves nothing listed and missing."""
    from patchctl.stack.export import remove_gone, write_stack
    from patchctl.workspace.edit import (
        check_patch_files,
        end_export,
        is_half_exported,
        mark_exported,
        note_export,
        series_digest,
    )

    before = [(p.file.name, p.data, p.carried) for p in patches]
    after = [(e.name, e.data, e.carried) for e in exported]
    if not is_half_exported(tree, before):
        check_patch_files(tree, series_digest(before))
    target = dist.root / "patches" / stack.upstream / stack.name
    note_export(tree, before, after)
    write_stack(target, ours)
    changes = _write_list(dist.stack_file(stack), stack, [e.name for e in ours])
    remove_gone(target, ours, [p for p in patches if p.file.parent.parent == target])
    mark_exported(tree, series_digest(after))
    end_export(tree)
    return changes


def _from_tree(tree: Path, stack: Stack, patches: list[StackPatch]) -> list[Exported]:
    from patchctl.git.catfile import ObjectReader
    from patchctl.stack.export import export_commits
    from patchctl.workspace.edit import read_edit_tree
    from patchctl.workspace.trees import commit_tree

    base, commits = read_edit_tree(tree, stack)
    with ObjectReader(tree / ".git") as reader:
        return export_commits(reader, commit_tree(reader, base), commits, patches)


def _from_memory(app: App, stack: Stack, patches: list[StackPatch], options: SourceOptions) -> list[Exported]:
    """The stack built and turned back into files, in a repository that is thrown away."""
    import tempfile

    from patchctl.workspace.edit import make_edit_tree

    base, result = _build(app, stack, patches, options)
    with tempfile.TemporaryDirectory(prefix="patchctl-export-") as scratch:
        folder = Path(scratch) / "tree"
        make_edit_tree(folder, stack, base, result)
        return _from_tree(folder, stack, patches)


def _for_upstream(app: App, stack: Stack, feature: str, target: Path, options: SourceOptions, as_json: bool) -> int:
    from patchctl.catalog.evidence import tests_of
    from patchctl.report.stacks import ExportOutput
    from patchctl.stack.export import for_upstream
    from patchctl.stack.plan import load_patches
    from patchctl.stack.select import named_patches, with_requirements

    _check_empty(target)
    patches = load_patches(app.distribution, stack)
    ((_, wanted), *_) = named_patches({stack.upstream: patches}, feature)
    kept = {id(p) for p in with_requirements(patches, wanted, stack.upstream)}
    base, result = _build(app, stack, patches, options, [p for p in patches if id(p) not in kept])
    tests = tests_of(app.distribution, stack, wanted.feature)
    with _objects(base, result) as reader:
        made = for_upstream(reader, result, stack.upstream, tests)
    said = f"{wanted.feature} on {stack.upstream} {result.base_commit}, as `git am` takes it. Left out:\n"
    text = said + "".join(f"- {one}\n" for one in made.left_out)
    _write_mails(target, {**made.files, "LEFT-OUT.txt": text.encode()})
    base_commit, files = result.base_commit, list(made.files)
    data = ExportOutput(stack.upstream, stack.name, base=base_commit, files=files, left_out=made.left_out)
    lines = [f"{len(made.files)} patches in {target}, on {result.base_commit}; left out:", *made.left_out]
    app.emit("export", data, lambda style: lines, as_json)
    return DONE


def _check_empty(target: Path) -> None:
    if target.exists() and any(target.iterdir()):
        raise WrongUse(f"{target} is not empty", hint="patches of an earlier export would be mixed with these")


@contextmanager
def _objects(base: Base, result: StackResult) -> Iterator[ObjectReader]:
    """Every object of a base and of a stack on it, in a repository that is thrown away."""
    import tempfile

    from patchctl.git.catfile import ObjectReader
    from patchctl.workspace.edit import make_object_store

    with tempfile.TemporaryDirectory(prefix="patchctl-export-") as scratch:
        store = make_object_store(Path(scratch) / "objects.git", base, result)
        with ObjectReader(store) as reader:
            yield reader


def _write_mails(target: Path, files: Mapping[str, bytes]) -> None:
    from patchctl.atomic import filling, replace_file

    with filling(target) as staged:
        for file, content in files.items():
            replace_file(staged / file, content)


def _mbox(app: App, stack: Stack, target: Path, options: SourceOptions, as_json: bool) -> int:
    from patchctl.report.stacks import ExportOutput
    from patchctl.stack.export import mbox_patches
    from patchctl.stack.plan import load_patches

    _check_empty(target)
    base, result = _build(app, stack, load_patches(app.distribution, stack), options)
    with _objects(base, result) as reader:
        files = mbox_patches(reader, result)
    _write_mails(target, files)
    data = ExportOutput(stack.upstream, stack.name, base=result.base_commit, tip=result.tip_commit, files=list(files))
    lines = [
        f"{len(files)} patches in {target}, on {result.base_commit}",
        f"`git am` makes {result.tip_commit} of them",
    ]
    app.emit("export", data, lambda style: lines, as_json)
    return DONE


def _build(
    app: App, stack: Stack, patches: list[StackPatch], options: SourceOptions, left_out: Sequence[StackPatch] = ()
) -> tuple[Base, StackResult]:
    from patchctl.source.obtain import obtain
    from patchctl.stack.plan import build_stack

    base = obtain(stack.upstream, app.distribution.upstream(stack.upstream), stack, options, app.progress(True))
    return base, build_stack(base, patches, left_out, options.cache)


def _write_list(manifest: Path, stack: Stack, names: list[str]) -> list[str]:
    """Put the patches' names into the stack's manifest, touching no other line of it."""
    from patchctl.atomic import replace_file
    from patchctl.manifest.rewrite import rewrite_list

    own = [n for n in names if n not in stack.replace.values()]
    if own == stack.patches:
        return []
    text = manifest.read_text(encoding="utf-8")
    replace_file(manifest, rewrite_list(text, "patches", own).encode())
    return [f"{manifest.name} lists {len(own)} patches"]
