"""`patchctl requirements`, `lock --requirements`, and who reads the lock: install and doctor.

Resolving asks a package index: those tests say so where it cannot be reached."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, REPO, Made, make_distribution
from packaging.requirements import Requirement
from pins import newest, oldest
from requirement_sets import NAME, NEEDS, SET, VERSIONS, install_metadata, site_of, with_set, write_locks
from test_json import check_output

from patchctl.errors import SourceUnavailable
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.requirement_types import PLATFORMS, Platform
from patchctl.requirements.declared import FILE, collect, render
from patchctl.requirements.lockfile import Inputs, inputs_of, read_lock
from patchctl.requirements.relock import NoSolution, resolve_inputs
from patchctl.requirements.sets import read_set
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress

LOCK = f"manifests/requirements/{NAME}/x86_64.txt"


def make(folder: Path, *, lock: bool) -> Made:
    """The small distribution with the small set."""
    greeter = replace(GREETER, files={**GREETER.files, "needs.txt": NEEDS["greeter"]})
    clock = replace(CLOCK, files={**CLOCK.files, "needs.txt": NEEDS["clock"]})
    return with_set(make_distribution(folder, (greeter, clock), lock=True), lock=lock)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make(tmp_path / "made", lock=True)


@cache
def index_is_there() -> str:
    """Why no package index can be asked; empty where one can."""
    done = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet", "-"],
        input="iniconfig==2.0.0\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr.strip()[-300:] or "uv failed"


@pytest.fixture
def index() -> None:
    if why := index_is_there():
        pytest.skip(f"the package index cannot be asked: {why}")


def test_it_prints_what_pip_reads(made: Made) -> None:
    out = made.good("requirements", "--profile", "full", "--platform", "x86_64")
    assert out == (made.root / LOCK).read_text()
    pinned = [line.partition(" ")[0] for line in out.splitlines() if "==" in line and not line.startswith(("#", " "))]
    assert pinned == [f"{n}=={v}" for n, v in sorted(VERSIONS.items())]
    assert made.good("requirements", "--profile", "full", "--elsewhere") == ""
    found = json.loads(made.good("requirements", "--profile", "plain", "--platform", "aarch64", "--json"))
    check_output(found, "patchctl.requirements/1")
    assert (found["set"], found["platform"], len(found["packages"])) == (NAME, "aarch64", 3)


def with_an_extra(folder: Path, runtime: str) -> Made:
    """The release has this iniconfig, and the greeter's pyproject.toml asks for another in an extra that its setup.py has not."""
    project = (
        "[project]\nname = 'greeter'\n[project.optional-dependencies]\ncore = ['iniconfig>=1.5,!=2.0.0', 'cupy']\n"
    )
    greeter = replace(GREETER, files={**GREETER.files, "needs.txt": NEEDS["greeter"], "pyproject.toml": project})
    clock = replace(CLOCK, files={**CLOCK.files, "needs.txt": NEEDS["clock"]})
    made = with_set(make_distribution(folder, (greeter, clock), lock=True), lock=False)
    limits = "declared:\n  - {upstream: greeter, file: pyproject.toml, extras: [core], limits: needs.txt names what it imports}"
    made.edit(f"manifests/requirements/{NAME}/set.yaml", "declared:", limits)
    with (made.root / "manifests/upstreams.yaml").open("a") as file:
        file.write("requirements:\n  iniconfig: {summary: Reads, kind: python, distribution: iniconfig}\n")
    for profile in ("full", "plain"):
        made.edit(f"manifests/profiles/{profile}.yaml", "stacks:", f'runtime: {{iniconfig: "{runtime}"}}\nstacks:')
    write_locks(made.root, {**VERSIONS, "iniconfig": runtime})
    dist = Distribution.load(made.root)
    named = read_set(dist, NAME)
    found = collect(dist, named, [], SourceOptions(cache=made.cache), Progress())
    (named.folder / FILE).write_text(render(found))
    return made


def test_a_release_is_held_against_what_an_extra_asks_for(tmp_path: Path) -> None:
    pytest.importorskip("tomllib")
    with_an_extra(tmp_path / "good", "2.1.0").good("verify", "--static")
    made = with_an_extra(tmp_path / "made", "2.0.0")
    done = made.patchctl("verify", "--static")
    says = "greeter/pyproject.toml[core] asks for iniconfig!=2.0.0,>=1.5, and the release has 2.0.0"
    assert done.returncode == 1 and done.stdout.count(says) == 1, done.stdout + done.stderr
    where = f"manifests/requirements/{NAME}/set.yaml"
    reason = '  - {requirement: "iniconfig==2.0.0", reason: Nothing that it needs is newer.}\n'
    made.edit(where, "overrides:\n", f"overrides:\n{reason}")
    made.good("verify", "--static")
    made.edit(where, "iniconfig==2.0.0", "iniconfig>=2")
    assert "overrides say iniconfig>=2, and the release ==2.0.0" in made.patchctl("verify", "--static").stdout


def test_offline_nothing_is_resolved(made: Made) -> None:
    """uv asks its index whatever the sources say, so that `--offline` has to end before."""
    before = (made.root / LOCK).read_text()
    done = made.patchctl("lock", "--requirements", "--offline")
    assert done.returncode == 3 and "tried package index: the run is offline" in done.stderr
    assert (made.root / LOCK).read_text() == before


def test_a_profile_without_a_set(made: Made) -> None:
    made.edit("manifests/profiles/full.yaml", f"requirements: {NAME}\n", "")
    done = made.patchctl("requirements", "--profile", "full")
    assert done.returncode == 2 and "full names no requirement set" in done.stderr
    assert made.patchctl("doctor", "--profile", "full").returncode == 0


def test_a_lock_that_is_not_there(made: Made) -> None:
    (made.root / LOCK).unlink()
    done = made.patchctl("requirements", "--profile", "full", "--platform", "x86_64")
    assert done.returncode == 2 and "patchctl lock --requirements" in done.stderr and LOCK in done.stderr
    assert made.patchctl("verify", "--static").returncode == 1


def packages(made: Made, environment: Path, **versions: str) -> dict[str, dict[str, Any]]:
    """What doctor says of the packages of an environment that has these."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    install_metadata(site_of(environment), **versions)
    python = str(environment / "bin/python")
    found = json.loads(made.good("doctor", "--profile", "full", "--offline", "--json", "--python", python))
    return {f["name"]: f for f in found["findings"] if f["area"] == "runtime"}


def test_doctor_reads_the_lock(made: Made, tmp_path: Path) -> None:
    found = packages(made, tmp_path / "bad", packaging="22.0", triton="3.5.0", six="1.15.0")
    assert (
        found["packaging"]["level"] == "warning"
        and "greeter/needs.txt wants packaging>=23" in found["packaging"]["what"]
    )
    assert found["iniconfig"]["level"] == "missing" and "it hides triton-ascend" in found["triton"]["what"]
    assert found["packages"]["level"] == "ok" and "six 1.15.0" in found["packages"]["what"]
    assert not any(f["needed"] for f in found.values())
    good = packages(made, tmp_path / "good", **VERSIONS)
    assert good["packages"]["what"].endswith("matches the lock") and "packaging" not in good


def relocked(made: Made, code: int, *args: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    done = made.patchctl("lock", "--requirements", "--json", *args, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    if "error" not in found:
        check_output(found, "patchctl.lock/1")
    return found


@pytest.mark.usefixtures("index")
def test_a_set_is_resolved_from_its_trees(tmp_path: Path) -> None:
    """Real upstreams, a real uv, a real index: written once, in step from then on, and `verify` agrees."""
    made = make(tmp_path / "made", lock=False)
    assert made.patchctl("verify", "--static").returncode == 1
    rows = relocked(made, 0)["requirements"]
    assert [(r["platform"], r["packages"], r["elsewhere"], r["written"]) for r in rows] == [
        ("x86_64", 3, 0, True),
        ("aarch64", 3, 0, True),
    ]
    text = (made.root / LOCK).read_text()
    assert re.search(
        r"packaging==23\.2 \\\n    --hash=sha256:\w{64}\n    # via clock/needs\.txt, greeter/needs\.txt\n", text
    )
    assert made.patchctl("verify", "--static", "--quiet").returncode == 0
    before = {p: p.read_bytes() for p in (made.root / LOCK).parent.iterdir()}
    assert not any(r["differences"] for r in relocked(made, 0)["requirements"])
    assert {p: p.read_bytes() for p in (made.root / LOCK).parent.iterdir()} == before
    made.edit(f"manifests/requirements/{NAME}/set.yaml", "packaging>=23", "packaging==23.0")
    assert "packaging 23.2 became 23.0" in relocked(made, 1, "--check")["requirements"][0]["differences"]
    assert {p: p.read_bytes() for p in (made.root / LOCK).parent.iterdir() if p.suffix == ".txt"} == {
        p: data for p, data in before.items() if p.suffix == ".txt"
    }


@pytest.mark.usefixtures("index")
def test_a_lock_has_the_digests_of_what_its_platform_installs(tmp_path: Path) -> None:
    """Of 59 wheels of MarkupSafe 2.1.3 each platform takes one; of ANTLR's runtime there are the sources alone."""
    made = make(tmp_path / "made", lock=False)
    dist = Distribution.load(made.root)
    value = replace(read_set(dist, NAME).value, overrides=[])
    inputs = Inputs(value, {"mine": ("markupsafe==2.1.3", "antlr4-python3-runtime==4.9.3", "six==1.16.0")}, ())
    here, there = (resolve_inputs(inputs, platform).packages for platform in PLATFORMS)
    assert [len(one.hashes) for lock in (here, there) for one in lock.values()] == [1] * 6
    assert {name for name in here if here[name].hashes != there[name].hashes} == {"markupsafe"}


@pytest.mark.heavy("resolves requirements")
@pytest.mark.usefixtures("index")
def test_what_is_locked_stays_until_the_time_moves(tmp_path: Path) -> None:
    """A newer release that the inputs allow as well enters with a new `exclude_newer`, and with nothing else."""
    made = make(tmp_path / "made", lock=False)
    file = f"manifests/requirements/{NAME}/set.yaml"
    made.edit(file, "packaging>=23", "packaging==23.0")
    relocked(made, 0)
    made.edit(file, "packaging==23.0", "packaging>=23")
    assert relocked(made, 0)["requirements"][0]["differences"] == ["it was resolved from other inputs"]
    assert "\npackaging==23.0 " in (made.root / LOCK).read_text()
    made.edit(file, "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z")
    assert "packaging 23.0 became 23.2" in relocked(made, 0)["requirements"][0]["differences"]


@pytest.mark.heavy("resolves requirements")
@pytest.mark.usefixtures("index")
def test_a_version_that_the_index_has_not_is_not_resolved(tmp_path: Path) -> None:
    """It stands among what comes from elsewhere, with who asks for it, on its platform alone."""
    made = make(tmp_path / "made", lock=False)
    elsewhere = """elsewhere:
  - {packages: six, platform: aarch64, version: "99.1", index: https://example.com/simple, reason: only there}
"""
    made.edit(f"manifests/requirements/{NAME}/set.yaml", "left_out:", f"{elsewhere}left_out:")
    rows = relocked(made, 0)["requirements"]
    assert [(r["platform"], r["packages"], r["elsewhere"]) for r in rows] == [("x86_64", 3, 0), ("aarch64", 3, 1)]
    text = made.good("requirements", "--profile", "full", "--platform", "aarch64", "--elsewhere")
    assert "six==99.1\n    # via clock/needs.txt\n" in text and "--extra-index-url https://example.com/simple" in text
    assert "\nsix==" not in made.good("requirements", "--profile", "full", "--platform", "aarch64")
    assert made.patchctl("verify", "--static", "--quiet").returncode == 0
    made.edit(f"manifests/requirements/{NAME}/set.yaml", 'version: "99.1",', "")
    done = made.patchctl("requirements", "--profile", "full")
    assert done.returncode == 2 and "elsewhere[0]: expected either local or version" in done.stderr


@pytest.mark.heavy("resolves requirements")
@pytest.mark.usefixtures("index")
def test_without_its_override_the_contradiction_is_told(tmp_path: Path) -> None:
    made = make(tmp_path / "made", lock=False)
    override = SET[SET.index("overrides:") : SET.index("left_out:")]
    made.edit(f"manifests/requirements/{NAME}/set.yaml", override, "")
    done = made.patchctl("lock", "--requirements")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (
        "greeter/needs.txt wants packaging>=23" in done.stderr and "clock/needs.txt wants packaging<23" in done.stderr
    )
    assert not (made.root / LOCK).exists()


def test_an_index_that_cannot_be_asked(made: Made) -> None:
    """Nothing listens there."""
    before = (made.root / LOCK).read_bytes()
    made.edit(f"manifests/requirements/{NAME}/set.yaml", "packaging>=23", "packaging==23.0")
    env = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0", "UV_NO_CACHE": "1"}
    done = made.patchctl("lock", "--requirements", env=env)
    assert done.returncode == SourceUnavailable.code and "requirements not resolved" in done.stderr, done.stderr
    assert (made.root / LOCK).read_bytes() == before


@pytest.mark.heavy("resolves requirements")
@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", [oldest(), newest()])
def test_our_locks_are_what_resolving_gives(name: str, platform: Platform) -> None:
    """Every profile of ours that trains on NPUs, by the set that all of them name; about ten seconds.

    An index can gain releases and files, with times before the lock's, so its versions are kept and its digests are among those found.
    """
    dist = Distribution.load(REPO)
    named = read_set(dist, name)
    assert {p.name for p in named.profiles} == {p.name for p in dist.every_profile() if p.release == name} - {
        "demo",
        "every-stack",
    }
    have = read_lock(named, platform)
    lock = resolve_inputs(inputs_of(dist, named), platform, have)
    assert {n: p.version for n, p in lock.packages.items()} == {n: p.version for n, p in have.packages.items()}
    assert {n: (p.via, p.index) for n, p in lock.packages.items()} == {
        n: (p.via, p.index) for n, p in have.packages.items()
    }
    assert [n for n, p in have.packages.items() if not set(p.hashes) <= set(lock.packages[n].hashes)] == []
    assert (lock.input, lock.exclude_newer) == (have.input, have.exclude_newer)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.heavy("resolves requirements")
@pytest.mark.parametrize(
    ("override", "one", "other"),
    [
        (
            "xgrammar",
            "vllm/requirements/common.txt wants xgrammar==0.1.29",
            "vllm-ascend/requirements.txt wants xgrammar>=0.1.30",
        ),
        ("opencv-python-headless", "wants opencv-python-headless>=4.13.0", "wants opencv-python-headless<=4.11.0.86"),
        ("transformers", "verl/requirements-npu.txt wants transformers==4.52.4", "profile wants transformers==4.57.6"),
        ("tensordict", "verl/setup.py wants tensordict!=0.9.0,<=0.10.0,>=0.8.0", "profile wants tensordict==0.11.0"),
    ],
)
def test_without_one_of_our_overrides(override: str, one: str, other: str, platform: Platform) -> None:
    dist = Distribution.load(REPO)
    named = read_set(dist, oldest())
    with pytest.raises(NoSolution) as told:
        inputs = inputs_of(dist, named)
        kept = tuple(one for one in inputs.overrides if Requirement(one).name != override)
        assert len(kept) == len(inputs.overrides) - 1
        resolve_inputs(replace(inputs, overrides=kept), platform)
    assert one in told.value.what and other in told.value.what
    assert str(told.value.where) == f"manifests/requirements/{oldest()}/set.yaml"
