"""What manifests hold, as plain data.

Standard dataclasses whose annotations say what may stand there, by the markers below: `load` holds a file against them, and
`schema` derives the JSON Schema of the editors from the same definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from patchctl.doc import Doc

FORMAT = 1
"""The version of the manifests' own format, in each file as `schema: 1`."""


class Pattern:
    """A string that must match `regex` as a whole; `says` is what a person reads when it does not."""

    def __init__(self, regex: str, says: str) -> None:
        self.regex = regex
        self.says = says


class Only:
    """A whole number with one allowed value. `Literal[1]` would take `true` and `1.0`, which equal 1 in Python."""

    def __init__(self, value: int) -> None:
        self.value = value


class Written:
    """A value for somebody else's parser, kept as it is written: 1e-6 stays 1e-6, True stays True."""


class OneOrMore:
    """A list that may be written as its only item."""


# No part begins with a dot, so neither `..` nor any spelling of `.git` is one (CVE-2014-9390); `git~1` is its Windows
# alias, and the other names that are left out are run by every interpreter that has the folder on its path.
_PATH = (
    r"(?!(.*/)?[gG][iI][tT]~)(?!.*\.[pP][tT][hH]$)(?!(site|user)customize\.py$)"
    r"[A-Za-z0-9_][A-Za-z0-9_.+~-]*(/[A-Za-z0-9_][A-Za-z0-9_.+~-]*)*"
)
# No user with a password; no host that begins with '-', which ssh takes for an option (CVE-2017-1000117).
_HOST = r"(?!-)[A-Za-z0-9._:\[\]-]+"
_REST = r"/[!-?A-~]*"
_URL = rf"(https|git)://{_HOST}{_REST}|ssh://([A-Za-z0-9_.]+@)?{_HOST}{_REST}|file:///[^\s\x00-\x1f\x7f-\x9f]+"
_VERSION = r"[0-9][0-9A-Za-z.+!_-]*"
LIMIT = r"(==|>=|<=|!=|~=|<|>) ?[0-9][0-9A-Za-z.+!_-]*(\.\*)?"
_SPECIFIER = r"((==|>=|<=|!=|~=|<|>) ?)?[0-9][0-9A-Za-z.+!_-]*(\.\*)?"

_OBJECT_ID = Pattern(r"[0-9a-f]{40}", "a full git object id: 40 lower-case hexadecimal digits, quoted")
_SHA256 = Pattern(r"[0-9a-f]{64}", "a sha256: 64 lower-case hexadecimal digits, quoted")
DIGESTS = (_OBJECT_ID, _SHA256)

_RELEASE = r"[0-9]{4}\.(0[1-9]|1[0-2])(\.[0-9]{1,4})?"
ReleaseName = Annotated[str, Pattern(_RELEASE, "a release's name, YEAR.MONTH or YEAR.MONTH.N, quoted")]
Releases = Annotated[
    str,
    Pattern(
        rf"{_RELEASE}|(>=|<){_RELEASE}(, ?(>=|<){_RELEASE})*",
        "a release's name, YEAR.MONTH, or limits of names (>=YEAR.MONTH, <YEAR.MONTH), quoted",
    ),
]
ObjectId = Annotated[str, _OBJECT_ID]
Sha256 = Annotated[str, _SHA256]
Name = Annotated[str, Pattern(r"[a-z0-9][a-z0-9._-]*", "a name of lower-case letters, digits, '.', '_' and '-'")]
Feature = Annotated[
    str, Pattern(r"[a-z0-9][a-z0-9_]*(@[a-z0-9][a-z0-9._-]*)?", "a feature's name, or feature@upstream")
]
RelativePath = Annotated[
    str,
    Pattern(_PATH, "a relative path of plain names, none beginning with a dot, to no file that Python runs at start"),
]
PatchFile = Annotated[
    str,
    Pattern(
        r"[0-9]{4}-(feature|bugfix)-[a-z0-9_]+\.patch", "a file name NNNN-feature-NAME.patch or NNNN-bugfix-NAME.patch"
    ),
]
GitUrl = Annotated[str, Pattern(_URL, "an https://, ssh://, git:// or file:/// address without a password")]
Tag = Annotated[str, Pattern(r"(?!-)(?!.*\.\.)[A-Za-z0-9._+/-]+", "a tag's name")]
Version = Annotated[str, Pattern(_VERSION, "a version, quoted")]
Specifier = Annotated[
    str,
    Pattern(
        rf"{_SPECIFIER}(, ?{_SPECIFIER})*",
        "a version ('2.9.0'), a family ('25.3.*') or limits ('>=2.47.1,<=2.48.0'), quoted",
    ),
]
Distributed = Annotated[
    str, Pattern(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "the name of a distribution on a package index")
]
PackageRequirement = Annotated[
    str,
    Pattern(
        rf"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9,._-]+\])?( ?{LIMIT}(, ?{LIMIT})*)?",
        "a distribution's name, with limits where there are some: xgrammar==0.1.30",
    ),
]
Import = Annotated[
    str, Pattern(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", "the dotted name of an import package")
]
Text = Annotated[str, Pattern(r"[\s\S]*\S[\s\S]*", "a text that is not empty")]
Address = Annotated[str, Pattern(r"https://[!-~]+", "an https:// address")]
Word = Annotated[str, Pattern(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", "a word of letters, digits, '_', '.', '/' and '-'")]
_LINE = "a text of one line, a number, true, false, null or a list of them"
Value = Annotated[str, Written(), Pattern(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*", _LINE)]
FormatVersion = Annotated[int, Only(FORMAT), Doc("The version of this file's format.")]


@dataclass(frozen=True)
class Sdist:
    """The source distribution that carries the pin's files: its version and the sha256 of the archive."""

    version: Annotated[Version, Doc("Its version on the package index.")]
    sha256: Annotated[Sha256, Doc("The digest of the .tar.gz as the index serves it.")]
    untracked: Annotated[
        dict[RelativePath, Text],
        Doc(
            "A file or folder of the archive that the pinned commit does not track, as a submodule's files: why it is there."
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class Pin:
    """One exact revision. `tree` is null where no full copy of the repository was at hand to establish it, `commit` where the
    source distribution alone is pinned."""

    commit: Annotated[ObjectId | None, Doc("The commit, in full; null where the source distribution alone is pinned.")]
    tree: Annotated[ObjectId | None, Doc("The commit's tree; null where nobody has established it.")] = None
    tag: Annotated[Tag | None, Doc("The tag that named the commit; for people, never resolved.")] = None
    sdist: Annotated[Sdist | None, Doc("The source distribution with the same files; null where there is none.")] = None

    @property
    def identity(self) -> str:
        """What tells it from every other pin: the commit, else `sdist:` and the sha256 of the archive."""
        return self.commit or f"sdist:{self.sdist.sha256 if self.sdist else 'none'}"


@dataclass(frozen=True)
class GeneratedFile:
    """A file that upstream's build writes and the package needs to run; materialised in every form, never tracked."""

    path: Annotated[RelativePath, Doc("Where in the tree.")]
    content: Annotated[str, Doc("The whole text of the file.")]
    why: Annotated[Text, Doc("Who reads it, and what goes wrong without it.")]


@dataclass(frozen=True)
class Stack:
    """A pin and the ordered patches for one upstream at that pin.

    With `extends`, the patches of that stack (same upstream, same pin) come first; `replace` maps one of its file names
    to one of ours, in place.
    """

    schema: FormatVersion
    upstream: Annotated[Name, Doc("The upstream, as in upstreams.yaml and as the folder of this file.")]
    name: Annotated[Name, Doc("The stack's name, as this file's name.")]
    pin: Annotated[Pin, Doc("The exact revision that the patches are for.")]
    patches: Annotated[list[PatchFile], Doc("Files in patches/UPSTREAM/NAME/FEATURE/, in the order they apply.")] = (
        field(default_factory=list)
    )
    extends: Annotated[Name | None, Doc("A stack of the same upstream and pin whose patches come first.")] = None
    comes_from: Annotated[
        Name | None,
        Doc(
            "The stack of the same upstream that this one was made from, at another pin: a feature that has no tests or"
            " mutations here has those that it has there."
        ),
    ] = None
    replace: Annotated[
        dict[PatchFile, PatchFile], Doc("A patch of the extended stack: the one of ours in its place.")
    ] = field(default_factory=dict)
    dropped: Annotated[dict[Feature, Text], Doc("A feature of that stack that this one does not have: why.")] = field(
        default_factory=dict
    )
    postponed: Annotated[
        dict[Feature, Text],
        Doc("A feature of that stack that this one does not have yet: why, and who or what it waits for."),
    ] = field(default_factory=dict)
    generated: Annotated[list[GeneratedFile], Doc("Files that upstream's build would write.")] = field(
        default_factory=list
    )
    unlinted: Annotated[
        dict[Name, Text],
        Doc("A rule about one patch file that imported patches of this stack need not keep (docs/lint-rules.md): why."),
    ] = field(default_factory=dict)
    note: Annotated[Text | None, Doc("Anything a reader should know.")] = None


@dataclass(frozen=True)
class Regenerated:
    """Files that upstream tracks, and makes with a script of its own: they are never merged, but made anew."""

    prefix: Annotated[RelativePath, Doc("What their paths begin with.")]
    script: Annotated[RelativePath, Doc("The script of upstream's that writes them, run in the tree.")]
    needs: Annotated[Import, Doc("A package that its Python needs to have.")]


@dataclass(frozen=True)
class Upstream:
    """A project that we patch, and where its source comes from."""

    summary: Annotated[Text, Doc("What it is, in a line.")]
    license: Annotated[Text, Doc("Its licence, as an SPDX expression.")]
    git: Annotated[list[GitUrl], Doc("Repositories, tried in order.")] = field(default_factory=list)
    sdist: Annotated[Distributed | None, Doc("Its name on the package index; null where it is not there.")] = None
    packages: Annotated[dict[Import, RelativePath], Doc("Import packages that it provides: the folder of each.")] = (
        field(default_factory=dict)
    )
    regenerated: Annotated[Regenerated | None, Doc("Files that a script of upstream's writes.")] = None
    releases: Annotated[
        Text | None,
        Doc("What stands before the version in the names of its release branches; null where tags name it."),
    ] = None
    note: Annotated[Text | None, Doc("Anything a reader should know.")] = None


@dataclass(frozen=True)
class Requirement:
    """Something that a profile runs on and that we do not patch: torch_npu, torch, CANN, the driver."""

    summary: Annotated[Text, Doc("What it is, in a line.")]
    kind: Annotated[
        Literal["python", "system"],
        Doc("python: a distribution installed beside the frameworks; system: anything else."),
    ]
    distribution: Annotated[Distributed | None, Doc("Its name on the package index, for kind python.")] = None
    note: Annotated[Text | None, Doc("Anything a reader should know.")] = None


@dataclass(frozen=True)
class Upstreams:
    """manifests/upstreams.yaml: the projects that are patched, and what they run on."""

    schema: FormatVersion
    upstreams: Annotated[dict[Name, Upstream], Doc("The projects that are patched.")]
    requirements: Annotated[dict[Name, Requirement], Doc("What profiles run on, and nobody here patches.")] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Pinned:
    """An upstream that a release needs at one revision, and that nobody here patches or fetches."""

    summary: Annotated[Text, Doc("What it is, and who needs it.")]
    git: Annotated[GitUrl, Doc("Its repository.")]
    commit: Annotated[ObjectId, Doc("The commit, in full.")]
    tag: Annotated[Tag | None, Doc("The tag that named the commit; for people, never resolved.")] = None


@dataclass(frozen=True)
class Images:
    """The images on which scripts/build_image.sh builds."""

    base: Annotated[Text | None, Doc("For Dockerfile: CANN and Python.")] = None
    into: Annotated[Text | None, Doc("For Dockerfile.into: one that has the upstreams.")] = None


@dataclass(frozen=True)
class Release:
    """manifests/releases/NAME.yaml: what upstreams support together, for every profile that stands on it."""

    schema: FormatVersion
    name: Annotated[ReleaseName, Doc("The release's name, as this file's name. A later one is the newer release.")]
    summary: Annotated[Text, Doc("What it is, in a line.")]
    extends: Annotated[
        ReleaseName | None,
        Doc("The release of which it has all that it does not say itself: stacks, runtime, the rest."),
    ] = None
    stacks: Annotated[dict[Name, Name], Doc("An upstream: the name of one of its stacks.")] = field(
        default_factory=dict
    )
    runtime: Annotated[dict[Name, Specifier], Doc("A requirement: the version that the stacks were chosen for.")] = (
        field(default_factory=dict)
    )
    requirements: Annotated[
        Name | None, Doc("The folder in manifests/requirements/ whose lock says what is installed; null for none.")
    ] = None
    pinned: Annotated[dict[Name, Pinned], Doc("Upstreams that are needed beside the stacks, and not patched.")] = field(
        default_factory=dict
    )
    environment: Annotated[
        Name | None,
        Doc("The folder in tests/behaviour/environments/ from which the environment of its behaviour tests is made."),
    ] = None
    images: Annotated[Images, Doc("What images of it are built on.")] = field(default_factory=Images)
    note: Annotated[Text | None, Doc("Anything a reader should know.")] = None

    def over(self, base: Release) -> Release:
        """With what `base`, which it extends, has and this one does not say."""
        return replace(
            self,
            stacks=base.stacks | self.stacks,
            runtime=base.runtime | self.runtime,
            pinned={n: p for n, p in base.pinned.items() if n not in self.stacks} | self.pinned,
            requirements=self.requirements or base.requirements,
            environment=self.environment or base.environment,
            images=Images(self.images.base or base.images.base, self.images.into or base.images.into),
        )


def release_order(name: str) -> tuple[int, ...]:
    """What releases are sorted by, the oldest first."""
    return tuple(int(part) for part in name.split("."))


def among(releases: str, name: str) -> bool:
    """Whether the name of a release is the one that `releases` says, or within its limits."""
    if releases[0] not in "<>":
        return releases == name
    limits = [limit.strip() for limit in releases.split(",")]
    least = [release_order(limit[2:]) for limit in limits if limit[0] == ">"]
    below = [release_order(limit[1:]) for limit in limits if limit[0] == "<"]
    return all(one <= release_order(name) for one in least) and all(release_order(name) < one for one in below)


@dataclass(frozen=True)
class OnRelease:
    """What a profile has otherwise than a release that it stands on."""

    stacks: Annotated[
        dict[Name, Name], Doc("An upstream of the release: another stack of it, in place of the release's.")
    ] = field(default_factory=dict)
    leaves_out: Annotated[list[Name], Doc("Upstreams of the release that the profile does not need.")] = field(
        default_factory=list
    )
    without: Annotated[list[Feature], Doc("Features that the profile leaves out.")] = field(default_factory=list)
    requirements: Annotated[
        Literal["of the release", "none"], Doc("none: of the release's requirements nothing is installed for it.")
    ] = "of the release"


def profile_options(name: str, release: str | None) -> str:
    """The options by which a verb takes the profile of this name on that release."""
    return f"--profile {name} --release {release}" if release else f"--profile {name}"


@dataclass(frozen=True)
class Profile:
    """What a model is trained with. Written, it names the releases that it stands on, or its own stacks, without and runtime.
    `on` gives it as it is on one release, with that release's stacks and runtime: so everybody but the checks of manifests has it.
    """

    schema: FormatVersion
    name: Annotated[Name, Doc("The profile's name, as this file's name.")]
    summary: Annotated[Text, Doc("What it is for, in a line.")]
    releases: Annotated[
        dict[Releases, OnRelease],
        Doc("Releases that it stands on, by name or limits: what it has otherwise there, {} for nothing."),
    ] = field(default_factory=dict)
    stacks: Annotated[dict[Name, Name], Doc("Without releases, an upstream: the name of one of its stacks.")] = field(
        default_factory=dict
    )
    without: Annotated[list[Feature], Doc("Features that the profile leaves out, on any release.")] = field(
        default_factory=list
    )
    runtime: Annotated[
        dict[Name, Specifier], Doc("Without releases, a requirement: the version that the stacks were chosen for.")
    ] = field(default_factory=dict)
    requirements: Annotated[
        Name | None,
        Doc("Without releases, the folder in manifests/requirements/ whose lock it installs; null for none."),
    ] = None
    note: Annotated[Text | None, Doc("Anything a reader should know.")] = None

    @property
    def release(self) -> str | None:
        """Of a profile that `on` gave, the release; None where it names its stacks itself."""
        return next(iter(self.releases), None)

    @property
    def options(self) -> str:
        """By which a verb takes it as it is here."""
        return profile_options(self.name, self.release)

    def is_for(self, release: str) -> bool:
        """Whether it stands on the release of this name."""
        return any(among(releases, release) for releases in self.releases)

    def on(self, chosen: Release) -> Profile:
        """The profile as it is on one of its releases."""
        own = next(own for releases, own in self.releases.items() if among(releases, chosen.name))
        stacks = {u: own.stacks.get(u, s) for u, s in chosen.stacks.items() if u not in own.leaves_out}
        return replace(
            self,
            releases={chosen.name: own},
            stacks=stacks,
            without=[*self.without, *own.without],
            runtime=chosen.runtime,
            requirements=chosen.requirements if own.requirements == "of the release" else None,
        )


@dataclass(frozen=True)
class Named:
    """A switch by the name that a document of the practice gives it, and what does its work here."""

    seeds: Annotated[list[Text], Doc("The documents that use the name.")]
    features: Annotated[list[Feature], Doc("Our features that do its work; empty where nothing here does.")] = field(
        default_factory=list
    )
    note: Annotated[Text | None, Doc("What differs, or why nothing does its work.")] = None


@dataclass(frozen=True)
class Practice:
    """manifests/practice.yaml: what documents of the practice call things, and what they are called here."""

    schema: FormatVersion
    switches: Annotated[dict[Text, Named], Doc("A switch as the documents write it.")]


@dataclass(frozen=True)
class Content:
    """What all the manifests of a distribution hold; no file of its own. Stacks are kept by (upstream, name)."""

    upstreams: Upstreams
    stacks: Mapping[tuple[str, str], Stack]
    profiles: Mapping[str, Profile]
    practice: Practice | None = None
    releases: Mapping[str, Release] = field(default_factory=dict)
