"""Starts a patch: a work tree with a commit that holds the header, and a test, a probe and a mutation from templates/*.in.

Existing files are kept. The commit comes last, and a run that fails before it removes the files that it wrote; after a
kill, run it again.

Parts to fill in are marked with `TO_FILL_IN`, which the lint rule `filled-in` reports. Until then the test fails, the probe
raises, and the mutation names a file that does not exist.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated

from patchctl.atomic import replace_file
from patchctl.catalog.evidence import keeps_tests
from patchctl.doc import Doc
from patchctl.errors import LocalEdits, WrongUse
from patchctl.git.objects import COMMITTER
from patchctl.git.worktree import WorkTree
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import MUTANTS, TESTS
from patchctl.manifest.types import Stack
from patchctl.source.types import SourceOptions
from patchctl.stack.plan import load_patches
from patchctl.terminal.progress import Progress
from patchctl.workspace.edit import open_stack

_FOLDER = Path(__file__).with_name("templates")
# Matches the lint rule feature-form, and is short enough for file names.
_FEATURE = re.compile(r"[a-z0-9][a-z0-9_]{0,99}")


@dataclass(frozen=True)
class NewPatch:
    """What `new` created and prints. Files are relative to the root."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    feature: Annotated[str, Doc("feature name")]
    folder: Annotated[Path, Doc("work tree, as for `edit`")]
    base: Annotated[str, Doc("unpatched base commit")]
    tip: Annotated[str, Doc("commit that holds the header; it changes no files yet")]
    written: Annotated[
        tuple[str, ...],
        Doc("test, probe and mutation files written, relative to the root; empty if the distribution has no tests"),
    ]
    kept: Annotated[tuple[str, ...], Doc("of these files, those that already existed")]


def new_patch(
    dist: Distribution, stack: Stack, feature: str, folder: Path | None, options: SourceOptions, progress: Progress
) -> NewPatch:
    """Start the feature on the stack, in a work tree in `folder` or the default of `edit`.

    Raises WrongUse for an invalid or existing name, LocalEdits if the work tree holds unexported work or a file blocks
    a folder, SourceUnavailable.
    """
    _check_name(dist, stack, feature)
    texts = _files(dist, stack, feature)
    opened = open_stack(dist, stack, folder, options, progress)
    written = []
    with ExitStack() as undo:
        for name, text in texts.items():
            file = dist.root / name
            if not file.exists():
                undo.callback(_forget, file)
                _write(file, text)
                written.append(name)
        commit = _commit(opened.folder, opened.result.tip_commit, stack, rendered("header", feature=feature))
        undo.pop_all()
    kept = tuple(name for name in texts if name not in written)
    named = (stack.upstream, stack.name, feature)
    return NewPatch(*named, opened.folder, opened.result.base_commit, commit, tuple(written), kept)


def _write(file: Path, text: str) -> None:
    try:
        replace_file(file, text.encode())
    except (FileExistsError, NotADirectoryError) as error:
        what = f"a file is in the way of the folder {file.parent}"
        raise LocalEdits(what, [str(error.filename)], hint="move it elsewhere") from error


def _forget(file: Path) -> None:
    with suppress(OSError):  # what blocked the file is reported, and blocks this too
        file.unlink(missing_ok=True)


def _check_name(dist: Distribution, stack: Stack, feature: str) -> None:
    if _FEATURE.fullmatch(feature) is None:
        raise WrongUse(
            f"{feature!a} is no name of a feature", hint="1 to 100 lower-case letters, digits and '_', no '_' first"
        )
    found = next((p for p in load_patches(dist, stack) if p.feature == feature), None)
    if found is not None:
        hint = f"`patchctl edit {stack.upstream}/{stack.name}` opens it, or take another name"
        raise WrongUse(f"{stack.upstream}/{stack.name} has the feature {feature}: {found.shown}", hint=hint)


def _files(dist: Distribution, stack: Stack, feature: str) -> dict[str, str]:
    """Return test, probe and mutation by path below the root; empty if the distribution keeps its tests elsewhere."""
    if not keeps_tests(dist.root):
        return {}
    folder = f"patches/{stack.upstream}/{stack.name}/{feature}"
    values = {"feature": feature, "upstream": stack.upstream, "probe": f"probe_{feature}.py"}
    return {
        f"{folder}/{TESTS}/test_{feature}.py": rendered("test.py", **values),
        f"{folder}/{TESTS}/{values['probe']}": rendered("probe.py", **values),
        f"{folder}/{MUTANTS}/{feature}.yaml": rendered("mutant.yaml", **values),
    }


def _commit(folder: Path, tip: str, stack: Stack, message: str) -> str:
    """Create an empty commit with this message on the branch of `edit`; amending it makes it a patch."""
    work = WorkTree(folder / ".git", folder)
    who = dict(zip(("user.name", "user.email"), COMMITTER, strict=True))
    settings = [o for key, value in who.items() for o in ("-c", f"{key}={value}")]
    commit = work.git(*settings, "commit-tree", f"{tip}^{{tree}}", "-p", tip, stdin=message.encode()).decode().strip()
    work.git("update-ref", f"refs/heads/patchctl/{stack.name}", commit, tip)
    return commit


def rendered(template: str, **values: str) -> str:
    """Return the text of templates/<template>.in."""
    return Template((_FOLDER / f"{template}.in").read_text(encoding="utf-8")).substitute(values)
