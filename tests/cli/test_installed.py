"""`apply --site-packages` and `--in-place NAME=SITE-PACKAGES`: packages that a real pip and a real uv installed are patched there.

verl and megatron-core of the package index: test_installed_upstreams.py."""

from __future__ import annotations

import csv
import os
import py_compile
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from distribution import CLOCK, GREETER, Made, Patch, git, make_distribution
from on_disk import Workspace, copy_of, leftovers, snapshot
from packages import Env, false_lines, listed, make_wheel
from test_into import GENERATED

pytestmark = pytest.mark.heavy("installs with pip into environments of its own")

ODD_NAME = "greeter/sizes/E=8,N=64.json"
GREETER_FILES = {
    **GREETER.files,
    ODD_NAME: "{}\n",
    "greeter/old.py": "OLD = 1\n",
    "recipe/main.py": "x = 1\n",
    "scripts/__init__.py": "",
}
PATCHES = (
    *GREETER.patches,
    Patch("recipe", {"recipe/main.py": "x = 2\n"}, "recipe: count to two"),
    Patch("young", {"greeter/old.py": None, ODD_NAME: '{"a": 1}\n'}, "old: take it away"),
)
SDIST = tuple(f for f in GREETER_FILES if not f.startswith("recipe/"))
SHOUT = "from greeter.hello import shout; print(shout('a'))"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """greeter with a source distribution, which lacks recipe/, and clock without one."""
    upstreams = (replace(GREETER, files=GREETER_FILES, patches=PATCHES, sdist=SDIST), CLOCK)
    return make_distribution(tmp_path_factory.mktemp("packed"), upstreams, lock=True)


@pytest.fixture
def ws(packed: Made, tmp_path: Path) -> Workspace:
    return Workspace(packed, tmp_path / "ws")


def wheel_of(folder: Path) -> Path:
    inside = {p: t for p, t in GREETER_FILES.items() if p.startswith("greeter/")}
    return make_wheel(folder / "wheels", "greeter", inside)


@pytest.fixture(params=["pip", "uv"])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Env:
    """An environment with greeter, and with another package that has folders of the same names as the pin's tree."""
    made = Env(tmp_path / "env", request.param)
    other = {"other.py": "x = 1\n", "scripts/__init__.py": "theirs = 1\n", "README.md": "theirs\n"}
    made.install(str(wheel_of(tmp_path)), str(make_wheel(tmp_path / "wheels", "other", other)))
    return made


@pytest.fixture
def pip(tmp_path: Path) -> Env:
    made = Env(tmp_path / "env", "pip")
    made.install(str(wheel_of(tmp_path)))
    return made


def test_one_command_patches_what_is_installed_and_gives_it_back(ws: Workspace, env: Env) -> None:
    before, cache = snapshot(env.site), snapshot(env.cache)
    assert env.installer == "pip" or (env.site / "greeter/hello.py").stat().st_nlink > 1
    text = ws.apply("full", "--site-packages", env.python)
    assert f"greeter      v1  sdist  applied  4 patches  tip {ws.state['trees']['greeter']['tip_commit'][:12]}" in text
    assert f"as locked  in {env.site}" in text
    assert f"left out recipe: not in the package installed in {env.site}: recipe/main.py" in text
    assert (ws.folder / "clock").is_dir() and not (ws.folder / "greeter").exists()
    assert "LOUD" in (env.site / "greeter/hello.py").read_text() and not (env.site / "greeter/old.py").exists()
    assert false_lines(env.site, "greeter") == [] and false_lines(env.site, "other") == []
    assert {"greeter/manners.py", ODD_NAME} <= listed(env.site, "greeter")
    assert "greeter/old.py" not in listed(env.site, "greeter")
    assert snapshot(env.cache) == cache
    status = ws.json("status", "--python", env.python, code=1)  # clock is not installed
    assert [i["ours"] for t in status["trees"] if t["upstream"] == "greeter" for i in t["imports"]] == [True]
    assert ws.json("status")["clean"] is True and "no errors" in ws.good("verify")
    assert "unchanged" in ws.apply("full") and "unchanged" in ws.apply("full", "--site-packages", env.python)
    ws.good("revert")
    assert snapshot(env.site) == before and snapshot(env.cache) == cache
    assert leftovers(ws.folder) == [] and list(ws.state["trees"]) == ["clock"]


def test_another_profile_keeps_the_record_true(ws: Workspace, pip: Env) -> None:
    before = snapshot(pip.site)
    for profile in ("full", "plain", "full"):
        ws.apply(profile, "--site-packages", pip.python)
        assert pip.says("import greeter.hello") == ""  # Python compiles what it imports
        assert false_lines(pip.site, "greeter") == []
        ws.good("verify")
    assert "greeter/manners.py" in listed(pip.site, "greeter")
    ws.good("revert")
    after = snapshot(pip.site)
    assert {p: s for p, s in after.items() if p in before} == before
    assert {p for p in after if p not in before and "manners" not in p} == set()


@pytest.mark.parametrize("inner", ["", "greeter"])
def test_site_packages_or_the_package_in_it_may_be_named(ws: Workspace, pip: Env, inner: str) -> None:
    text = ws.apply("full", "--in-place", f"greeter={pip.site / inner}")
    assert f"in {pip.site}" in text and "left out recipe" in text
    assert false_lines(pip.site, "greeter") == []


def test_without_the_source_distribution_git_serves(packed: Made, pip: Env, tmp_path: Path) -> None:
    own = copy_of(packed, tmp_path)
    shutil.rmtree(own.cache / "sdist", ignore_errors=True)
    ws = Workspace(own, tmp_path / "ws")
    done = ws.run("apply", "--profile", "full", "--site-packages", pip.python, env={"PIP_FIND_LINKS": "/none"})
    assert done.returncode == 0, done.stderr
    assert "greeter      v1  git    applied  4 patches" in done.stdout and "left out recipe" in done.stdout
    assert false_lines(pip.site, "greeter") == []
    assert "greeter      v1  git    unchanged" in ws.apply("full"), "although the index can be reached now"
    ws.good("verify")


def test_stale_bytecode_goes(ws: Workspace, pip: Env) -> None:
    """Compiled "unchecked", as images are at times: Python would run it whatever the source says."""
    module = pip.site / "greeter/hello.py"
    cached = next((pip.site / "greeter/__pycache__").glob("hello.*.pyc"))
    py_compile.compile(str(module), str(cached), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    kept = cached.read_bytes()
    assert pip.says(SHOUT) == "HELO, A"
    ws.apply("full", "--site-packages", pip.python)
    assert pip.says(SHOUT) == "HELLO, A"
    ws.good("revert")
    assert pip.says(SHOUT) == "HELO, A" and cached.read_bytes() == kept


def test_a_record_that_somebody_changed(ws: Workspace, pip: Env) -> None:
    ws.apply("full", "--site-packages", pip.python)
    (record,) = pip.site.glob("greeter-*.dist-info/RECORD")
    record.write_text(record.read_text() + "mine.py,,\n")
    assert f"{record}" in ws.refused(5, "revert")
    found = ws.json("verify", code=1)["findings"]
    assert [(f["rule"], f["file"]) for f in found] == [("record", str(record))]
    name = str(record.relative_to(pip.site))
    assert [t["edits"] for t in ws.json("status", code=1)["trees"] if t["upstream"] == "greeter"] == [[name]]
    ws.good("revert", "--stash")
    assert false_lines(pip.site, "greeter") == [] and "mine.py" not in listed(pip.site, "greeter")


def test_generated_files_are_listed_while_they_are_there(packed: Made, pip: Env, tmp_path: Path) -> None:
    own = copy_of(packed, tmp_path)
    stack = own.root / "manifests/stacks/greeter/v1.yaml"
    stack.write_text(stack.read_text() + GENERATED)
    ws, before = Workspace(own, tmp_path / "ws"), snapshot(pip.site)
    ws.apply("full", "--site-packages", pip.python)
    assert "greeter/_version.py" in listed(pip.site, "greeter") and false_lines(pip.site, "greeter") == []
    ws.good("verify")
    ws.good("revert")
    assert snapshot(pip.site) == before


def test_an_uninstalled_package(ws: Workspace, pip: Env) -> None:
    ws.apply("full", "--site-packages", pip.python)
    pip.uninstall("greeter")
    assert not (pip.site / "greeter/manners.py").exists() and not (pip.site / "greeter/hello.py").exists()
    assert "no longer installed" in ws.run("status").stdout
    assert [f["rule"] for f in ws.json("verify", code=1)["findings"]] == ["tree-missing"]
    assert "patchctl revert" in ws.refused(2, "apply", "--profile", "full")
    ws.good("revert")
    assert list(ws.state["trees"]) == ["clock"]
    pip.install(str(wheel_of(pip.folder.parent)))
    ws.apply("full", "--site-packages", pip.python)
    assert false_lines(pip.site, "greeter") == []


def test_an_editable_checkout_is_found_too(ws: Workspace, pip: Env, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", str(ws.made.origins / "greeter"), str(checkout))
    pip.uninstall("greeter")
    (pip.site / "greeter.pth").write_text(f"{checkout}\n")
    text = ws.apply("full", "--site-packages", pip.python)
    assert "greeter      v1  git    applied  5 patches" in text and f"in {checkout}" in text
    assert "LOUD" in (checkout / "greeter/hello.py").read_text()


def test_a_python_without_any_of_it(ws: Workspace, pip: Env) -> None:
    pip.uninstall("greeter")
    message = ws.refused(2, "apply", "--profile", "full", "--site-packages", pip.python)
    assert "imports no package of this profile" in message and "patchctl install" in message
    assert "cannot be asked" in ws.refused(2, "apply", "--profile", "full", "--site-packages", "/no/python")


def test_what_is_installed_is_not_the_pin(ws: Workspace, pip: Env) -> None:
    (pip.site / "greeter/hello.py").write_text("x = 1\n")
    before = snapshot(pip.site)
    message = ws.refused(5, "apply", "--profile", "full", "--site-packages", pip.python)
    assert f"{pip.site} is not greeter at the pin: 1 file differs" in message
    assert "patchctl identify" in message and snapshot(pip.site) == before


def test_a_file_that_was_deleted_is_absent_and_does_not_differ(ws: Workspace, pip: Env) -> None:
    (pip.site / "greeter/hello.py").unlink()
    message = ws.refused(5, "apply", "--profile", "full", "--site-packages", pip.python)
    assert "absent, and the patches change them: greeter/hello.py" in message and "differ" not in message


def test_a_file_of_the_stack_that_is_gone_is_told_by_every_verb(ws: Workspace, pip: Env) -> None:
    """Others may be missing: a wheel has no tests."""
    ws.apply("full", "--site-packages", pip.python)
    assert ws.json("status")["clean"] is True
    (pip.site / "greeter/hello.py").unlink()
    status = ws.json("status", code=1)
    assert {e for t in status["trees"] for e in t["edits"]} == {"greeter/hello.py"}
    assert "greeter/hello.py" in ws.refused(5, "apply", "--profile", "full")


def test_a_package_that_pip_took_away_is_forgotten_as_status_says(ws: Workspace, pip: Env) -> None:
    ws.apply("full", "--site-packages", pip.python)
    subprocess.run([pip.python, "-m", "pip", "uninstall", "-qy", "greeter"], check=True)
    said = ws.run("status")
    (following,) = re.findall(r"(?m)^next: patchctl (.*)", said.stdout)
    assert following == f"revert --workspace {ws.folder}"


def test_what_a_folder_without_a_record_lacks_is_named_as_absent(ws: Workspace, packed: Made, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(packed.origins / "greeter/greeter", site / "greeter")
    message = ws.refused(5, "apply", "--profile", "full", "--in-place", f"greeter={site}", "--source", "git")
    assert "absent, and the patches change them: recipe/main.py" in message and "differ" not in message
    assert "--without recipe@greeter" in message
    ws.apply("full", "--in-place", f"greeter={site}", "--source", "git", "--without", "recipe@greeter")


def test_symbolic_links_into_a_cache_are_refused_by_their_name(ws: Workspace, tmp_path: Path) -> None:
    env = Env(tmp_path / "env", "uv")
    env.install(str(wheel_of(tmp_path)), mode="symlink")
    cache = snapshot(env.cache)
    assert "--link-mode symlink" in ws.refused(5, "apply", "--profile", "full", "--site-packages", env.python)
    assert snapshot(env.cache) == cache


def test_two_distributions_that_claim_one_package(ws: Workspace, pip: Env) -> None:
    shutil.copytree(pip.site / "greeter-1.0.dist-info", pip.site / "greeter2-1.0.dist-info")
    assert "list the same package" in ws.refused(2, "apply", "--profile", "full", "--site-packages", pip.python)


def test_names_are_quoted_as_installers_do(pip: Env) -> None:
    (record,) = pip.site.glob("greeter-*.dist-info/RECORD")
    assert ODD_NAME in {row[0] for row in csv.reader(record.read_text().splitlines())}
    assert os.fsencode(f'"{ODD_NAME}"') in record.read_bytes()
