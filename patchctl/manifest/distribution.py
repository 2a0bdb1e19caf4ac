"""A distribution: one team's folder with manifests/ and patches/.

manifests/upstreams.yaml
manifests/stacks/<upstream>/<stack>.yaml
manifests/releases/<release>.yaml       optional: which stacks upstreams support together
manifests/profiles/<profile>.yaml
manifests/practice.yaml                 optional: names of our switches in published practice documents
patches/<upstream>/<stack>/<name>/NNNN-<feature|bugfix>-<name>.patch
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from patchctl.errors import Where, WrongUse
from patchctl.language import joined, message
from patchctl.manifest.default_roots import MARKER, chosen_root, own_root, root_around
from patchctl.manifest.diagnostics import cleaned, did_you_mean, nearest, quoted, shown
from patchctl.manifest.files import ManifestFiles, keep_validated, validated_before
from patchctl.manifest.series import SeriesPatch, missing_files, resolve, unlisted
from patchctl.manifest.types import Practice, Profile, Release, Requirement, Stack, Upstream, release_order

VARIABLE = "PATCHCTL_ROOT"


def find_root(explicit: Path | None, start: Path) -> Path:
    """Return the distribution's folder: --root, PATCHCTL_ROOT, the nearest folder from `start` upward, `use`'s, the wheel's own.

    Raises WrongUse with the places searched.
    """
    if explicit is not None:
        return _checked(explicit, "--root")
    named = os.environ.get(VARIABLE)
    if named:
        return _checked(Path(named), VARIABLE)
    here = start.resolve()
    found = root_around(here) or chosen_root() or own_root()
    if found is not None:
        return found
    bare = next((f for f in (here, *here.parents) if (f / "manifests").is_dir()), None)
    note = message("; {folder} exists but has no upstreams.yaml", folder=shown(bare / "manifests")) if bare else ""
    raise WrongUse(
        message(
            "no distribution: found no {marker} in {folder} or any folder above it{note}",
            marker=MARKER,
            folder=shown(here),
            note=note,
        ),
        hint=message(
            "run patchctl inside a distribution, or name one with --root DIR or {variable}=DIR; `patchctl use URL` fetches one",
            variable=VARIABLE,
        ),
    )


def _checked(folder: Path, origin: str) -> Path:
    if not folder.is_dir():
        missing = cleaned(str(folder.absolute()))
        raise WrongUse(message("{origin} names {folder}, which is no folder", origin=origin, folder=missing))
    if not (folder / MARKER).is_file():
        raise WrongUse(
            message(
                "{origin} names {folder}, which has no {marker}",
                origin=origin,
                folder=cleaned(str(folder.absolute())),
                marker=MARKER,
            ),
            hint=message("name the folder that contains manifests/, not manifests/ itself")
            if folder.name == "manifests"
            else None,
        )
    return folder.resolve()


def check_outside(root: Path, folder: Path) -> None:
    """Raise WrongUse for a folder to be made where the distribution's own files are, which would count as one of them."""
    if any(Path(os.path.realpath(folder)).is_relative_to(root / own) for own in ("manifests", "patches")):
        what = message("{folder} is among the files of the distribution {root}", folder=shown(folder), root=shown(root))
        raise WrongUse(what, hint=message("name a folder elsewhere, or run this in another one"))


@dataclass(frozen=True)
class Distribution:
    """The validated manifests. Stacks are keyed by (upstream, name); releases are sorted newest first.

    `profiles` has each profile on one release: its oldest, unless patchctl.catalog.chosen_release picked another.
    `variants` has it on each of its releases, newest first. `named_release` is the release that the run names, if
    any.
    """

    root: Path
    upstreams: Mapping[str, Upstream]
    requirements: Mapping[str, Requirement]
    stacks: Mapping[tuple[str, str], Stack]
    profiles: Mapping[str, Profile]
    practice: Practice | None = None
    releases: Mapping[str, Release] = field(default_factory=dict)
    variants: Mapping[str, tuple[Profile, ...]] = field(default_factory=dict)
    named_release: str | None = None

    @classmethod
    def load(cls, root: Path, cache_dir: Path | None = None) -> Distribution:
        """Read and check the distribution. Raises InvalidManifest with every error in every file.

        With `cache_dir`, manifests validated before are not validated again, and yaml is not imported. Whether the
        patch files exist is checked every time.
        """
        files = ManifestFiles.scan(root)
        content = validated_before(cache_dir, files) if cache_dir else None
        if content is None or files.problems or missing_files(root, content.stacks):
            from patchctl.manifest.consistency import checked

            content = checked(root, files)
            if cache_dir:
                keep_validated(cache_dir, files, content)
        known = content.upstreams
        releases = dict(sorted(content.releases.items(), key=lambda item: release_order(item[0]), reverse=True))
        variants = {
            name: tuple(profile.on(one) for one in releases.values() if profile.is_for(one.name)) or (profile,)
            for name, profile in content.profiles.items()
        }
        oldest = {name: found[-1] for name, found in variants.items()}
        return cls(
            root, known.upstreams, known.requirements, content.stacks, oldest, content.practice, releases, variants
        )

    def upstream(self, name: str) -> Upstream:
        """Return an upstream. Raises WrongUse with the nearest known name."""
        if name not in self.upstreams:
            raise WrongUse(
                message("no upstream {name}{near}", name=quoted(name), near=did_you_mean(name, self.upstreams))
            )
        return self.upstreams[name]

    def profile(self, name: str) -> Profile:
        """Return a profile on the chosen release. Raises WrongUse with the nearest name or the profile's releases."""
        if name not in self.variants:
            raise WrongUse(
                message("no profile {name}{near}", name=quoted(name), near=did_you_mean(name, self.variants))
            )
        if name not in self.profiles:
            releases = [p.release for p in self.variants[name] if p.release]
            stands = message("it names its stacks itself: run without --release")
            if releases:
                stands = message("it supports {names}", names=joined(releases))
            raise WrongUse(message("the profile {name} does not support this release", name=name), hint=stands)
        return self.profiles[name]

    def release(self, name: str) -> Release:
        """Return a release. Raises WrongUse with the nearest known name."""
        if name not in self.releases:
            hint = (
                message("known releases: {names}", names=joined(self.releases))
                if self.releases
                else message("this distribution has none")
            )
            near = nearest(name, self.releases)  # without one the hint alone lists the known names
            suggestion = did_you_mean(name, [near]) if near else ""
            raise WrongUse(message("no release {name}{near}", name=quoted(name), near=suggestion), hint=hint)
        return self.releases[name]

    def lineage(self, name: str) -> Iterator[str]:
        """A release, and those that it extends, the nearest first."""
        at: str | None = name
        while at is not None:
            yield at
            at = self.releases[at].extends

    def every_profile(self) -> list[Profile]:
        """Return every profile on each of its releases."""
        return [profile for found in self.variants.values() for profile in found]

    def of_named_release(self, stack: Stack) -> bool:
        """Whether a stack belongs to the release that the run names; True if it names none."""
        if self.named_release is None:
            return True
        users = (self.releases[self.named_release].stacks, *(p.stacks for p in self.profiles.values()))
        return any(stacks.get(stack.upstream) == stack.name for stacks in users)

    def each_release(self) -> list[Distribution]:
        """Return the distribution once per release, newest first, then with profiles without a release.

        Every profile so occurs on each of its releases. Only the named release, if the run names one.
        """
        if self.named_release is not None:
            return [self]
        on = {name: {p.name: p for p in self.every_profile() if p.release == name} for name in (*self.releases, None)}
        return [replace(self, profiles=profiles) for profiles in on.values() if profiles]

    def held(self, name: str | None, release: str | None) -> Profile | None:
        """Return the profile that a workspace's state names, or None if it no longer exists.

        A state without a release predates releases and means the oldest.
        """
        found = self.variants.get(name or "", ())
        if release is None:
            return found[-1] if found else None
        return next((profile for profile in found if profile.release == release), None)

    def stack(self, upstream: str, name: str) -> Stack:
        """Return a stack. Raises WrongUse with the nearest known name."""
        self.upstream(upstream)
        if (upstream, name) not in self.stacks:
            known = [s for u, s in self.stacks if u == upstream]
            raise WrongUse(
                message(
                    "no stack {name} of {upstream}{near}",
                    name=quoted(name),
                    upstream=upstream,
                    near=did_you_mean(name, known),
                )
            )
        return self.stacks[upstream, name]

    def stacks_of(self, profile: Profile) -> dict[str, Stack]:
        """Return a profile's stacks by upstream, in the order of upstreams.yaml."""
        return {u: self.stack(u, profile.stacks[u]) for u in self.upstreams if u in profile.stacks}

    def patches(self, stack: Stack) -> list[SeriesPatch]:
        """Return a stack's patches in order, with `extends` and `replace` resolved."""
        return resolve(stack, self.stacks)

    def patch_files(self, stack: Stack) -> list[Path]:
        """Return the files of `patches`, below the root."""
        return [self.root / patch.path for patch in self.patches(stack)]

    def stack_file(self, stack: Stack) -> Path:
        return self.root / "manifests" / "stacks" / stack.upstream / f"{stack.name}.yaml"

    def profile_file(self, profile: Profile) -> Path:
        return self.root / "manifests" / "profiles" / f"{profile.name}.yaml"

    def unlisted_files(self) -> list[Path]:
        """Return files in patches/ that no stack lists: someone forgot to list or delete them."""
        return unlisted(self.root, self.stacks)

    def where(self, manifest: Path, *key: str | int) -> Where:
        """Return the line of a manifest's key. Rereads the file, which only errors and findings need."""
        from patchctl.manifest.load import positions_of

        positions = positions_of(manifest)
        return Where(positions.file, positions.place(key, at="key")[0])
