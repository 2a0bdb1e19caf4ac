"""What a distribution has, for `list` and `show`: profiles, stacks, patches, requirements and their relations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated

from patchctl.catalog.evidence import mutants_of, tests_of
from patchctl.doc import Doc
from patchctl.errors import WrongUse
from patchctl.manifest.diagnostics import did_you_mean, nearest, quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import descent
from patchctl.manifest.types import Gain, Profile, Stack
from patchctl.stack.patches import LintedPatch, StackPatch, load_patch, parse_feature


@dataclass(frozen=True)
class ProfileRow:
    """A profile."""

    name: Annotated[str, Doc("profile name")]
    summary: Annotated[str, Doc("one-line summary")]
    stacks: Annotated[dict[str, str], Doc("stack of each upstream")]
    without: Annotated[tuple[str, ...], Doc("features that the profile leaves out")]
    runtime: Annotated[dict[str, str], Doc("version of each runtime requirement")]
    patches: Annotated[int, Doc("number of patches that the profile applies")]
    release: Annotated[str | None, Doc("release name; null if the profile names its stacks itself")] = None


@dataclass(frozen=True)
class ReleaseRow:
    """A release."""

    name: Annotated[str, Doc("release name, a year and month")]
    summary: Annotated[str, Doc("one-line summary")]
    stacks: Annotated[dict[str, str], Doc("stack of each upstream")]
    runtime: Annotated[dict[str, str], Doc("version of each runtime requirement")]
    requirements: Annotated[str | None, Doc("folder in `manifests/requirements/`; null for none")]
    pinned: Annotated[dict[str, str], Doc("commit of each upstream that is pinned but not patched")]
    environment: Annotated[str | None, Doc("environment folder for behaviour tests; null for none")]
    profiles: Annotated[tuple[str, ...], Doc("profiles that support the release")]


@dataclass(frozen=True)
class StackRow:
    """A stack and its pin."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    commit: Annotated[str, Doc("pinned commit, or `sdist:SHA256` if only the source distribution is pinned")]
    tag: Annotated[str | None, Doc("tag that named the commit")]
    sdist: Annotated[str | None, Doc("version of the source distribution; null if none is pinned")]
    extends: Annotated[str | None, Doc("stack whose patches come first")]
    patches: Annotated[int, Doc("number of patches, including those of `extends`")]
    profiles: Annotated[tuple[str, ...], Doc("profiles that use the stack")]


@dataclass(frozen=True)
class PatchRow:
    """A patch in a stack. `profiles` apply it: a profile may use the stack but leave the patch out."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    number: Annotated[int, Doc("position in the stack, from 1")]
    file: Annotated[str, Doc("file name of the patch")]
    kind: Annotated[str, Doc("`feature` or `bugfix`")]
    feature: Annotated[str, Doc("feature name")]
    subject: Annotated[str, Doc("subject line of the patch")]
    switch: Annotated[str | None, Doc("setting that enables the feature; `none` for a fix")]
    upstream_status: Annotated[
        str | None, Doc("`Upstream-Status` trailer: Pending, Submitted, Backport or Inappropriate")
    ]
    profiles: Annotated[tuple[str, ...], Doc("profiles that apply the patch")]
    gain: Annotated[Gain | None, Doc("what the feature brings, as far as it was shown; null if the stack does not say")]


@dataclass(frozen=True)
class RequirementRow:
    """Something that profiles run on."""

    name: Annotated[str, Doc("requirement name")]
    summary: Annotated[str, Doc("one-line summary")]
    kind: Annotated[str, Doc("`python` or `system`")]
    distribution: Annotated[str | None, Doc("name on the package index; null for kind `system`")]
    versions: Annotated[dict[str, str], Doc("required version by profile")]


@dataclass(frozen=True)
class FileRow:
    """A file of a patch."""

    path: Annotated[str, Doc("path in the upstream tree")]
    change: Annotated[str, Doc("`add`, `delete`, `modify`, `rename`, `copy` or `carried`")]
    added: Annotated[int | None, Doc("lines added; null for a binary file")]
    removed: Annotated[int | None, Doc("lines removed; null for a binary file")]


@dataclass(frozen=True)
class PatchDetail:
    """One patch file."""

    file: Annotated[str, Doc("path of the patch file, relative to the distribution if inside it")]
    row: Annotated[PatchRow | None, Doc("entry as in `list`; null if no stack lists the file")]
    feature: Annotated[str, Doc("feature name")]
    author: Annotated[str, Doc("author name and e-mail address")]
    subject: Annotated[str, Doc("subject line of the patch")]
    need: Annotated[str, Doc("why the patch is needed")]
    change: Annotated[str, Doc("what the patch changes")]
    risk: Annotated[str, Doc("what can go wrong")]
    switch: Annotated[str | None, Doc("setting that enables the feature; `none` for a fix")]
    upstream_status: Annotated[str | None, Doc("`Upstream-Status` trailer")]
    drop_when: Annotated[str | None, Doc("condition for dropping the patch")]
    digest: Annotated[str, Doc("sha256 of the patch and its carried files")]
    files: Annotated[tuple[FileRow, ...], Doc("files that the patch changes or carries")]
    stacks: Annotated[tuple[StackRow, ...], Doc("stacks that contain the patch")]
    profiles: Annotated[tuple[str, ...], Doc("profiles that apply the patch")]
    requires: Annotated[tuple[str, ...], Doc("`Requires` trailer")]
    required_by: Annotated[tuple[str, ...], Doc("features that require it, as FEATURE@UPSTREAM")]
    tests: Annotated[tuple[str, ...], Doc("behaviour tests of the feature")]
    mutants: Annotated[tuple[str, ...], Doc("mutations that these tests must detect")]
    diff: Annotated[str | None, Doc("with `--diff`: text of the diff", optional=True)]


def go_together(profiles: Iterable[Profile | ProfileRow], one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two (upstream, stack) can be applied together: the same one, or two of a common profile.

    A stack without profiles goes with every stack of another upstream.
    """
    if one[0] == other[0]:
        return one == other
    having = [p for p in profiles if p.stacks.get(one[0]) == one[1]]
    return not having or any(p.stacks.get(other[0]) == other[1] for p in having)


def _applies(profile: Profile, upstream: str, stack: str, feature: str) -> bool:
    """Whether a profile, on its release, uses the stack and does not leave the feature out."""
    return profile.stacks.get(upstream) == stack and not {feature, f"{feature}@{upstream}"} & {*profile.without}


def ordered_stacks(dist: Distribution) -> list[Stack]:
    """Return every stack: upstreams as in upstreams.yaml, then by name."""
    return [s for upstream in dist.upstreams for (owner, _), s in sorted(dist.stacks.items()) if owner == upstream]


def gain_of(dist: Distribution, stack: Stack, feature: str) -> Gain | None:
    """Return what a feature of the stack brings, said there or by a stack that it comes from."""
    return next((one.gains[feature] for one in descent(stack, dist.stacks) if feature in one.gains), None)


class Catalog:
    """A distribution's patches, read once. Raises BadPatch if one cannot be read."""

    def __init__(self, dist: Distribution) -> None:
        self.dist = dist
        self._read: dict[Path, StackPatch] = {}

    def patch(self, file: Path) -> StackPatch:
        """Return a patch file, parsed."""
        if file not in self._read:
            self._read[file] = load_patch(file, self.dist.root)
        return self._read[file]

    def releases(self, profile: str | None = None, upstream: str | None = None) -> list[ReleaseRow]:
        """Return the releases, newest first: all, those of a profile, or those with a stack of an upstream."""
        if profile is not None:
            self.dist.profile(profile)
        users = {name: {p.name for p in self.dist.every_profile() if p.release == name} for name in self.dist.releases}
        return [
            ReleaseRow(
                one.name,
                one.summary,
                {u: one.stacks[u] for u in self.dist.upstreams if u in one.stacks},
                dict(one.runtime),
                one.requirements,
                {name: pin.commit for name, pin in one.pinned.items()},
                one.environment,
                tuple(sorted(users[one.name])),
            )
            for one in self.dist.releases.values()
            if (profile is None or profile in users[one.name])
            and (upstream is None or upstream in one.stacks)
            and self.dist.named_release in (None, one.name)
        ]

    def profiles(self, only: str | None = None, upstream: str | None = None) -> list[ProfileRow]:
        """Return all profiles, one, or those with a stack of an upstream. Raises WrongUse for an unknown name."""
        chosen = self._every_profile() if only is None else [self.dist.profile(only)]
        if upstream is not None:
            self.dist.upstream(upstream)
            chosen = [p for p in chosen if upstream in p.stacks]
        patches, rows = self.patches(), []
        for one in chosen:
            stacks = {u: one.stacks[u] for u in self.dist.upstreams if u in one.stacks}
            applied = sum(_applies(one, row.upstream, row.stack, row.feature) for row in patches)
            without, runtime = tuple(one.without), dict(one.runtime)
            rows.append(ProfileRow(one.name, one.summary, stacks, without, runtime, applied, one.release))
        return rows

    def _every_profile(self) -> list[Profile]:
        """Return every profile on every release, or on the one that the run names."""
        return [p for p in self.dist.every_profile() if self.dist.named_release in (None, p.release)]

    def stacks(self, profile: str | None = None, upstream: str | None = None) -> list[StackRow]:
        """Return the stacks in the order of upstreams.yaml, of one profile or upstream only. Raises WrongUse."""
        rows = []
        for one in self._chosen(profile, upstream):
            users = (p.name for p in self.dist.every_profile() if p.stacks.get(one.upstream) == one.name)
            sdist = one.pin.sdist.version if one.pin.sdist else None
            of_pin = (one.pin.identity, one.pin.tag, sdist, one.extends, len(self.dist.patches(one)))
            rows.append(StackRow(one.upstream, one.name, *of_pin, tuple(dict.fromkeys(users))))
        return rows

    def _chosen(self, profile: str | None, upstream: str | None) -> list[Stack]:
        if upstream is not None:
            self.dist.upstream(upstream)
        wanted = None if profile is None else self.dist.profile(profile).stacks
        return [
            stack
            for stack in ordered_stacks(self.dist)
            if upstream in (None, stack.upstream)
            and (wanted is None or wanted.get(stack.upstream) == stack.name)
            and self.dist.of_named_release(stack)
        ]

    def patches(self, profile: str | None = None, upstream: str | None = None) -> list[PatchRow]:
        """Return the patches of these stacks in order; of a profile, without those it leaves out."""
        taken = None if profile is None else self.dist.profile(profile)
        rows = []
        for stack in self._chosen(profile, upstream):
            for number, file in enumerate(self.dist.patch_files(stack), 1):
                row = self._patch_row(stack, number, self.patch(file))
                if taken is None or _applies(taken, row.upstream, row.stack, row.feature):
                    rows.append(row)
        return rows

    def _patch_row(self, stack: Stack, number: int, patch: StackPatch) -> PatchRow:
        appliers = (p.name for p in self.dist.every_profile() if _applies(p, stack.upstream, stack.name, patch.feature))
        return PatchRow(
            stack.upstream,
            stack.name,
            number,
            patch.file.name,
            LintedPatch(patch).kind,
            patch.feature,
            patch.header.subject,
            patch.header.trailer("Switch"),
            patch.header.trailer("Upstream-Status"),
            tuple(dict.fromkeys(appliers)),
            gain_of(self.dist, stack, patch.feature),
        )

    def requirements(self, profile: str | None = None) -> list[RequirementRow]:
        """Return what profiles run on, or one profile. Raises WrongUse."""
        several = len(self.dist.releases) > 1
        chosen = self._every_profile() if profile is None else [self.dist.profile(profile)]
        rows = []
        for name, requirement in self.dist.requirements.items():
            versions = {
                f"{p.name}@{p.release}" if several and p.release else p.name: p.runtime[name]
                for p in chosen
                if name in p.runtime
            }
            if versions or profile is None:
                rows.append(
                    RequirementRow(name, requirement.summary, requirement.kind, requirement.distribution, versions)
                )
        return rows

    def details(self, target: str) -> list[PatchDetail]:
        """Return every patch of FEATURE[@UPSTREAM], or of a patch file. Raises WrongUse with the nearest name."""
        if target.endswith(".patch") or "/" in target:
            return [self._detail(file) for file in self._files_named(target)]
        feature, upstream = parse_feature(target)
        if upstream is not None:
            self.dist.upstream(upstream)
        features = {file: self.patch(file).feature for file in self._owned}
        of_upstream = {file: name for file, name in features.items() if upstream in (None, self._owned[file])}
        if found := [file for file, name in of_upstream.items() if name == feature]:
            return [self._detail(file) for file in found]
        known = sorted({*of_upstream.values()})
        of = f" of {upstream}" if upstream else ""
        every = "`patchctl list patches` lists them all"
        if self.dist.named_release is not None:
            of += f" on {self.dist.named_release}"
            every = "`PATCHCTL_RELEASE= patchctl list patches` lists those of every release"
        hint = self._hint_for(feature, known) or every
        raise WrongUse(f"no feature {quoted(feature)}{of}{did_you_mean(feature, known)}", hint=hint)

    def _hint_for(self, name: str, known: Sequence[str]) -> str | None:
        """Return a hint for a switch named in practice documents: the feature that replaces it, with its release."""
        switches = self.dist.practice.switches if self.dist.practice else {}
        named = next((n for key, n in switches.items() if re.split("[= ]", key)[0].rpartition(".")[2] == name), None)
        if named is None:
            return None
        seeds = f"a switch from the practice documents ({', '.join(named.seeds)})"
        if not named.features:
            return f"{seeds}; nothing replaces it here: {' '.join((named.note or '').split())}"
        here = [f for f in named.features if self.dist.named_release is None or parse_feature(f)[0] in known]
        shown = (f"`{'' if f in here else 'PATCHCTL_RELEASE= '}patchctl show {f}`" for f in named.features)
        return f"{seeds}; here it is " + ", ".join(shown)

    @cached_property
    def _owned(self) -> dict[Path, str]:
        """Every patch file that a stack applies, with its upstream. An extended stack's files occur once."""
        stacks = self._chosen(None, None)
        return {file: stack.upstream for stack in stacks for file in self.dist.patch_files(stack)}

    def _files_named(self, target: str) -> list[Path]:
        """Return the listed files that `target` names by path or name; any other patch file as given."""
        path = Path(target).absolute()
        below = self.dist.root / target
        found = [f for f in self._owned if f in (path, below) or f.resolve() == path.resolve() or f.name == target]
        if found:
            return found
        if path.is_file():
            return [path]
        names = [f.relative_to(self.dist.root).as_posix() for f in self._owned]
        name = PurePosixPath(target).name
        near = nearest(name, {f.name for f in self._owned})
        hint = next((f"did you mean {n}?" for n in names if near and PurePosixPath(n).name == near), None)
        raise WrongUse(f"no patch file {quoted(target)}", hint=hint or "`patchctl list patches` lists them all")

    def _detail(self, file: Path) -> PatchDetail:
        patch = self.patch(file)
        header = patch.header
        rows = [r for r in self.patches() if self._file_of(r) == file]
        stacks = tuple(s for s in self.stacks() if any((r.upstream, r.stack) == (s.upstream, s.stack) for r in rows))
        need, change, risk = sections(patch)
        stack = self.dist.stack(rows[0].upstream, rows[0].stack) if rows else None
        return PatchDetail(
            file=patch.shown,
            row=rows[0] if rows else None,
            feature=patch.feature,
            author=f"{header.name} <{header.email}>",
            subject=header.subject,
            need=need,
            change=change,
            risk=risk,
            switch=header.trailer("Switch"),
            upstream_status=header.trailer("Upstream-Status"),
            drop_when=header.trailer("Drop-When"),
            digest=patch.digest,
            files=file_rows(patch),
            stacks=stacks,
            profiles=tuple(dict.fromkeys(p for r in rows for p in r.profiles)),
            requires=tuple(header.listed("Requires")),
            required_by=self._required_by(rows),
            tests=tests_of(self.dist, stack, patch.feature) if stack else (),
            mutants=mutants_of(self.dist, stack, patch.feature) if stack else (),
            diff=diff_of(patch),
        )

    def _file_of(self, row: PatchRow) -> Path:
        return self.dist.patch_files(self.dist.stack(row.upstream, row.stack))[row.number - 1]

    def _required_by(self, rows: Sequence[PatchRow]) -> tuple[str, ...]:
        """Return the features (with upstream) that require these rows' patch and are applied with it."""
        profiles = self._every_profile()
        found = []
        for other in self.patches():
            required = {(name, of or other.upstream) for name, of in self.patch(self._file_of(other)).requires}
            if any(
                (row.feature, row.upstream) in required
                and go_together(profiles, (other.upstream, other.stack), (row.upstream, row.stack))
                for row in rows
            ):
                found.append(f"{other.feature}@{other.upstream}")
        return tuple(dict.fromkeys(found))


def sections(patch: StackPatch) -> tuple[str, str, str]:
    """Return need, change and risk: the message's first paragraph, the following ones, and those from `Risk:` on."""
    paragraphs = LintedPatch(patch).paragraphs
    at = next((n for n, p in enumerate(paragraphs) if p.startswith("Risk:")), len(paragraphs))
    need, change, risk = ("\n\n".join(part) for part in (paragraphs[:1], paragraphs[1:at], paragraphs[at:]))
    return need.removeprefix("Need:").lstrip(), change, risk.removeprefix("Risk:").lstrip()


def file_rows(patch: StackPatch) -> tuple[FileRow, ...]:
    """Return lines added and removed, which `verify` compares with unidiff's count; then the carried files."""
    rows = []
    for change in patch.patch.changes:
        lines = (None, None) if change.binary is not None else change.counts
        rows.append(FileRow(change.path.decode("utf-8", "backslashreplace"), change.kind, *lines))
    rows += [FileRow(path, "carried", data.count(b"\n"), 0) for path, data in patch.carried.items()]
    return tuple(rows)


def diff_of(patch: StackPatch) -> str:
    """Return the diff part of the file as text."""
    lines = patch.data.split(b"\n")[patch.patch.changes[0].line - 1 :]
    return b"\n".join(lines).decode("utf-8", "backslashreplace")
