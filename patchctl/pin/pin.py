"""Finds a new pin of an upstream (commit, tree, tag, source distribution), carries generated files over, and renders the new
stack's manifest; and the first stack of a new distribution, with what its tests and CI need."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from string import Template

from patchctl.atomic import replace_file
from patchctl.errors import LocalEdits, SourceMismatch, SourceUnavailable, Tried, WrongUse
from patchctl.manifest.diagnostics import quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import loads
from patchctl.manifest.typeinfo import shape_of
from patchctl.manifest.types import FORMAT, Distributed, GitUrl, Name, Pin, Sdist, Stack, StackName, Upstream
from patchctl.manifest.yamltree import plain
from patchctl.pin.upstream_files import BaseReader, Proposal, carried_over, new_imports, propose, untracked_files
from patchctl.scratch import scratch
from patchctl.source.git_form import Revision, Revisions, release_prefix, version_of
from patchctl.source.obtain import obtain, obtain_form
from patchctl.source.types import Base, SourceOptions
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line

_TOP_LEVEL = re.compile(r"(?m)^(?=[A-Za-z_]+:)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TEMPLATES = Path(__file__).with_name("templates")
# By path in the new folder.
_FILES = {
    "README.md": "README.md.in",
    "conftest.py": "conftest.py.in",
    "tests/behaviour/harness.py": "harness.py.in",
    ".github/workflows/patches.yml": "patches.yml.in",
}
UNKNOWN = "NOASSERTION"  # SPDX's word for a licence that no one has looked up
_IGNORED = "build/\nedit/\nworkspace/\n__pycache__/\n"
_ATTRIBUTES = "# Patches are bytes: core.autocrlf may not change their line ends.\n* -text\n"
_ENTRIES = (
    "manifests",
    "patches",
    ".gitignore",
    ".gitattributes",
    *dict.fromkeys(name.partition("/")[0] for name in _FILES),
)
_NO_PACKAGES = {"test", "tests", "doc", "docs", "example", "examples", "benchmark", "benchmarks", "scripts", "tools"}


@dataclass(frozen=True)
class PinResult:
    """A new stack: its manifest's text and path, the bases found, the places tried in vain, notes for a person to check, and the
    runtime that upstream's files name."""

    stack: Stack
    like: Stack
    file: Path
    text: str
    bases: Sequence[Base]
    tried: Sequence[Tried]
    notes: Sequence[str]
    runtime: Sequence[Proposal]


def newest(dist: Distribution, upstream: str, wanted: str) -> Stack:
    """The stack of an upstream that a pin of `wanted` follows: the one with the highest version that is not above it, or the
    highest of all where `wanted` is no release or older than each, or an empty one for an upstream's first pin."""
    from packaging.version import Version

    described = dist.upstream(upstream)
    stacks = [s for (u, _), s in sorted(dist.stacks.items()) if u == upstream]
    if not stacks:
        return Stack(FORMAT, upstream, "", Pin(None))

    def version(stack: Stack) -> Version:
        return version_of(stack.pin.tag or stack.name, release_prefix(stack, described)) or Version("0")

    last = max(stacks, key=version)
    release = version_of(wanted, release_prefix(last, described))
    return max((s for s in stacks if release is not None and version(s) <= release), key=version, default=last)


def find_pin(
    dist: Distribution,
    like: Stack,
    wanted: str,
    options: SourceOptions,
    progress: Progress,
    *,
    name: str | None = None,
    commit: str | None = None,
) -> PinResult:
    """The stack for the revision `wanted` of the upstream of `like`. Nothing is written. `commit` is what the user says of a
    revision whose repository cannot be had. With `options.source` sdist and no `commit`, or for an upstream that is on an index alone,
    no repository is asked, and the pin is the source distribution alone.

    Raises SourceUnavailable with every place tried, SourceMismatch, WrongUse for a name that is taken or a generated file that
    the new revision does not expect.
    """
    upstream = dist.upstream(like.upstream)
    revisions = Revisions(like.upstream, upstream, release_prefix(like, upstream), options)
    tried = revisions.tried
    progress.note("looking for the revision")
    indexed = upstream.sdist is not None and not (upstream.git or options.mirrors.get(like.upstream))
    in_archive = commit is None and (indexed or options.source == "sdist")
    found = None if in_archive else revisions.find(wanted)
    revision = None if in_archive else found or _said(dist, like, wanted, revisions.prefix, commit, tried)
    if commit is not None and revision is not None and revision.commit != commit:
        raise SourceMismatch(f"{wanted} is commit {revision.commit}, and {commit} was said", where=revision.origin)
    stack = _new_stack(dist, like, wanted, revision, revisions, name, options, progress)
    bases = _bases(stack, upstream, found is not None, options, progress, tried)
    tree = next((b.tree for b in bases if b.form == "git"), None)
    stack = replace(stack, pin=replace(stack.pin, tree=tree))
    before = dist.stack_file(like).read_text(encoding="utf-8") if like.name else ""
    with BaseReader(bases) as source:
        block, notes = carried_over(before, like, stack, source) if like.name else ("", [])
        notes += untracked_files(stack, source)
        notes += _same_project(upstream, stack, source)
        notes += _same_commit(stack, source)
        notes += _imports(dist, like, source, options, progress) if like.name else []
        runtime = propose(dist.requirements, source)
    text = _manifest(before, stack, block)
    file = dist.stack_file(stack)
    return PinResult(loads(text.encode(), Stack, str(file)).value, like, file, text, bases, tried, notes, runtime)


def _new_stack(
    dist: Distribution,
    like: Stack,
    wanted: str,
    revision: Revision | None,
    revisions: Revisions,
    name: str | None,
    options: SourceOptions,
    progress: Progress,
) -> Stack:
    """The stack of a revision, or of a source distribution alone; its tree is not known yet. Raises SourceUnavailable, WrongUse."""
    upstream, prefix, tried = dist.upstream(like.upstream), revisions.prefix, revisions.tried
    # 6688c61 is a commit's first digits, and to Python a release candidate.
    by_id = revision is not None and revision.tag is None and revision.commit.startswith(wanted)
    version = None if by_id else version_of(revision.tag or wanted if revision else wanted, prefix)
    if revision is None and version is None:
        what = f"{quoted(wanted)} is no version, which a source distribution is named by"
        raise WrongUse(what, hint="name a version, as 1.2.3")
    own = name or (stack_name(revision.tag or revision.branch or wanted) if revision else f"{prefix}{version}")
    _check_free(dist, like.upstream, own)
    sdist = _sdist(upstream, str(version) if version else None, options, progress, tried)
    if revision is None and sdist is None:
        hint = "PIP_INDEX_URL, PIP_FIND_LINKS or pip's configuration name other package indexes; a version, as 1.2.3"
        raise SourceUnavailable(f"{like.upstream}: no place has a source distribution of {wanted}", tried, hint=hint)
    pin = Pin(revision.commit, None, revision.tag, sdist) if revision else Pin(None, sdist=sdist)
    return Stack(like.schema, like.upstream, own, pin, comes_from=like.name or None, generated=like.generated)


def write_pin(pinned: PinResult) -> None:
    """Write the manifest. Raises LocalEdits when someone has written one meanwhile."""
    if pinned.file.exists():
        raise LocalEdits("the manifest is there meanwhile", [str(pinned.file)], hint="name another stack with --name")
    replace_file(pinned.file, pinned.text.encode())


def _said(
    dist: Distribution, like: Stack, wanted: str, prefix: str, commit: str | None, tried: list[Tried]
) -> Revision:
    """What the user says where no repository can tell. Raises SourceUnavailable without that."""
    known = commit or (wanted if _COMMIT.fullmatch(wanted) else None)
    if known is None:
        named, ways = dist.upstream(like.upstream).sdist, [f"`--mirror {like.upstream}=URL` names another place"]
        if named or not dist.stacks:  # `init`, which has no stack yet, has an option for the project
            ways.append(f"`{'' if named else '--sdist PROJECT '}--source sdist` takes the package index's archive")
        if dist.stacks:
            ways.append("`pin --commit ID` says it, and only a repository can prove it")
        raise SourceUnavailable(
            f"{like.upstream}: no place tells which commit {wanted} is", tried, hint="; ".join(ways)
        )
    version = version_of(wanted, prefix) if wanted != known else None
    return Revision(known, f"{prefix}{version}" if version else None, None, "the command line")


def stack_name(revision: str) -> str:
    """The name of a stack for a tag, a branch or a commit, where nobody gives one."""
    return re.sub(r"[^a-z0-9._-]", "-", revision.lower()).lstrip("-._")[:40]


def _check_free(dist: Distribution, upstream: str, name: str) -> None:
    if not shape_of(StackName).takes_text(name):
        raise WrongUse(
            f"{quoted(name)} is no name of a stack", hint="--name: lower-case letters, digits, '.', '_', '-'"
        )
    if (upstream, name) in dist.stacks:
        raise WrongUse(f"there is a stack {upstream}/{name} already", hint="name the new one with --name")


def _sdist(
    upstream: Upstream, version: str | None, options: SourceOptions, progress: Progress, tried: list[Tried]
) -> Sdist | None:
    """The digest that the package index has for this version. None, with the reasons in `tried`."""
    if upstream.sdist is None or version is None:
        return None
    if options.offline or options.source == "git":
        tried.append(Tried("package index", "it was not asked: --offline or --source git"))
        return None
    from patchctl.source.package_index import find_digest

    with scratch("patchctl-pin-") as folder:
        found = find_digest(upstream.sdist, version, folder, progress, tried)
    return Sdist(version, found[0]) if found else None


def _bases(
    stack: Stack, upstream: Upstream, in_git: bool, options: SourceOptions, progress: Progress, tried: list[Tried]
) -> list[Base]:
    """The base in every form that can be had; one is needed, to know what is pinned."""
    bases = []
    lost: list[Tried] = []
    for form, there in (("git", in_git), ("sdist", stack.pin.sdist is not None)):
        if there:
            try:
                bases.append(obtain_form("git" if form == "git" else "sdist", upstream, stack, options, progress))
            except SourceUnavailable as failure:
                lost += failure.tried
                if form == "git" and options.source != "sdist":
                    # A git that was killed, a transfer that broke: the same run again would make another pin.
                    hint = f"run it again; `--source sdist --commit {stack.pin.commit}` pins it without its tree"
                    what = f"{stack.upstream}: a repository names {stack.pin.identity}, and it could not be had"
                    raise SourceUnavailable(what, [*tried, *lost], hint=hint) from failure
    progress.finish()
    if not bases:
        hint = f"`--mirror {stack.upstream}=URL` names another place"
        raise SourceUnavailable(f"{stack.upstream}: no place has {stack.pin.identity}", [*tried, *lost], hint=hint)
    tried += lost
    return bases


def _same_project(upstream: Upstream, stack: Stack, source: BaseReader) -> list[str]:
    """What the archive says that it is: an index, or a folder of --find-links, names files as it likes."""
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    sdist = stack.pin.sdist
    if sdist is None or upstream.sdist is None or not source.archived:
        return []
    named = source.project_in_archive()
    if named is None:
        return [f"the source distribution {sdist.version} has no PKG-INFO that names a project and a version"]
    try:
        same = canonicalize_name(named[0]) == canonicalize_name(upstream.sdist) and Version(named[1]) == Version(
            sdist.version
        )
    except InvalidVersion:
        same = False
    if same:
        return []
    raise SourceMismatch(
        f"the source distribution of {upstream.sdist} {sdist.version} says that it is {one_line(' '.join(named), 100)}",
        hint="it was put under a wrong name: look where it comes from, with `pip download --no-deps --no-binary :all:`",
    )


def _same_commit(stack: Stack, source: BaseReader) -> list[str]:
    """What ties an archive to the pin: the commit that its version file names."""
    named = source.commit_in_archive()
    if named is not None and stack.pin.commit is None:
        return [f"the source distribution says that it is commit {named}, which nothing has proven"]
    if named is None or stack.pin.commit is None or stack.pin.commit.startswith(named):
        return []
    raise SourceMismatch(
        f"the source distribution {stack.pin.sdist and stack.pin.sdist.version} says that it is commit {named}, and "
        f"{stack.pin.commit} is to be pinned",
        hint="one of both is another revision: ask upstream which",
    )


def unprovided_imports(
    dist: Distribution, old: Stack, new: Stack, options: SourceOptions, progress: Progress
) -> list[str]:
    """Return a line for each module that the package imports at the new pin, did not before, and that nothing provides.

    Raises SourceUnavailable.
    """
    upstream = dist.upstream(new.upstream)
    bases = [obtain(upstream, stack, options, progress) for stack in (old, new)]
    progress.finish()
    with BaseReader(bases[:1]) as before, BaseReader(bases[1:]) as source:
        return new_imports(dist, upstream, before, source)


def _imports(dist: Distribution, like: Stack, new: BaseReader, options: SourceOptions, progress: Progress) -> list[str]:
    """What the new pin imports and nothing provides, where the pin before is on this machine: it is fetched for nothing else."""
    upstream = dist.upstream(like.upstream)
    try:
        base = obtain(upstream, like, replace(options, offline=True), progress)
    except SourceUnavailable:
        return [f"imports were not compared with those of {like.name}, of which this machine has no copy"]
    finally:
        progress.finish()
    with BaseReader([base]) as old:
        return new_imports(dist, upstream, old, new)


def _tree_line(tree: str | None) -> str:
    return (
        f'  tree: "{tree}"' if tree else "  tree: null  # not established: no full copy of the repository was at hand"
    )


def _manifest(before: str, stack: Stack, generated: str) -> str:
    """The text: the editor's line of the old manifest, the pin, no patch yet, the generated files."""
    head = _TOP_LEVEL.split(before)[0]
    head = head if head.startswith("# yaml-language-server") else ""
    pin = stack.pin
    lines = [
        "schema: 1",
        f"upstream: {plain(stack.upstream)}",
        f"name: {plain(stack.name)}",
        *([f"comes_from: {plain(stack.comes_from)}"] if stack.comes_from else []),
        "pin:",
        f'  commit: "{pin.commit}"'
        if pin.commit
        else "  commit: null  # the source distribution alone: no repository was asked",
        *([_tree_line(pin.tree)] if pin.commit else []),
        *([f"  tag: {plain(pin.tag)}"] if pin.tag else []),
        *(
            ["  sdist:", f'    version: "{pin.sdist.version}"', f'    sha256: "{pin.sdist.sha256}"']
            if pin.sdist
            else []
        ),
        "patches: []",
    ]
    return head + "\n".join(lines) + "\n" + generated


def check_place(root: Path, name: str, git: Sequence[str], sdist: str | None) -> None:
    """Check that a distribution can begin there. Raises WrongUse for names and addresses, LocalEdits for what is in the way."""
    if not shape_of(Name).takes_text(name) or plain(name) != name:
        hint = "lower-case letters, digits, '.', '_', '-'; nothing that YAML takes for a number, a truth value or null"
        raise WrongUse(f"{name!a} is no name of an upstream", hint=hint)
    for url in git:
        if not shape_of(GitUrl).takes_text(url):
            what = "--git takes an https://, ssh://, git:// or file:/// address without a password"
            hint = f"a repository of this machine alone: --mirror {name}=DIR, with the upstream's address"
            raise WrongUse(what, hint=hint)
    if sdist and not shape_of(Distributed).takes_text(sdist):
        raise WrongUse(f"{sdist!a} is no name of a project on a package index", hint="--sdist PROJECT, as pip takes it")
    if not root.parent.is_dir():
        raise WrongUse(f"there is no folder {root.parent}", hint=f"mkdir -p {shlex.quote(str(root.parent))}")
    there = [str(root / entry) for entry in _ENTRIES if (root / entry).exists()]
    if there:
        raise LocalEdits("these are there already", there, hint="take an empty folder: --dir DIR")


def declare(root: Path, name: str, upstream: Upstream) -> Distribution:
    """Write upstreams.yaml with one upstream, and read it back. Raises InvalidManifest for what no manifest takes."""
    # Every value is JSON, which is YAML too.
    facts = (f"    {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in asdict(upstream).items() if value)
    text = "\n".join([f"schema: {FORMAT}", "upstreams:", f"  {name}:", *facts]) + "\n"
    replace_file(root / "manifests" / "upstreams.yaml", text.encode())
    return Distribution.load(root)


def begin_distribution(
    dist: Distribution, name: str, wanted: str, options: SourceOptions, progress: Progress
) -> tuple[Stack, list[str]]:
    """Write the first stack of the upstream that is declared, its profile, and the files beside. Return the stack, and
    what a person has to do.

    Raises what `find_pin` raises.
    """
    root = dist.root
    pinned = find_pin(dist, newest(dist, name, wanted), wanted, options, progress)
    with BaseReader(pinned.bases) as source:
        said, packages = source.metadata(), dict(_packages(source, name))
    summary, license_ = str(said.get("Summary") or name), str(said.get("License-Expression") or UNKNOWN)
    declare(root, name, replace(dist.upstream(name), summary=summary, license=license_, packages=packages))
    write_pin(pinned)
    profile = f"schema: {FORMAT}\nname: {name}\nsummary: {name} with our patches.\nstacks: {{{name}: {plain(pinned.stack.name)}}}\n"
    replace_file(root / "manifests" / "profiles" / f"{name}.yaml", profile.encode())
    folder = next(iter(packages.values()), "").rpartition("/")[0]
    for path, template in _FILES.items():
        text = Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(name=name, folder=folder)
        replace_file(root / path, text.encode())
    replace_file(root / ".gitignore", _IGNORED.encode())
    replace_file(root / ".gitattributes", _ATTRIBUTES.encode())
    notes = [
        *pinned.notes,
        "put your patchctl's address into .github/workflows/patches.yml in place of OWNER/patchctl@TAG",
    ]
    if license_ == UNKNOWN:
        notes.append("no file says its licence as an SPDX expression: write it into manifests/upstreams.yaml")
    if not packages:
        notes.append("no package was found at the tree's top or in src/: write them into manifests/upstreams.yaml")
    return pinned.stack, notes


def _packages(source: BaseReader, name: str) -> Iterator[tuple[str, str]]:
    """Yield import packages at the tree's top or in src/: the one of the upstream's name, else all but tests and the like."""
    found = {}
    for path in source.files:
        match = re.fullmatch(r"((?:src/)?([A-Za-z_]\w*))/__init__\.py", path.decode("utf-8", "replace"))
        if match and match[2] not in _NO_PACKAGES:
            found[match[2]] = match[1]
    own = name.replace("-", "_").replace(".", "_")
    yield from ({own: found[own]} if own in found else found).items()
