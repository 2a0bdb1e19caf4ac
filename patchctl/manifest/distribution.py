"""A distribution: the folder with manifests/ and patches/ that one team keeps, read as a whole.

manifests/upstreams.yaml
manifests/stacks/<upstream>/<stack>.yaml
manifests/releases/<release>.yaml                what upstreams support together; not every team has releases
manifests/profiles/<profile>.yaml
manifests/practice.yaml                 what documents of the practice call our switches; not every team has such documents
patches/<upstream>/<stack>/<name>/NNNN-<feature|bugfix>-<name>.patch
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from patchctl.errors import Where, WrongUse
from patchctl.manifest import cache
from patchctl.manifest.files import ManifestFiles
from patchctl.manifest.problems import cleaned, did_you_mean, quoted, shown
from patchctl.manifest.series import Patch, missing_files, resolve, unlisted
from patchctl.manifest.types import Practice, Profile, Release, Requirement, Stack, Upstream, release_order

MARKER = Path("manifests") / "upstreams.yaml"
VARIABLE = "PATCHCTL_ROOT"


def find_root(explicit: Path | None, start: Path) -> Path:
    """The distribution's folder: --root, else PATCHCTL_ROOT, else the nearest folder from `start` upward.

    Raises WrongUse, which says what was looked for and where.
    """
    if explicit is not None:
        return _checked(explicit, "--root")
    named = os.environ.get(VARIABLE)
    if named:
        return _checked(Path(named), VARIABLE)
    here = start.resolve()
    for folder in (here, *here.parents):
        if (folder / MARKER).is_file():
            return folder
    bare = next((f for f in (here, *here.parents) if (f / "manifests").is_dir()), None)
    note = f"; {shown(bare / 'manifests')} is there and holds no upstreams.yaml" if bare else ""
    raise WrongUse(
        f"no distribution: looked for {MARKER} in {shown(here)} and every folder above it{note}",
        hint=f"change into a folder of the distribution, or name it with --root DIR or {VARIABLE}=DIR",
    )


def _checked(folder: Path, origin: str) -> Path:
    if not (folder / MARKER).is_file():
        raise WrongUse(
            f"{origin} names {cleaned(str(folder.absolute()))}, which holds no {MARKER}",
            hint="name the folder that holds manifests/, not manifests/ itself" if folder.name == "manifests" else None,
        )
    return folder.resolve()


@dataclass(frozen=True)
class Distribution:
    """Everything that manifests say, checked. Stacks are kept by (upstream, name), releases with the newest first.

    `profiles` has each profile on one release: the oldest that it stands on, unless patchctl.catalog.chosen_release chose another.
    `variants` has it on each of its releases, the newest first. `named_release` is the release that the run names, None for none.
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
        """Reads and checks the distribution. Raises InvalidManifest with every fault of every file.

        With `cache_dir`, manifests that were found right before are not validated again, and yaml is not imported.
        Whether the patch files are there is looked at every time.
        """
        files = ManifestFiles.scan(root)
        content = cache.find(cache_dir, files) if cache_dir else None
        if content is None or files.problems or missing_files(root, content.stacks):
            from patchctl.manifest.check import checked

            content = checked(root, files)
            if cache_dir:
                cache.keep(cache_dir, files, content)
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
        """Raises WrongUse, which names the nearest known one."""
        if name not in self.upstreams:
            raise WrongUse(f"no upstream {quoted(name)}{did_you_mean(name, self.upstreams)}")
        return self.upstreams[name]

    def profile(self, name: str) -> Profile:
        """On the release that was chosen. Raises WrongUse, which names the nearest known one, or the releases that it stands on."""
        if name not in self.variants:
            raise WrongUse(f"no profile {quoted(name)}{did_you_mean(name, self.variants)}")
        if name not in self.profiles:
            releases = ", ".join(p.release for p in self.variants[name] if p.release)
            stands = f"it stands on {releases}" if releases else "it names its stacks itself: take it without --release"
            raise WrongUse(f"the profile {name} does not stand on the release that was asked for", hint=stands)
        return self.profiles[name]

    def release(self, name: str) -> Release:
        """Raises WrongUse, which names the nearest known one."""
        if name not in self.releases:
            hint = f"there are {', '.join(self.releases)}" if self.releases else "this distribution has none"
            raise WrongUse(f"no release {quoted(name)}{did_you_mean(name, self.releases)}", hint=hint)
        return self.releases[name]

    def lineage(self, name: str) -> Iterator[str]:
        """A release, and those that it extends, the nearest first."""
        at: str | None = name
        while at is not None:
            yield at
            at = self.releases[at].extends

    def every_profile(self) -> list[Profile]:
        """Every profile on every release that it stands on."""
        return [profile for found in self.variants.values() for profile in found]

    def of_named_release(self, stack: Stack) -> bool:
        """Whether a stack is one of the release that the run names; where it names none, every stack is."""
        if self.named_release is None:
            return True
        users = (self.releases[self.named_release].stacks, *(p.stacks for p in self.profiles.values()))
        return any(stacks.get(stack.upstream) == stack.name for stacks in users)

    def each_release(self) -> list[Distribution]:
        """The distribution on the release that the run names; without one on each of them, the newest first, then with the
        profiles that stand on none: so every profile is met on every release that it stands on."""
        if self.named_release is not None:
            return [self]
        on = {name: {p.name: p for p in self.every_profile() if p.release == name} for name in (*self.releases, None)}
        return [replace(self, profiles=profiles) for profiles in on.values() if profiles]

    def held(self, name: str | None, release: str | None) -> Profile | None:
        """The profile that a workspace's state names, or None where it is gone. A state that names no release was written
        before there were several: it is of the oldest."""
        found = self.variants.get(name or "", ())
        if release is None:
            return found[-1] if found else None
        return next((profile for profile in found if profile.release == release), None)

    def stack(self, upstream: str, name: str) -> Stack:
        """Raises WrongUse, which names the nearest known one."""
        self.upstream(upstream)
        if (upstream, name) not in self.stacks:
            known = [s for u, s in self.stacks if u == upstream]
            raise WrongUse(f"no stack {quoted(name)} of {upstream}{did_you_mean(name, known)}")
        return self.stacks[upstream, name]

    def stacks_of(self, profile: Profile) -> dict[str, Stack]:
        """The stacks of a profile by upstream, in the order of upstreams.yaml."""
        return {u: self.stack(u, profile.stacks[u]) for u in self.upstreams if u in profile.stacks}

    def patches(self, stack: Stack) -> list[Patch]:
        """The patches of a stack in the order they apply, `extends` and `replace` resolved."""
        return resolve(stack, self.stacks)

    def patch_files(self, stack: Stack) -> list[Path]:
        """The files of `patches`, below the root."""
        return [self.root / patch.path for patch in self.patches(stack)]

    def stack_file(self, stack: Stack) -> Path:
        return self.root / "manifests" / "stacks" / stack.upstream / f"{stack.name}.yaml"

    def profile_file(self, profile: Profile) -> Path:
        return self.root / "manifests" / "profiles" / f"{profile.name}.yaml"

    def unlisted_files(self) -> list[Path]:
        """What lies in patches/ and belongs to no stack: a patch that somebody forgot to list, or to delete."""
        return unlisted(self.root, self.stacks)

    def where(self, manifest: Path, *key: str | int) -> Where:
        """The line of a key of a manifest. Reads the file again: only errors and findings need it."""
        from patchctl.manifest.load import positions_of

        positions = positions_of(manifest)
        return Where(positions.file, positions.place(key, at="key")[0])
