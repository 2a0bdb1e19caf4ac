"""`patchctl image verify`: the trees in an image, read back as `verify --workspace` reads them, and its labels.

Images and containers may be named as docker or podman know them.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from patchctl import process_group
from patchctl.check.workspace import verify_workspace
from patchctl.errors import WrongUse
from patchctl.findings import Finding, Report
from patchctl.image.image_archive import ImageFile, cut_links, open_image
from patchctl.manifest.distribution import Distribution
from patchctl.process_group import find_program
from patchctl.sbom.forms import statement_findings
from patchctl.scratch import scratch
from patchctl.source.types import ImageLimits
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line
from patchctl.workspace.state import WorkspaceState, in_profile, load_state
from patchctl.workspace.status import labels_of_profile, labels_of_trees

_DEFAULT = "/opt/patched"


@dataclass(frozen=True)
class VerifiedImage:
    """What was found in an image, and in which of its workspaces."""

    report: Report
    workspace: str
    profile: str | None
    release: str | None

    def __str__(self) -> str:
        profile = f"profile {self.profile}" if self.profile else "no profile"
        release = f" of release {self.release}" if self.profile and self.release else ""
        return one_line(f"the workspace {self.workspace}, {profile}{release}")


def verify_image(
    file: ImageFile,
    workspace: PurePosixPath | None,
    dist: Distribution | None,
    progress: Progress,
    statement: tuple[Path, bytes] | None = None,
    limits: ImageLimits | None = None,
) -> VerifiedImage:
    """Check every tree of an image, and that its labels, and a statement, name these trees. Runs nothing of the image.

    Raises what `open_image` and `verify_workspace` raise, and WrongUse for an image without a workspace.
    """
    with open_image(file, limits or ImageLimits()) as image, scratch("patchctl-image-") as root:
        named = image.environment.get("PATCHCTL_WORKSPACE", _DEFAULT)
        at = _inside(workspace or PurePosixPath(named), "the workspace")
        _refuse_mounts(file, at, [at])
        progress.note(f"reading {PurePosixPath(file.name).name}")
        image.unpack(root, [at])
        there = root / at.relative_to("/")
        state = load_state(there) if there.is_dir() else None
        if state is None:
            what = f"nothing was applied to {at} in this image"
            raise WrongUse(what, where=file.name, hint="name the image's workspace with --workspace /DIR")
        elsewhere = [
            _inside(PurePosixPath(tree.folder), f"the tree of {upstream}")
            for upstream, tree in state.trees.items()
            if tree.folder.startswith("/")
        ]
        _refuse_mounts(file, at, elsewhere)
        if elsewhere:
            image.unpack(root, elsewhere)
        cut_links(root, [at, *elsewhere])
        report = verify_workspace(there, dist, progress, within=root)
        report.findings[:] = [_in_image(one, root) for one in report.findings]
        if workspace is None and str(at) != _DEFAULT:
            message = f"the image's own PATCHCTL_WORKSPACE names {at}: what it has in {_DEFAULT}, the default, was not looked at"
            report.add([Finding("label", message, file.name, level="note")])
        if state.profile is None and state.trees:
            report.add(
                [Finding("tree-missing", "no profile is applied any more: nothing patched was verified", str(at))]
            )
        if image.labels is not None:
            report.add(_labels(image.labels, _held_labels(state, dist), file.name))
        if statement:
            said_in, data = statement
            report.add(statement_findings(data, said_in, state))
        return VerifiedImage(report, str(at), state.profile, state.release)


def _inside(folder: PurePosixPath, what: str) -> PurePosixPath:
    """A folder of the image, which its own environment and state may name. Raises WrongUse for one that could lead out of it."""
    if not folder.is_absolute() or ".." in folder.parts or len(folder.parts) == 1:
        raise WrongUse(
            f"{what} in the image is an absolute path below /, without `..`, and not {one_line(str(folder), 100)}",
            hint="--workspace /DIR",
        )
    return PurePosixPath("/", *folder.parts[1:])


def _refuse_mounts(file: ImageFile, workspace: PurePosixPath, folders: Sequence[PurePosixPath]) -> None:
    """Raise WrongUse where something is mounted in the container over one of these folders, above it or below it."""
    for place in map(PurePosixPath, file.mounted):
        for folder in folders:
            if place.is_relative_to(folder) or folder.is_relative_to(place):
                what = f"{one_line(str(place), 100)} is a mount: the container has other files in {one_line(str(folder), 100)} than its image"
                hint = f"in the container: `patchctl verify --workspace {shlex.quote(str(workspace))}`"
                raise WrongUse(what, where=file.name, hint=hint)


def _in_image(found: Finding, root: Path) -> Finding:
    """The finding with paths as they are in the image."""
    return replace(found, file=found.file.replace(str(root), ""), message=found.message.replace(str(root), ""))


def _held_labels(state: WorkspaceState, dist: Distribution | None) -> dict[str, str]:
    """The labels of an image with this workspace, as `status --labels` has them. Less `patchctl.version`: the patchctl that is in the
    image made them, not this one; and less those of the distribution where it does not have what was applied, which is a finding of
    its own.
    """
    skipped = {one.upstream for one in state.skipped}
    trees = {name: tree for name, tree in state.trees.items() if in_profile(tree) and name not in skipped}
    held = {"patchctl.profile": state.profile or "", **labels_of_trees(state.without, trees)}
    profile = dist.held(state.profile, state.release) if dist is not None else None
    if dist is None or profile is None or any((name, tree.stack) not in dist.stacks for name, tree in trees.items()):
        return held | {"patchctl.release": state.release or ""}
    return held | labels_of_profile(dist, profile, trees)


def _labels(labels: Mapping[str, str], held: Mapping[str, str], where: str) -> Iterator[Finding]:
    """Compare the labels that scripts/build_image.sh gave with those of what the image holds. An empty one says no more than none."""
    said = {name for name in labels if name.startswith(("patchctl.tree.", "patchctl.base."))}
    for name in sorted({*said, *held}):
        if labels.get(name, "") != held.get(name, ""):
            whose = "the lock files here give" if name == "patchctl.lock" else "the image holds"
            message = f"the label {name} is {labels.get(name) or 'not there'}, and {whose} {held.get(name) or 'none'}"
            yield Finding("label", message, where)


_ENGINES = ("docker", "podman")
_CONTAINER = "[{{json .Config}}, {{json .Mounts}}, {{json .HostConfig}}]"


def save_image(name: str, to: Path) -> ImageFile:
    """Write the files of a container, running or not, else an image, as the first engine that knows `name` has it.

    Raises WrongUse if none knows it, or the engine fails.
    """
    said = []
    for engine in filter(None, map(find_program, _ENGINES)):
        found = _ask(engine, "container", "inspect", "--format", _CONTAINER, "--", name)
        if found.returncode == 0:
            _write(engine, ["export", "--output", str(to), "--", name])
            config, mounts, host = json.loads(found.stdout)
            # docker and podman list what --tmpfs mounts apart from the others
            mounted = (*(one["Destination"] for one in mounts or []), *(host.get("Tmpfs") or {}))
            return ImageFile(to, name, config, mounted)
        found = _ask(engine, "image", "inspect", "--format", "{{.Id}}", "--", name)
        if found.returncode == 0:
            _write(engine, ["save", "--output", str(to), "--", name])
            return ImageFile(to, name)
        said.append(f"{Path(engine).name}: {_last_line(found)}")
    what = f"no such file, and no image or container that {' or '.join(_ENGINES)} knows"
    why = f" ({'; '.join(said)})" if said else ""
    raise WrongUse(what + why, where=name, hint="buildah has its own: `buildah push IMAGE oci-archive:image.tar`")


def _ask(engine: str, *args: str) -> subprocess.CompletedProcess[str]:
    return process_group.run([engine, *args], stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True)


def _write(engine: str, args: list[str]) -> None:
    done = _ask(engine, *args)
    if done.returncode != 0:
        raise WrongUse(
            f"{Path(engine).name} {args[0]} ended with {done.returncode}: {_last_line(done)}", where=args[-1]
        )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return ([line for line in done.stderr.splitlines() if line.strip()] or ["no word"])[-1].strip()
