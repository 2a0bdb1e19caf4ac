"""The oldest release can be deleted: its manifests, what is said of it alone, the stacks and recipes that no other release has, and
`patchctl lock --pages`; nothing that stays reads any of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from distribution import REPO, run_patchctl
from pins import oldest

from patchctl.manifest.distribution import Distribution

pytestmark = pytest.mark.heavy("verifies the whole distribution")


def drop(root: Path, release: str) -> None:
    """Delete a release, what is of it alone (its coverage of the practice), its stacks and profiles that no other has."""
    dist = Distribution.load(root)
    kept = [one for one in dist.every_profile() if one.release != release]
    stacks = dist.stacks.keys() - {stack for one in kept for stack in one.stacks.items()}
    gone = [file for upstream, name in stacks for file in root.glob(f"manifests/*/{upstream}/{name}.*")]
    gone += [
        folder / upstream / name for upstream, name in stacks for folder in (root / "patches", root / "docs/patches")
    ]
    profiles = {one.name for one in dist.every_profile()} - {one.name for one in kept}
    gone += [root / f"manifests/profiles/{name}.yaml" for name in profiles]
    models = root / "manifests/models.yaml"
    for name in profiles:
        models.write_text(models.read_text().replace(f"profiles: [{name}]", "profiles: []"))
    gone += [file for file in root.glob("manifests/*.yaml") if f'\nrelease: "{release}"\n' in file.read_text()]
    for path in [*gone, *root.glob(f"manifests/*/{release}"), root / f"manifests/releases/{release}.yaml"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("without") / "distribution"
    left = shutil.ignore_patterns("__pycache__", ".*", "build", "workspace", "edit")
    for name in ("manifests", "patches", "docs", "scripts", "standins", "tests/behaviour"):
        shutil.copytree(REPO / name, root / name, ignore=left)
    for file in (*REPO.glob("README*"), *REPO.glob("Makefile")):
        shutil.copy(file, root)
    drop(root, oldest())
    done = run_patchctl(f"--root={root}", "lock", "--pages", home=root.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return root


@pytest.mark.parametrize(
    "words",
    ["verify --static", "list", "recipe list", "lock --check --offline --skip-unavailable"],
)
def test_what_stays_is_whole(root: Path, words: str) -> None:
    done = run_patchctl(f"--root={root}", *words.split(), home=root.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert oldest() not in Distribution.load(root).releases


def test_what_it_alone_had_is_gone(root: Path) -> None:
    before, after = Distribution.load(REPO), Distribution.load(root)
    assert len(after.stacks) < len(before.stacks)
    assert {*after.upstreams} == {*before.upstreams}
    assert after.every_profile()
