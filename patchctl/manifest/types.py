"""The types of manifests.

Standard dataclasses whose annotations say what is allowed, by the markers below: `load` checks files against them,
and `schema` derives the editors' JSON Schemas from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from patchctl.doc import Doc

FORMAT = 1
"""The version of the manifest format, in each file as `schema: 1`."""


class Pattern:
    """A string that must match `regex` in full; `says` describes it in messages."""

    def __init__(self, regex: str, says: str) -> None:
        self.regex = regex
        self.says = says


class Only:
    """An integer with one allowed value. `Literal[1]` would accept `true` and `1.0`, which equal 1 in Python."""

    def __init__(self, value: int) -> None:
        self.value = value


class Written:
    """A value for another parser, kept as written: 1e-6 stays 1e-6, True stays True."""


class OneOrMore:
    """A list that may be written as its only item."""


# No component starts with a dot, so neither `..` nor any spelling of `.git` matches (CVE-2014-9390); `git~1` is its
# Windows alias, and the other excluded names are run by every interpreter with the folder on its path.
_PATH = (
    r"(?!(.*/)?[gG][iI][tT]~)(?!.*\.[pP][tT][hH]$)(?!(site|user)customize\.py$)"
    r"[A-Za-z0-9_][A-Za-z0-9_.+~-]*(/[A-Za-z0-9_][A-Za-z0-9_.+~-]*)*"
)
# No password; no host that starts with '-', which ssh would read as an option (CVE-2017-1000117).
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
ReleaseName = Annotated[str, Pattern(_RELEASE, "a release name, YEAR.MONTH or YEAR.MONTH.N, quoted")]
Releases = Annotated[
    str,
    Pattern(
        rf"{_RELEASE}|(>=|<){_RELEASE}(, ?(>=|<){_RELEASE})*",
        "a release name, YEAR.MONTH, or limits (>=YEAR.MONTH, <YEAR.MONTH), quoted",
    ),
]
ObjectId = Annotated[str, _OBJECT_ID]
Sha256 = Annotated[str, _SHA256]
Name = Annotated[str, Pattern(r"[a-z0-9][a-z0-9._-]*", "a name of lower-case letters, digits, '.', '_' and '-'")]
# `shared` is a folder next to those of an upstream's stacks.
StackName = Annotated[
    str,
    Pattern(r"(?!shared$)[a-z0-9][a-z0-9._-]*", "a name of lower-case letters, digits, '.', '_' and '-', not 'shared'"),
]
Feature = Annotated[str, Pattern(r"[a-z0-9][a-z0-9_]*(@[a-z0-9][a-z0-9._-]*)?", "a feature name, or feature@upstream")]
RelativePath = Annotated[
    str, Pattern(_PATH, "a relative path, without names that start with a dot or files that Python runs at startup")
]
PatchFile = Annotated[
    str,
    Pattern(
        r"[0-9]{4}-(feature|bugfix)-[a-z0-9_]+\.patch", "a file name NNNN-feature-NAME.patch or NNNN-bugfix-NAME.patch"
    ),
]
GitUrl = Annotated[str, Pattern(_URL, "an https://, ssh://, git:// or file:/// address without a password")]
Tag = Annotated[str, Pattern(r"(?!-)(?!.*\.\.)[A-Za-z0-9._+/@-]+", "a tag name")]
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
        "a distribution name with optional limits, such as xgrammar==0.1.30",
    ),
]
Import = Annotated[
    str, Pattern(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", "the dotted name of an import package")
]
DocumentedAt = Annotated[
    str, Pattern(r"docs/([\w-]+/)*[\w.-]+\.md(#[\w-]+)?", "a page below docs/, with #ANCHOR or without")
]
Text = Annotated[str, Pattern(r"[\s\S]*\S[\s\S]*", "a non-empty string")]
Expression = Annotated[str, Pattern(r"\S[^\n]*", "a regular expression")]
Address = Annotated[str, Pattern(r"https://[!-~]+", "an https:// address")]
Word = Annotated[str, Pattern(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", "a word of letters, digits, '_', '.', '/' and '-'")]
_LINE = "a one-line string, number, boolean, null, or a list of these"
Value = Annotated[str, Written(), Pattern(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*", _LINE)]
FormatVersion = Annotated[int, Only(FORMAT), Doc("The format version of this file.")]


@dataclass(frozen=True)
class Sdist:
    """The source distribution with the pin's files: its version and the archive's sha256."""

    version: Annotated[Version, Doc("Its version on the package index.")]
    sha256: Annotated[Sha256, Doc("The digest of the .tar.gz as the index serves it.")]
    untracked: Annotated[
        dict[RelativePath, Text],
        Doc(
            "Files or folders of the archive that the pinned commit does not track, such as a submodule's files, with"
            " the reason."
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class Pin:
    """One exact revision.

    `tree` is None if no full clone was at hand to find it, `commit` if only the source distribution is pinned.
    """

    commit: Annotated[ObjectId | None, Doc("The full commit id; null if only the source distribution is pinned.")]
    tree: Annotated[ObjectId | None, Doc("The commit's tree id; null if unknown.")] = None
    tag: Annotated[Tag | None, Doc("The tag that named the commit; for people, never resolved.")] = None
    sdist: Annotated[Sdist | None, Doc("The source distribution with the same files; null if there is none.")] = None

    @property
    def identity(self) -> str:
        """The pin's unique name: the commit, else `sdist:` and the archive's sha256."""
        return self.commit or f"sdist:{self.sdist.sha256 if self.sdist else 'none'}"


@dataclass(frozen=True)
class GeneratedFile:
    """A file that upstream's build writes and the package needs at run time; written in every form, never tracked."""

    path: Annotated[RelativePath, Doc("Its path in the tree.")]
    content: Annotated[str, Doc("The whole content of the file.")]
    why: Annotated[Text, Doc("What reads it, and what breaks without it.")]


@dataclass(frozen=True)
class Gain:
    """What a feature brings, as far as it was shown."""

    what: Annotated[Text, Doc("The figure and what it is of.")]
    kind: Annotated[
        list[Literal["measured", "counted", "simulated", "theirs", "reasoned", "enables"]],
        Doc(
            "How it was shown: `measured` here, `counted` (bytes, shapes), `simulated`, `theirs` (a figure of those who needed"
            " the feature), `reasoned` only; or it `enables` what upstream cannot do."
        ),
    ]
    page: Annotated[DocumentedAt | None, Doc("The page with the figure.")] = None


@dataclass(frozen=True)
class Stack:
    """manifests/stacks/UPSTREAM/NAME.yaml: a pin, and the ordered patches for the upstream at that pin.

    With `extends`, the patches of that stack (same upstream, same pin) come first; `replace` maps one of its files to
    one of ours, in its place.
    """

    schema: FormatVersion
    upstream: Annotated[Name, Doc("The upstream, as in upstreams.yaml and this file's folder.")]
    name: Annotated[StackName, Doc("The stack's name, equal to this file's name.")]
    pin: Annotated[Pin, Doc("The exact revision that the patches are for.")]
    patches: Annotated[list[PatchFile], Doc("Files in patches/UPSTREAM/NAME/FEATURE/, in the order they apply.")] = (
        field(default_factory=list)
    )
    extends: Annotated[Name | None, Doc("A stack of the same upstream and pin whose patches come first.")] = None
    comes_from: Annotated[
        Name | None,
        Doc(
            "The stack of the same upstream, at another pin, that this one was derived from. Features without tests or"
            " mutations here use those of that stack."
        ),
    ] = None
    replace: Annotated[
        dict[PatchFile, PatchFile], Doc("Patches of the extended stack, with the patch that replaces each.")
    ] = field(default_factory=dict)
    dropped: Annotated[
        dict[Feature, Text], Doc("Features of the `comes_from` stack that this one leaves out, with the reason.")
    ] = field(default_factory=dict)
    postponed: Annotated[
        dict[Feature, Text],
        Doc("Features of the `comes_from` stack not ported yet, with the reason and what they wait for."),
    ] = field(default_factory=dict)
    gains: Annotated[
        dict[Feature, Gain],
        Doc(
            "What features bring. A feature without an entry here has that of the stack this one comes from or extends."
        ),
    ] = field(default_factory=dict)
    generated: Annotated[list[GeneratedFile], Doc("Files that upstream's build would write.")] = field(
        default_factory=list
    )
    unlinted: Annotated[
        dict[Name, Text],
        Doc(
            "Rules for single patch files (docs/lint-rules.md) that imported patches of this stack may break, with the"
            " reason."
        ),
    ] = field(default_factory=dict)
    note: Annotated[Text | None, Doc("Additional information for readers.")] = None


@dataclass(frozen=True)
class Regenerated:
    """Files that upstream tracks but generates with a script of its own: they are regenerated, never merged."""

    prefix: Annotated[RelativePath, Doc("The common path prefix of the files.")]
    script: Annotated[RelativePath, Doc("Upstream's script that writes them; it runs in the tree.")]
    needs: Annotated[Import, Doc("An import package that the script's Python needs.")]


@dataclass(frozen=True)
class Companions:
    """Where an upstream names the revisions of other upstreams that it supports, such as its image's Dockerfile."""

    file: Annotated[
        Expression,
        Doc(
            "A regular expression that matches the file's whole path; if several files match, the newest name is used."
        ),
    ]
    revisions: Annotated[
        dict[Name, Expression],
        Doc("Other upstreams, each with a regular expression whose group captures its tag or branch in that file."),
    ]


@dataclass(frozen=True)
class Made:
    """A file of a new stack that a Python program of the distribution writes: PROGRAM TREE --out FILE, TREE being patched."""

    folder: Annotated[RelativePath, Doc("The folder of these files.")]
    suffix: Annotated[Text, Doc("The suffix of a file; before it stands the stack's name.")]
    program: Annotated[RelativePath, Doc("The program.")]
    needs: Annotated[Import, Doc("An import package that the program's Python needs.")]


@dataclass(frozen=True)
class Follows:
    """What a new stack asks for besides patches, locks and pages. `bump` makes the file, or names the command."""

    what: Annotated[Text, Doc("What it is, in a few words.")]
    command: Annotated[Text, Doc("The command for a person; `{release}` stands for the new release's name.")]
    made: Annotated[Made | None, Doc("The file to make; null if only a person can do it.")] = None


@dataclass(frozen=True)
class Titles:
    """The form of a pull request's title; of our subjects, `AREA: WHAT`, it has {area} and {what}."""

    bugfix: Annotated[Text, Doc("For patches without a switch.")]
    feature: Annotated[Text, Doc("For patches with one.")]
    areas: Annotated[dict[Text, Text], Doc("Our areas, with upstream's word; others stay as they are.")] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Upstream:
    """A project that we patch, and where its source comes from."""

    summary: Annotated[Text, Doc("What it is, in one line.")]
    license: Annotated[Text, Doc("Its licence, as an SPDX expression.")]
    git: Annotated[list[GitUrl], Doc("Repositories, tried in order.")] = field(default_factory=list)
    sdist: Annotated[Distributed | None, Doc("Its name on the package index; null if it is not there.")] = None
    packages: Annotated[
        dict[Import, RelativePath], Doc("Import packages that it provides, with the folder of each.")
    ] = field(default_factory=dict)
    regenerated: Annotated[Regenerated | None, Doc("Files that upstream generates with a script.")] = None
    follows: Annotated[list[Follows], Doc("What a new stack asks for besides patches, locks and pages.")] = field(
        default_factory=list
    )
    releases: Annotated[Text | None, Doc("The version prefix of its release branches; null if releases are tags.")] = (
        None
    )
    companions: Annotated[
        Companions | None, Doc("Where it names the revisions of other upstreams that it supports.")
    ] = None
    titles: Annotated[Titles | None, Doc("The form of its pull requests' titles; null where any will do.")] = None
    note: Annotated[Text | None, Doc("Additional information for readers.")] = None


@dataclass(frozen=True)
class Requirement:
    """A runtime requirement that we do not patch: torch_npu, torch, CANN, the driver."""

    summary: Annotated[Text, Doc("What it is, in one line.")]
    kind: Annotated[
        Literal["python", "system"], Doc("python: a distribution installed with the frameworks; system: anything else.")
    ]
    distribution: Annotated[Distributed | None, Doc("Its name on the package index, for kind python.")] = None
    note: Annotated[Text | None, Doc("Additional information for readers.")] = None


@dataclass(frozen=True)
class Upstreams:
    """manifests/upstreams.yaml: the patched projects and their runtime requirements."""

    schema: FormatVersion
    upstreams: Annotated[dict[Name, Upstream], Doc("The patched projects.")]
    requirements: Annotated[dict[Name, Requirement], Doc("Unpatched runtime requirements of profiles.")] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class PinnedUpstream:
    """An upstream that a release needs at one revision, and that we neither patch nor fetch."""

    summary: Annotated[Text, Doc("What it is, and what needs it.")]
    git: Annotated[GitUrl, Doc("Its repository.")]
    commit: Annotated[ObjectId, Doc("The full commit id.")]
    tag: Annotated[Tag | None, Doc("The tag that named the commit; for people, never resolved.")] = None


@dataclass(frozen=True)
class Images:
    """The base images of scripts/build_image.sh."""

    base: Annotated[Text | None, Doc("Base of Dockerfile: CANN and Python.")] = None
    into: Annotated[Text | None, Doc("Base of Dockerfile.into: an image with the upstreams installed.")] = None


@dataclass(frozen=True)
class Release:
    """manifests/releases/NAME.yaml: the stacks that upstreams support together, for every profile that supports it."""

    schema: FormatVersion
    name: Annotated[ReleaseName, Doc("The release's name, equal to this file's name. Later names are newer releases.")]
    summary: Annotated[Text, Doc("What it is, in one line.")]
    extends: Annotated[
        ReleaseName | None, Doc("The release to inherit from: stacks, runtime and every other key not set here.")
    ] = None
    stacks: Annotated[dict[Name, Name], Doc("The stack of each upstream.")] = field(default_factory=dict)
    runtime: Annotated[
        dict[Name, Specifier], Doc("The version of each requirement that the stacks were chosen for.")
    ] = field(default_factory=dict)
    requirements: Annotated[
        Name | None, Doc("The folder in manifests/requirements/ whose lock is installed; null for none.")
    ] = None
    pinned: Annotated[dict[Name, PinnedUpstream], Doc("Unpatched upstreams needed in addition to the stacks.")] = field(
        default_factory=dict
    )
    environment: Annotated[
        Name | None,
        Doc(
            "The folder in tests/behaviour/environments/ that defines the environment for behaviour tests; null for none."
        ),
    ] = None
    images: Annotated[Images, Doc("The base images.")] = field(default_factory=Images)
    stays: Annotated[
        dict[Name, Text],
        Doc("Why an upstream stays at its stack although it has newer releases; `outdated` repeats it."),
    ] = field(default_factory=dict)
    note: Annotated[Text | None, Doc("Additional information for readers.")] = None

    @property
    def python(self) -> str | None:
        """The Python version that `runtime` names, as in "3.12"; None if it names none."""
        match = re.match(r"[0-9]+\.[0-9]+", self.runtime.get("python", ""))
        return match[0] if match else None

    def over(self, base: Release) -> Release:
        """Return this release with whatever it does not set itself taken from `base`."""
        return replace(
            self,
            stacks=base.stacks | self.stacks,
            runtime=base.runtime | self.runtime,
            pinned={n: p for n, p in base.pinned.items() if n not in self.stacks} | self.pinned,
            requirements=self.requirements or base.requirements,
            environment=self.environment or base.environment,
            stays={u: why for u, why in base.stays.items() if u not in self.stacks} | self.stays,
            images=Images(self.images.base or base.images.base, self.images.into or base.images.into),
        )


def release_order(name: str) -> tuple[int, ...]:
    """Return the sort key of a release name, oldest first."""
    return tuple(int(part) for part in name.split("."))


def among(releases: str, name: str) -> bool:
    """Whether a release name equals `releases`, or is within its limits."""
    if releases[0] not in "<>":
        return releases == name
    limits = [limit.strip() for limit in releases.split(",")]
    least = [release_order(limit[2:]) for limit in limits if limit[0] == ">"]
    below = [release_order(limit[1:]) for limit in limits if limit[0] == "<"]
    return all(one <= release_order(name) for one in least) and all(release_order(name) < one for one in below)


@dataclass(frozen=True)
class OnRelease:
    """How a profile differs from a release that it supports."""

    stacks: Annotated[dict[Name, Name], Doc("The stack to use instead of the release's, by upstream.")] = field(
        default_factory=dict
    )
    leaves_out: Annotated[list[Name], Doc("Upstreams of the release that the profile does not need.")] = field(
        default_factory=list
    )
    without: Annotated[list[Feature], Doc("Features that the profile leaves out.")] = field(default_factory=list)
    requirements: Annotated[
        Literal["of the release", "none"], Doc("none: the release's requirements are not installed for it.")
    ] = "of the release"


def profile_options(name: str, release: str | None) -> str:
    """Return the options that select this profile on this release."""
    return f"--profile {name} --release {release}" if release else f"--profile {name}"


@dataclass(frozen=True)
class Profile:
    """manifests/profiles/NAME.yaml: what a model is trained with.

    As written, it names the releases it supports, or its own stacks, `without` and runtime. `on` returns it on one
    release, with that release's stacks and runtime; everything but the checks of manifests uses that form.
    """

    schema: FormatVersion
    name: Annotated[Name, Doc("The profile's name, equal to this file's name.")]
    summary: Annotated[Text, Doc("What it is for, in one line.")]
    releases: Annotated[
        dict[Releases, OnRelease],
        Doc("Supported releases, by name or limits, with the profile's differences on each; {} for none."),
    ] = field(default_factory=dict)
    stacks: Annotated[dict[Name, Name], Doc("Without releases: the stack of each upstream.")] = field(
        default_factory=dict
    )
    without: Annotated[list[Feature], Doc("Features that the profile leaves out on every release.")] = field(
        default_factory=list
    )
    runtime: Annotated[
        dict[Name, Specifier], Doc("Without releases: the version of each requirement that the stacks were chosen for.")
    ] = field(default_factory=dict)
    requirements: Annotated[
        Name | None,
        Doc("Without releases: the folder in manifests/requirements/ whose lock is installed; null for none."),
    ] = None
    note: Annotated[Text | None, Doc("Additional information for readers.")] = None

    @property
    def release(self) -> str | None:
        """The release of a profile returned by `on`; None if it names its stacks itself."""
        return next(iter(self.releases), None)

    @property
    def options(self) -> str:
        """The options that select this profile on this release."""
        return profile_options(self.name, self.release)

    def is_for(self, release: str) -> bool:
        """Whether it supports the release of this name."""
        return any(among(releases, release) for releases in self.releases)

    def on(self, chosen: Release) -> Profile:
        """Return the profile on one of its releases."""
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
    """A switch under the name used in a practice document, and the features that replace it here."""

    seeds: Annotated[list[Text], Doc("The documents that use the name.")]
    features: Annotated[list[Feature], Doc("Our features that replace it; empty if none does.")] = field(
        default_factory=list
    )
    note: Annotated[Text | None, Doc("What differs, or why nothing replaces it.")] = None


@dataclass(frozen=True)
class Practice:
    """manifests/practice.yaml: switches named in practice documents, and their equivalents here."""

    schema: FormatVersion
    switches: Annotated[dict[Text, Named], Doc("Switches, as the documents write them.")]
    documents: Annotated[dict[Text, Text], Doc("Titles of the documents by the numbers that sources cite.")] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class ManifestContent:
    """The content of all manifests of a distribution. Stacks are keyed by (upstream, name)."""

    upstreams: Upstreams
    stacks: Mapping[tuple[str, str], Stack]
    profiles: Mapping[str, Profile]
    practice: Practice | None = None
    releases: Mapping[str, Release] = field(default_factory=dict)
