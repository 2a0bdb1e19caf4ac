"""A small distribution that has the names of this one: its upstreams, stacks, releases and profiles, and of each stack the
features that the documents name, on sources of a few lines. What a document runs can be run on it as it is written."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Collection, Iterable
from pathlib import Path

import yaml
from distribution import REPO, Made, Patch, Upstream, git, make_distribution, write_files

from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Stack

# What the documents ask `blame` about.
_ASKED = "verl/workers/rollout/base.py"


def make_twin(folder: Path, features: Collection[str], revisions: Iterable[str], profile: str, release: str) -> Made:
    """In `folder`; each of `revisions` is a tag of every upstream, on a commit of its own. `home` has what a reader has by then: a
    workspace with `profile`, its bundle, an image with it, a series of mails, a log with a traceback, and clones where an image has sources."""
    real = Distribution.load(REPO)
    made = Made(folder / "distribution", folder / "origins", folder / "cache")
    write_files(made.root, {"manifests/upstreams.yaml": _upstreams(real, made.origins)})
    for one in real.releases.values():
        there = made.root / "manifests/stacks"  # two releases may have a stack
        new = [real.stack(u, s) for u, s in one.stacks.items() if not (there / u / f"{s}.yaml").exists()]
        part = make_distribution(folder / "parts" / one.name, [_upstream(stack, features, real) for stack in new])
        for stack in new:
            _take_over(part, made, stack)
        sets = {"schema": 1, "name": one.name, "summary": one.summary, "stacks": dict(one.stacks)}
        write_files(made.root, {f"manifests/releases/{one.name}.yaml": yaml.safe_dump(sets, sort_keys=False)})
    shutil.rmtree(folder / "parts")
    for name, found in real.variants.items():
        profiles = {
            "schema": 1,
            "name": name,
            "summary": "As the real one.",
            "releases": {p.release: {} for p in found if p.release},
        }
        write_files(made.root, {f"manifests/profiles/{name}.yaml": yaml.safe_dump(profiles, sort_keys=False)})
    for origin in made.origins.iterdir():
        for revision in revisions:
            git(origin, "commit", "--quiet", "--allow-empty", "-m", revision)
            git(origin, "tag", revision)
    made.good("lock")
    _what_a_reader_has(made, profile, release)
    return made


def _upstreams(real: Distribution, origins: Path) -> str:
    described = {
        name: {
            "summary": one.summary,
            "license": one.license,
            "git": [(origins / name).as_uri()],
            "packages": {_package(name): _package(name)},
        }
        for name, one in real.upstreams.items()
    }
    return yaml.safe_dump({"schema": 1, "upstreams": described}, sort_keys=False)


def _package(upstream: str) -> str:
    return upstream.replace("-", "_")


def _upstream(stack: Stack, features: Collection[str], real: Distribution) -> Upstream:
    """Each feature changes a module of its own; no file of two pins is the same."""
    own = [Path(p.path).parent.name for p in real.patches(stack)]
    package = _package(stack.upstream)
    first = f'"""{stack.upstream} {stack.name}."""\n'
    files = {f"{package}/{f}.py": f"{first}\n\ndef {f}():\n    return 0\n" for f in own if f in features or f == own[0]}
    patches = [
        Patch(Path(f).stem, {f: text.replace("return 0", "return 1")}, f"{package}: mend {Path(f).stem}")
        for f, text in files.items()
    ]
    asked = {_ASKED: first + "# a line\n" * 99} if stack.upstream == "verl" else {}
    return Upstream(stack.upstream, stack.name, {f"{package}/__init__.py": first, **files, **asked}, patches)


def _take_over(part: Made, made: Made, stack: Stack) -> None:
    """A stack of one made distribution into the other: its manifest, its patches, and its pin's commit under the pin's tag."""
    origin = made.origins / stack.upstream
    if not origin.is_dir():
        made.origins.mkdir(exist_ok=True)
        shutil.copytree(part.origins / stack.upstream, origin)
    else:
        git(origin, "fetch", "--quiet", str(part.origins / stack.upstream), "main")
        git(origin, "reset", "--quiet", "--hard", "FETCH_HEAD")
    manifest = f"manifests/stacks/{stack.upstream}/{stack.name}.yaml"
    tag = stack.pin.tag or stack.name
    git(origin, "tag", tag)
    text = (part.root / manifest).read_text().replace("pin:\n", f"pin:\n  tag: {tag}\n")
    write_files(made.root, {manifest: text})
    shutil.copytree(part.root / "patches" / stack.upstream, made.root / "patches" / stack.upstream, dirs_exist_ok=True)


def _what_a_reader_has(made: Made, profile: str, release: str) -> None:
    dist = Distribution.load(made.root)
    env, home = {"PATCHCTL_RELEASE": release}, made.cache.parent / "home"
    made.good("apply", "--profile", profile, env=env)
    made.good("bundle", "create", "--profile", profile, env=env)
    for name in ("image.tar", "root.tar"):  # as `docker export` has it
        with tarfile.open(home / name, "w") as image:
            image.add(home / "workspace", "opt/patched")
    made.good("edit", "verl", "--dir", "opened", env=env)
    asked = home / "opened" / _ASKED
    asked.write_text(asked.read_text() + "# one more\n")
    git(home / "opened", "commit", "--quiet", "-a", "-m", "rollout: say more\n\nIt is wanted.")
    git(home / "opened", "format-patch", "--quiet", "--full-index", "-1", "-o", str(home / "series"))
    mail = next((home / "series").iterdir())
    (home / "fix.mbox").write_bytes(mail.read_bytes())
    shutil.rmtree(home / "opened")
    packages = home / "opt/venv/lib/python3.11/site-packages"
    shutil.copytree(home / "workspace/verl/verl", packages / "verl")
    frame = f'  File "{packages / _ASKED}", line 64, in step\n    # a line\nValueError: no\n'
    (home / "worker.log").write_text(f"Traceback (most recent call last):\n{frame}")
    (home / "mirrors").symlink_to(made.origins)
    (home / "drift.json").write_text(made.patchctl("drift", "--matrix", "--json").stdout)
    oldest = next(stack for (upstream, _), stack in dist.stacks.items() if upstream == "verl")
    newer = git(made.origins / "verl", "describe", "--tags").strip()
    made.patchctl("drift", f"verl/{oldest.name}", "--against", newer, "--save-plan", "plan.json")
    for name in ("vllm", "vllm-ascend"):
        clone = home / "vllm-workspace" / name
        git(made.origins, "clone", "--quiet", str(made.origins / name), str(clone))
        git(clone, "checkout", "--quiet", dist.stack(name, dist.releases[release].stacks[name]).pin.identity)
