"""`patchctl verify` without a workspace: every check of a distribution, from its files and the sources that it pins.

Compares locks with what they follow from, without sources or a network: locks of stacks with pins, digests and `index` lines,
locks of requirements with trees, profiles and recipes. And looks whether each patch has tests and mutations, whether a record of
their run holds, and whether tests are left without a patch. A feature is proven on each stack by itself: a record of another stack
of the upstream does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from patchctl import extension
from patchctl.bundle.signature import EVIDENCE, Trust, check_signature
from patchctl.catalog.evidence import BEHAVIOUR, Evidence, keeps_tests, mutants_of, record_file, tests_of
from patchctl.check.pages import check_pages
from patchctl.check.patch_rules import check_counts
from patchctl.check.rules import in_manifest
from patchctl.check.series import Key, Series, below, check_generated, check_series, manifest_findings, read_series
from patchctl.check.sources import check_sources
from patchctl.errors import BadManifest, NotTrusted
from patchctl.findings import Finding, Report, from_error
from patchctl.git.objects import object_id
from patchctl.manifest.diagnostics import InvalidManifest
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedPatch, StackLock, lock_file, pin_record, read_lock
from patchctl.manifest.requirement_types import PLATFORMS
from patchctl.manifest.series import MUTANTS, TESTS, TO_FILL_IN
from patchctl.manifest.types import Stack
from patchctl.requirements.declared import FILE, read_declared, stale
from patchctl.requirements.interpreter import RequiredPackages, contradictions
from patchctl.requirements.lockfile import PROFILE, inputs_of, lock_path
from patchctl.requirements.lockfile import read_lock as read_requirements_lock
from patchctl.requirements.sets import NamedSet, all_sets
from patchctl.source.types import SourceOptions
from patchctl.stack.patches import StackPatch
from patchctl.terminal.progress import Progress

_SHOWN = 30


def check_tested(dist: Distribution, series: Series) -> Iterator[Finding]:
    """Check that every patch has tests and a mutation, in a distribution that keeps tests."""
    if not keeps_tests(dist.root):
        return
    seen = set()
    for key, patches in series.stacks.items():
        stack = dist.stacks[key]
        for patch in patches:
            folder = f"patches/{stack.upstream}/{stack.name}/{patch.feature}"
            lacking = []
            if not tests_of(dist, stack, patch.feature):
                lacking.append(f"has no behaviour test; {folder}/{TESTS}/test_*.py is looked for")
            if not mutants_of(dist, stack, patch.feature):
                lacking.append(f"has no mutation; {folder}/{MUTANTS}/*.yaml is looked for")
            for what in lacking:
                if (patch.file, what) not in seen:  # a patch of a stack that another extends is in both
                    seen.add((patch.file, what))
                    line = patch.header.trailers["Feature"][0].line if "Feature" in patch.header.trailers else 1
                    yield Finding("tested", what, patch.shown, line, "error", key[0], patch.feature)


def check_begun(dist: Distribution) -> Iterator[Finding]:
    """Check that the tests, probes and mutations that `patchctl new` wrote are filled in."""
    folders = (folder for part in (TESTS, MUTANTS) for folder in dist.root.glob(f"patches/*/*/*/{part}"))
    for file in sorted(file for folder in folders for file in folder.iterdir() if file.suffix in (".py", ".yaml")):
        lines = enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if (line := next((number for number, text in lines if TO_FILL_IN in text), None)) is not None:
            shown = file.relative_to(dist.root)
            what = f"waits to be filled in where it says {TO_FILL_IN}"
            yield Finding("filled-in", what, shown.as_posix(), line, "error", shown.parts[1], shown.parts[3])


def check_proven(
    dist: Distribution, series: Series, *, required: bool, signers: Trust | None = None
) -> Iterator[Finding]:
    """Check that a record proves every feature on every stack, and that `signers` signed it. `required` makes each missing one an error;
    else each stack has one note, in a distribution that keeps tests."""
    if not required and not keeps_tests(dist.root):
        return
    evidence = Evidence(dist)
    for key, patches in series.stacks.items():
        stack = dist.stacks[key]
        reasons = [(patch, why) for patch in patches if (why := evidence.unproven(stack, patch)) is not None]
        if signers is not None:
            reasons += [(p, why) for p in patches if (why := _unsigned(dist, stack, p, signers)) is not None]
        if required:
            for patch, why in reasons:
                what = f"is not proven on {stack.upstream}/{stack.name}: {why}"
                yield Finding("proven", what, patch.shown, 1, "error", stack.upstream, patch.feature)
        elif reasons:
            named = [f"{feature} ({why})" for feature, why in {p.feature: why for p, why in reasons}.items()]
            more = f", and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
            some = f"{', '.join(named[:_SHOWN])}{more}"
            what = f"{len(named)} of {len(patches)} features are not proven on this stack: {some}"
            yield Finding("proven", what, *in_manifest(dist, stack), "note", stack.upstream)


def _unsigned(dist: Distribution, stack: Stack, patch: StackPatch, signers: Trust) -> str | None:
    """Return why no trusted signature of the record counts; None if one does, or if there is no record."""
    file = record_file(dist.root, stack.upstream, stack.name, patch.feature)
    if not file.is_file():
        return None
    try:
        with file.open("rb") as record:
            check_signature(file, record, signers, EVIDENCE)
    except NotTrusted as error:
        return f"its record has no signature that counts: {error.what}"
    return None


def check_orphans(dist: Distribution) -> Iterator[Finding]:
    """Find tests and mutations outside every feature's folder, which nothing runs. Those in the folder of a deleted feature are
    reported as `unlisted-file`."""
    top = dist.root / BEHAVIOUR
    # Other tests than those with the mark of features' are of unpatched upstream.
    tests = (t for t in top.rglob("test_*.py") if "pytest.mark.on\n" in t.read_text(encoding="utf-8", errors="replace"))
    for file in sorted([*tests, *(top / MUTANTS).glob("*.yaml")]):
        shown = file.relative_to(dist.root).as_posix()
        yield Finding("left-over", "no feature has it: delete it, or move it into the folder of one", shown)


_WRITE = "`patchctl lock` writes it"
_RELOCK = "`patchctl lock --requirements` makes it anew"
Ids = tuple[str | None, str | None]


def check_locks(dist: Distribution, series: Series) -> Iterator[Finding]:
    """Check the lock of every stack whose patches can be read."""
    for key, patches in series.stacks.items():
        shown = lock_file(dist.root, *key).relative_to(dist.root).as_posix()
        try:
            lock = read_lock(dist.root, dist.stacks[key])
        except BadManifest as error:
            yield Finding("lock", error.what, shown, upstream=key[0])
            continue
        if lock is None:
            yield Finding("lock", f"the stack {key[1]} of {key[0]} has no lock: {_WRITE}", shown, upstream=key[0])
            continue
        yield from _stale(dist, key, lock, patches, shown)
        locked = {(p.file, p.digest): p for p in lock.patches}
        for patch in patches:
            found = locked.get((patch.file.name, patch.digest))
            if found is not None:
                yield from _blobs(key[0], patch, found)


def _stale(
    dist: Distribution, key: Key, lock: StackLock, patches: Sequence[StackPatch], shown: str
) -> Iterator[Finding]:
    """Differences that mean the lock was made for something else."""
    upstream = key[0]
    if (lock.upstream, lock.stack) != key:
        yield Finding("lock", f"it is the lock of {lock.upstream} {lock.stack}", shown, upstream=upstream)
    if lock.pin != pin_record(dist.stacks[key].pin):
        yield Finding(
            "lock", f"the lock is for another pin than the manifest's; {_WRITE} anew", shown, upstream=upstream
        )
    digests = {p.file: p.digest for p in lock.patches}
    for patch in patches:
        if digests.get(patch.file.name) not in (None, patch.digest):
            message = f"the patch or a file that it carries is not the one that is locked; {_WRITE} anew"
            yield Finding("lock", message, patch.shown, None, "error", upstream, patch.feature)
    listed, known = [p.file.name for p in patches], list(digests)
    if listed != known:
        odd = [f for f in listed if f not in known] + [f for f in known if f not in listed]
        what = f"the lock has another list of patches: {', '.join(odd) or 'their order'}; {_WRITE} anew"
        yield Finding("lock", what, shown, upstream=upstream)


def _blobs(upstream: str, patch: StackPatch, locked: LockedPatch) -> Iterator[Finding]:
    if locked.files is None:
        return  # no form could be computed when the lock was written; the lock says so
    expected = {f.path: (f.before and f.before[1], f.after and f.after[1]) for f in locked.files}
    own, lines = _own_blobs(patch)
    for path in sorted(expected.keys() | own.keys()):
        if path not in own or path not in expected:
            what = f"{path} is changed by the {'lock' if path not in own else 'patch'} alone"
        elif all(map(_agree, own[path], expected[path])):
            continue
        else:
            what = f"{path}: the patch says {_show(own[path])}, the lock {_show(expected[path])}"
        yield Finding("lock-blob", what, patch.shown, lines.get(path), "error", upstream, patch.feature)


def _own_blobs(patch: StackPatch) -> tuple[dict[str, Ids], dict[str, int]]:
    """The ids before and after of every path, by `index` lines and carried files; and the lines in the patch file."""
    own: dict[str, Ids] = {}
    lines: dict[str, int] = {}
    for change in patch.patch.changes:
        for path in {change.old_path, change.new_path} - {None}:
            assert path is not None
            before = change.old_id or "" if path == change.old_path and change.kind != "copy" else None
            after = change.new_id or "" if path == change.new_path else None
            if change.kind != "copy" or path == change.new_path:
                own[path.decode("utf-8", "surrogateescape")] = (before, after)
                lines[path.decode("utf-8", "surrogateescape")] = change.line
    for name, data in patch.carried.items():
        own[name] = (None, object_id("blob", data))
    return own, lines


def _agree(own: str | None, locked: str | None) -> bool:
    """Whether two ids agree; an abbreviated one as far as it goes, which is the business of rule full-index."""
    return own == locked if own is None or locked is None else locked.startswith(own)


def _show(ids: Ids) -> str:
    return "..".join("nothing" if i is None else i[:12] or "no id" for i in ids)


def check_requirements(dist: Distribution, report: Report) -> None:
    """Check the requirement sets that profiles name, and their locks."""
    try:
        sets = all_sets(dist)
        report.counts.update({"requirement locks": len(sets) * len(PLATFORMS)} if sets else {})
        for named in sets:
            report.add(replace(f, file=below(dist.root, f.file)) for f in _requirement_locks(dist, named))
        return
    except InvalidManifest as error:
        findings = manifest_findings(dist.root, error)
    except BadManifest as error:
        findings = [from_error("requirements-lock", error, "manifests/requirements")]
    seen = {(f.rule, f.message) for f in report.findings}  # an extension's check of the same files may have added them
    report.add(f for f in findings if (f.rule, f.message) not in seen)


def _requirement_locks(dist: Distribution, named: NamedSet) -> Iterator[Finding]:
    try:
        declared = read_declared(named)
    except BadManifest as error:
        yield from_error("requirements-lock", error, str(named.folder / FILE))
        return
    for reason in stale(dist, named, declared):
        yield Finding("requirements-lock", f"not what the trees declare: {reason}: {_RELOCK}", str(named.folder / FILE))
    inputs = inputs_of(dist, named, declared)
    pins, found = inputs.by_origin[PROFILE], dict[str, None]()
    for platform in PLATFORMS:
        file = str(lock_path(named, platform))
        try:
            lock = read_requirements_lock(named, platform)
        except BadManifest as error:
            yield from_error("requirements-lock", error, file)
            continue
        if lock.input != inputs.digest(platform):
            what = "it no longer follows from what trees, profiles, recipes, scripts and set.yaml ask for"
            yield Finding("requirements-lock", f"{what}: {_RELOCK}", file)
            lock = replace(lock, packages={})
        found |= dict.fromkeys(contradictions(RequiredPackages(named, lock, (*declared,)), pins))
    yield from (Finding("requirements-lock", what, str(named.folder / "set.yaml")) for what in found)


Check = Callable[[Distribution, Series, Report], None]
"""A check of an extension: adds its findings, and how much it looked at. May raise InvalidManifest, whose problems are added."""


def verify_distribution(
    dist: Distribution,
    options: SourceOptions | None,
    progress: Progress,
    pages: Mapping[str, str],
    *,
    proven: bool = False,
    isolated: bool = False,
    signers: Trust | None = None,
) -> Report:
    """Check manifests, patches, locks, extensions, pages, and with `options` every available form of every source.

    With `proven` a feature without a valid record is an error, with `signers` one whose record none of them signed, with `isolated` one
    that needs more than it requires. Raises SourceMismatch for a source that is not what was pinned, also for a changed file in the
    cache.
    """
    report, series = _checked_series(dist)
    report.add(check_locks(dist, series))
    for file, patch in series.patches.items():
        report.add(check_counts(patch, file.relative_to(dist.root).parts[1]))
    report.add(check_tested(dist, series))
    report.add(check_proven(dist, series, required=proven, signers=signers))
    report.add(check_begun(dist))
    report.add(check_orphans(dist))
    report.add(check_generated(dist))
    for name in (name for other in extension.registered() for name in other.checks):
        check: Check = extension.load(name)
        try:
            check(dist, series, report)
        except InvalidManifest as error:
            report.add(manifest_findings(dist.root, error))
    check_requirements(dist, report)
    report.add(check_pages(dist, series, pages, strict=False))
    check_sources(dist, series, options, progress, report, isolated=isolated)
    return report


def lint_distribution(dist: Distribution) -> Report:
    """Check the patch files alone: each by its rules, and as series. Takes a second, and lets locks, pages and proofs be stale."""
    return _checked_series(dist)[0]


def _checked_series(dist: Distribution) -> tuple[Report, Series]:
    report = Report()
    series = read_series(dist, report)
    report.counts.update(stacks=len(dist.stacks), profiles=len(dist.variants), patches=len(series.patches))
    report.add(check_series(dist, series))
    return report, series
