"""`patchctl install`, with real environments, a real pip and the real setuptools: what Python finds, and what is refused.

The four real upstreams are installed by tests/behaviour/test_install_upstreams.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import formats
import pytest
from distribution import CLOCK, GREETER, REPO, Made, git, make_distribution, write_files
from on_disk import Workspace, command, copy_of, snapshot
from on_disk import environment as clean_environment
from requirement_sets import NEEDS, install_metadata, with_set
from test_json import check_output

from patchctl.errors import MachineFailed, SourceUnavailable, WrongUse
from patchctl.install import install, wheel
from patchctl.install.installable import InstallTree, install_trees, submodules
from patchctl.install.wheel import REQUIREMENTS
from patchctl.manifest.distribution import Distribution

pytestmark = pytest.mark.heavy("installs with pip into environments of its own")

# As vllm's and vllm-ascend's: a version by setuptools-scm, which writes into the tree, entry points, an extension.
SETUP = """from setuptools import Extension, find_packages, setup
from setuptools_scm import get_version

setup(
    name="greeter",
    version=get_version(write_to="greeter/_version.py"),
    packages=find_packages(),
    entry_points={"console_scripts": ["greet = greeter.hello:main"], "greeters": ["plain = greeter.hello:hello"]},
    ext_modules=[Extension("greeter.fast", ["fast.c"])],
)
"""
FAST = """#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fast", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_fast(void) { return PyModule_Create(&module); }
"""
PROJECT = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
GREETER_FILES = {"setup.py": SETUP, "pyproject.toml": PROJECT, "fast.c": FAST, "greeter/sizes/E=8,N=64.json": "{}\n"}
CLOCK_FILES = {"pyproject.toml": f'{PROJECT}[project]\nname = "The.Clock"\nversion = "2.5"\n'}
ASK = """
import importlib.metadata as m, importlib.util as u, json, sys
del sys.path[0]
names = {"greeter": "greeter", "the-clock": "clock"}
found = {}
for name, package in names.items():
    try:
        found[package] = [m.version(name), u.find_spec(package).origin]
    except m.PackageNotFoundError:
        found[package] = None
print(json.dumps(found))
"""


# What RECORD lists and the disk has not.
WHOLE = """
import importlib.metadata as m
print([str(f) for name in ("greeter", "The.Clock") for f in m.files(name) if not f.locate().exists()])
"""


@dataclass(frozen=True)
class Env:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def site(self) -> Path:
        (found,) = (self.folder / "lib").glob("python3*/site-packages")
        return found

    def run(self, *args: str) -> str:
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run([self.python, *args], env=clean, capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def packages(self) -> dict[str, Any]:
        """By import package: version and place; None for a distribution that is not there."""
        found: dict[str, Any] = json.loads(self.run("-c", ASK))
        return found

    def snapshot(self) -> dict[str, tuple[str, str]]:
        return {p: s for p, s in snapshot(self.site).items() if "__pycache__" not in p}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What setup.py files need, from the real package index; later runs take it from here."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *REQUIREMENTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the package index cannot be reached: {done.stderr[-300:]}")
    return folder


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh") / "env"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def tooled(fresh: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(fresh, tmp_path_factory.mktemp("tooled") / "env", symlinks=True))
    Env(folder).run("-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(wheels), *REQUIREMENTS)
    return folder


@pytest.fixture
def env(fresh: Path, tmp_path: Path) -> Env:
    """A fresh environment: pip and what venv puts beside it."""
    return Env(Path(shutil.copytree(fresh, tmp_path / "env", symlinks=True)))


@pytest.fixture
def tools(tooled: Path, tmp_path: Path) -> Env:
    """An environment that has what setup.py files need: a tenth of a second instead of one and a half to build in."""
    return Env(Path(shutil.copytree(tooled, tmp_path / "tools", symlinks=True)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    greeter = replace(GREETER, files={**GREETER.files, **GREETER_FILES}, sdist=("greeter/__init__.py",))
    clock = replace(CLOCK, files={**CLOCK.files, **CLOCK_FILES})
    return make_distribution(tmp_path_factory.mktemp("made"), (greeter, clock), lock=True)


@dataclass(frozen=True)
class Case:
    """A workspace with profile full, an environment, and where pip finds packages."""

    ws: Workspace
    env: Env
    wheels: Path
    always: tuple[str, ...] = ()

    def run(self, verb: str, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        own = {"PIP_FIND_LINKS": str(self.wheels), "PIP_NO_INDEX": "1", **(env or {})}
        args = (*self.always, *args) if verb == "install" else args
        return self.ws.run(verb, "--python", self.env.python, *args, env=own)

    def good(self, verb: str, *args: str, env: Mapping[str, str] | None = None) -> str:
        done = self.run(verb, *args, env=env)
        assert done.returncode == 0, f"{args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def refused(self, code: int, *args: str, env: Mapping[str, str] | None = None) -> str:
        """The message of an install that must end with `code`, after which environment and workspace are as before."""
        before = self.env.snapshot(), self.ws.everything()
        done = self.run("install", *args, env=env)
        assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
        assert (self.env.snapshot(), self.ws.everything()) == before
        return done.stderr


@pytest.fixture
def bare(made: Made, env: Env, wheels: Path, tmp_path: Path) -> Case:
    """With a fresh environment."""
    ws = Workspace(made, tmp_path / "ws")
    ws.apply()
    return Case(ws, env, wheels)


@pytest.fixture
def case(made: Made, tools: Env, wheels: Path, tmp_path: Path) -> Case:
    """With an environment that has what setup.py files need, which is used without isolation."""
    ws = Workspace(made, tmp_path / "ws")
    ws.apply()
    return Case(ws, tools, wheels, ("--no-build-isolation",))


def test_copied_into_a_fresh_environment(bare: Case) -> None:
    """Name, version, place are right, nothing was compiled, the workspace is as it was, pip takes it away again."""
    case = bare
    before, empty = case.ws.everything(), case.env.snapshot()
    assert "would install" in case.good("install", "--dry-run")
    assert case.env.snapshot() == empty
    out = case.good("install")
    assert "greeter" in out and "The.Clock" in out and "pip uninstall" in out
    site = case.env.site
    places = {"greeter": ["1.0", str(site / "greeter/__init__.py")], "clock": ["2.5", str(site / "clock/__init__.py")]}
    assert case.env.packages() == places
    assert (site / "greeter/sizes/E=8,N=64.json").is_file() and not list((site / "greeter").glob("fast*.so"))
    assert case.env.run("-c", "from greeter.hello import hello; print(hello('you'))") == "Hello, you\n"
    script = subprocess.run(
        [str(case.env.folder / "bin/greet")], capture_output=True, text=True, env={"USER": "me"}, check=True
    )
    assert script.stdout == "Hello, me\n"
    groups = "import importlib.metadata as m; print([e.value for e in m.entry_points(group='greeters')])"
    assert case.env.run("-c", groups) == "['greeter.hello:hello']\n"
    assert case.good("status").count("imports ") == 2
    assert case.ws.everything() == before
    case.ws.assert_healthy()
    assert not list(site.glob("*/direct_url.json"))  # the wheels lay in a folder that is gone
    assert case.env.run("-c", WHOLE) == "[]\n"
    case.env.run("-m", "pip", "check")
    case.env.run("-m", "pip", "uninstall", "--yes", "greeter", "The.Clock")
    assert {p: s for p, s in case.env.snapshot().items() if s[1]} == {p: s for p, s in empty.items() if s[1]}


def test_editable_follows_every_apply_and_a_copy_does_not(case: Case) -> None:
    before = case.ws.everything()
    data = json.loads(case.good("install", "--editable", "--json"))
    check_output(data, "patchctl.install/1")
    assert [(t["distribution"], t["version"], t["replaced"]) for t in data["trees"]] == [
        ("The.Clock", "2.5", None),
        ("greeter", "1.0", None),
    ]
    tree = str(case.ws.folder / "greeter/greeter/__init__.py")
    assert case.env.packages()["greeter"] == ["1.0", tree]
    assert case.ws.everything() == before
    polite = "import os; os.environ['GREETER_POLITE'] = '1'; from greeter.hello import hello; print(hello('you'))"
    assert case.env.run("-B", "-c", polite) == "Hello, you, please\n"
    case.ws.apply("plain")
    assert case.env.run("-B", "-c", polite) == "Hello, you\n"
    assert case.good("status").count("imports ") == 2
    assert "in place of 1.0" in case.good("install")  # and back to a copy: pip takes the other away
    assert case.env.packages()["greeter"] == ["1.0", str(case.env.site / "greeter/__init__.py")]
    assert not list(case.env.site.glob("__editable__*"))
    case.good("status")
    case.ws.apply("full")  # a copy does not follow, which is told by its files
    stale = case.run("status")
    assert stale.returncode == 1 and "files differ, the first is hello.py" in stale.stdout


def test_what_differs_from_the_lock_is_told(tools: Env, wheels: Path, tmp_path: Path) -> None:
    files = {**GREETER.files, **GREETER_FILES, "needs.txt": NEEDS["greeter"]}
    greeter = replace(GREETER, files=files, sdist=("greeter/__init__.py",))
    clock = replace(CLOCK, files={**CLOCK.files, **CLOCK_FILES, "needs.txt": NEEDS["clock"]})
    ws = Workspace(with_set(make_distribution(tmp_path / "made", (greeter, clock), lock=True)), tmp_path / "ws")
    ws.apply()
    case = Case(ws, tools, wheels, ("--no-build-isolation",))
    install_metadata(tools.site, iniconfig="1.0.0", triton="3.5.0")
    found = json.loads(case.good("install", "--json"))
    check_output(found, "patchctl.install/1")
    differences = {d["name"]: (d["kind"], d["locked"], d["found"], d["matters"]) for d in found["packages"]}
    assert differences.pop("packaging", ("other",))[0] == "other"  # as new as the index has it
    assert differences == {
        "triton": ("left out", None, "3.5.0", True),
        "iniconfig": ("other", "2.0.0", "1.0.0", False),
        "six": ("missing", "1.16.0", None, False),
    }
    said = case.good("install", "--dry-run")
    assert "not as in the lock of full: 1 missing (six)" in said and "patchctl requirements --profile full" in said
    annotations = formats.github(case.good("install", "--dry-run", "--format", "github"))
    assert [(level, p["title"]) for level, p, _ in annotations] == [("warning", "runtime/triton")]
    named = {c.get("name"): len(c) for c in formats.junit(case.good("install", "--dry-run", "--format", "junit"))}
    assert named == {"The.Clock": 0, "greeter": 0, "triton": 1, "packages": 0}


def test_what_a_workspace_must_be(case: Case, tmp_path: Path) -> None:
    hello = case.ws.folder / "greeter/greeter/hello.py"
    text = hello.read_text()
    hello.write_text("# mine\n")
    said = case.refused(5)
    assert str(hello) in said
    way = shlex.join(["patchctl", "apply", "--profile", "full", "--workspace", str(case.ws.folder), "--stash"])
    assert f"`{way}` keeps them on a branch of the tree" in said
    hello.write_text(text)
    git(case.ws.folder / "greeter", "commit", "--quiet", "--allow-empty", "-m", "mine")
    assert "HEAD is" in case.refused(5)
    nowhere = replace(case, ws=Workspace(case.ws.made, tmp_path / "nowhere"))
    assert "nothing was applied" in nowhere.refused(2)


def test_a_reverted_workspace_is_not_installed(case: Case) -> None:
    case.ws.good("revert")
    assert "no profile is applied" in case.refused(2)


def test_another_lock(case: Case, tmp_path: Path) -> None:
    """The distribution moved on since the apply: the tree is not what it promises now."""
    own = copy_of(case.ws.made, tmp_path)
    own.edit("manifests/stacks/greeter/v1.yaml", "  - 0003-feature-loud.patch\n", "")
    own.good("lock", "--offline")
    assert "differs from the lock" in replace(case, ws=Workspace(own, case.ws.folder)).refused(2)


def test_what_would_hide_a_package_is_named(case: Case, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "greeter").mkdir(parents=True)
    (other / "greeter/__init__.py").write_text("")
    said = case.refused(2, env={"PYTHONPATH": f"{other}{os.pathsep}{REPO}"})
    assert str(other / "greeter/__init__.py") in said and "PYTHONPATH" in said
    stray = case.env.site / "clock"
    stray.mkdir()
    (stray / "__init__.py").write_text("")
    assert str(stray) in case.refused(2, "--editable")


def test_an_editable_install_of_another_tree_is_replaced(case: Case, tmp_path: Path) -> None:
    old = tmp_path / "old"
    (old / "greeter").mkdir(parents=True)
    (old / "greeter/__init__.py").write_text("OLD = True\n")
    (old / "pyproject.toml").write_text(f'{PROJECT}[project]\nname = "greeter"\nversion = "0.1"\n')
    case.env.run("-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--editable", str(old))
    assert case.env.packages()["greeter"] == ["0.1", str(old / "greeter/__init__.py")]
    assert "in place of 0.1" in case.good("install", "--editable")
    assert case.env.packages()["greeter"][1] == str(case.ws.folder / "greeter/greeter/__init__.py")
    assert not (case.env.site / "greeter").exists()


def test_without_isolation_the_environment_must_have_what_it_takes(bare: Case) -> None:
    said = bare.refused(2, "--no-build-isolation")
    assert "setuptools-scm>=8" in said and "pip install" in said


def test_without_isolation_no_index_is_asked(case: Case) -> None:
    case.good("install", "--dry-run", env={"PIP_FIND_LINKS": ""})


def test_no_index(bare: Case) -> None:
    said = bare.refused(3, env={"PIP_FIND_LINKS": "", "PIP_NO_INDEX": "1"})
    assert "--no-build-isolation" in said and "setuptools" in said


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_native_builds_only_when_asked(case: Case) -> None:
    assert "use only one of them" in case.refused(2, "--build-native", "--editable")
    before = case.ws.everything()
    case.good("install", "--build-native")
    assert case.env.run("-c", "import greeter.fast; print(greeter.fast.__name__)") == "greeter.fast\n"
    assert case.env.packages()["greeter"][0] == "1.0" and case.ws.everything() == before
    case.good("status")


def test_setup_py_that_fails_is_quoted(tools: Env, wheels: Path, tmp_path: Path) -> None:
    broken = replace(GREETER, files={**GREETER.files, "setup.py": "raise SystemExit('no compiler today')\n"})
    other = make_distribution(tmp_path / "other", (broken,), lock=True)
    ws = Workspace(other, tmp_path / "ws")
    ws.apply()
    assert "no compiler today" in Case(ws, tools, wheels, ("--no-build-isolation",)).refused(2)


@pytest.mark.parametrize("stands_in", [True, False])
def test_a_setup_py_that_imports_torch_and_rust_as_vllms(tools: Env, tmp_path: Path, stands_in: bool) -> None:
    """vllm 0.23: what only its build needs is imported for its metadata as well."""
    extension = 'RustExtension(target="vllm.vllm-rs", path="Cargo.toml", binding=Binding.Exec)'
    setup = f"""import torch
from setuptools import setup
from setuptools_rust import Binding, RustExtension
from setuptools_rust.build import build_rust
from torch.utils.cpp_extension import CUDA_HOME
class Own(build_rust): pass
setup(name="vllm", version="0.23.0", cmdclass={{"build_rust": Own}}, rust_extensions=[{extension}])
"""
    write_files(tmp_path / "tree", {"setup.py": setup})
    (tmp_path / "out").mkdir()
    command = [tools.python, "-c", wheel._DRIVER, str(tmp_path / "out"), "legacy"]
    command.append("torch stands in" if stands_in else "no")
    done = subprocess.run(command, cwd=tmp_path / "tree", capture_output=True, text=True, check=False)
    if stands_in:
        assert done.returncode == 0, done.stderr
        assert "Version: 0.23.0" in (tmp_path / "out" / "vllm-0.23.0.dist-info" / "METADATA").read_text()
    else:
        assert "No module named 'torch'" in done.stderr


def test_a_tree_that_calls_itself_another_version(tools: Env, wheels: Path, tmp_path: Path) -> None:
    project = f'{PROJECT}[project]\nname = "greeter"\nversion = "9.9"\n'
    odd = replace(GREETER, files={**GREETER.files, "pyproject.toml": project}, sdist=("greeter/__init__.py",))
    other = make_distribution(tmp_path / "other", (odd,), lock=True)
    ws = Workspace(other, tmp_path / "ws")
    ws.apply()
    assert "calls itself greeter 9.9, but 1.0 is pinned" in Case(ws, tools, wheels, ("--no-build-isolation",)).refused(
        3
    )


def test_a_copy_with_a_package_that_hides_a_module(case: Case) -> None:
    case.good("install")
    hides = case.env.site / "greeter" / "hello"
    hides.mkdir()
    (hides / "__init__.py").write_text("EVIL = 1\n")
    done = case.run("status")
    assert done.returncode == 1 and "hello/__init__.py" in done.stdout


def test_the_users_own_site_gets_nothing(case: Case) -> None:
    """Every environment of a Python shares it; pip falls back to it, and PIP_USER asks for it."""
    settings = case.env.folder / "pyvenv.cfg"
    settings.write_text(settings.read_text().replace("site-packages = false", "site-packages = true"))
    case.good("install", env={"PIP_USER": "1"})
    assert not list((case.ws.made.cache.parent / "home").rglob("greeter"))
    assert case.env.packages()["greeter"][1] == str(case.env.site / "greeter/__init__.py")


def test_a_pip_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    monkeypatch.setattr(install, "_PIP_SECONDS", 0.2)
    monkeypatch.setattr(wheel, "_SECONDS", 0.2)
    with pytest.raises(MachineFailed, match="pip did not finish") as stopped:
        install.pip_install(install.PythonEnvironment(str(slow), (), (), tmp_path, {}), [tmp_path / "a.whl"])
    assert "`patchctl install` again" in (stopped.value.hint or "")
    with pytest.raises(SourceUnavailable) as caught:
        wheel.build_tools(str(slow), tmp_path / "tools")
    assert "did not finish" in caught.value.tried[0].reason
    slow.write_text("#!/bin/sh\nkill -KILL $$\n")
    with pytest.raises(MachineFailed, match="killed by signal 9") as killed:
        install.pip_install(install.PythonEnvironment(str(slow), (), (), tmp_path, {}), [tmp_path / "a.whl"])
    assert "`patchctl install` again" in (killed.value.hint or "")


def test_a_native_build_names_what_it_needs(bare: Case) -> None:
    said = bare.refused(2, "--build-native")
    assert all(requirement in said for requirement in REQUIREMENTS) and "--no-build-isolation" not in said


def test_a_native_build_keeps_what_the_user_has_on_the_path(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CANN's set_env.sh puts its Python packages there; only the tree itself must not be found."""
    (item,) = (i for i in items_of(case) if i.upstream == "greeter")
    monkeypatch.setenv("PYTHONPATH", f"/cann/python/site-packages{os.pathsep}{item.folder}/sub{os.pathsep}/cann/tbe")
    native = wheel.build_environment(item, case.env.python, None, {}, native=True)
    assert native["PYTHONPATH"] == f"/cann/python/site-packages{os.pathsep}/cann/tbe"
    assert "PYTHONPATH" not in wheel.build_environment(item, case.env.python, None, {})


def items_of(case: Case) -> list[InstallTree]:
    return install_trees(case.ws.folder, Distribution.load(case.ws.made.root))[0]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_native_build_wants_the_submodules(tools: Env, wheels: Path, tmp_path: Path) -> None:
    """As vllm-ascend's catlass: a header of a submodule, which git does not hold, and a source distribution may."""
    headers = tmp_path / "headers"
    write_files(headers, {"include/fast.h": '#define NAME "fast"\n'})
    git(headers, "init", "--quiet")
    git(headers, "add", "--all")
    git(headers, "commit", "--quiet", "-m", "one")
    commit = git(headers, "rev-parse", "HEAD").strip()
    fast = '#include "third/headers/include/fast.h"\n' + FAST.replace('"fast"', "NAME")
    files = {**GREETER.files, **GREETER_FILES, "fast.c": fast}
    files["setup.py"] = SETUP.replace('["fast.c"]', '["fast.c"], include_dirs=["."]')
    made = make_distribution(tmp_path / "made", (replace(GREETER, files=files, sdist=("greeter/__init__.py",)),))
    origin = made.origins / "greeter"
    old = git(origin, "rev-parse", "HEAD").strip()
    git(origin, "update-index", "--add", "--cacheinfo", f"160000,{commit},third/headers")
    git(origin, "commit", "--quiet", "--amend", "--no-edit")
    stack = made.root / "manifests/stacks/greeter/v1.yaml"
    new = git(origin, "rev-parse", "HEAD").strip()
    tree = git(origin, "rev-parse", "HEAD^{tree}").strip()
    stack.write_text(re.sub('tree: "[0-9a-f]+"', f'tree: "{tree}"', stack.read_text().replace(old, new)))
    made.good("lock")
    ws = Workspace(made, tmp_path / "ws")
    ws.apply()
    case = Case(ws, tools, wheels)
    folder = ws.folder / "greeter/third/headers"
    said = case.refused(2, "--build-native")
    assert str(folder) in said and commit in said and "git clone" in said
    case.good("install", "--no-build-isolation")
    shutil.rmtree(folder, ignore_errors=True)
    git(tmp_path, "clone", "--quiet", str(headers), str(folder))
    (folder / "include/fast.h").write_text("#error edited\n")  # what the commit has is taken
    case.good("install", "--build-native")
    assert case.env.run("-c", "import greeter.fast; print(greeter.fast.__name__)") == "greeter.fast\n"
    assert "no errors" in ws.good("verify") and ws.json("status")["clean"]
    shutil.rmtree(folder)
    git(tmp_path, "clone", "--quiet", str(made.origins / "greeter"), str(folder))
    assert commit in case.refused(2, "--build-native")
    shutil.rmtree(folder)
    (item,) = items_of(case)
    packed = replace(item, state=replace(item.state, tip_commit=with_files_of(headers, item.folder)))
    dist = Distribution.load(made.root)
    assert submodules(packed, dist) == []
    with pytest.raises(WrongUse, match=commit):
        submodules(item, dist)


def with_files_of(headers: Path, tree: Path) -> str:
    """A commit of the tree with the submodule's files in place of its entry, as it comes from such a source distribution."""
    git(tree, "rm", "--cached", "--quiet", "third/headers")
    shutil.copytree(headers / "include", tree / "third/headers/include")
    git(tree, "add", "--force", "third/headers/include")
    git(tree, "commit", "--quiet", "-m", "packed")
    return git(tree, "rev-parse", "HEAD").strip()


def test_what_is_patched_where_it_is_stays_there(case: Case, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", str(case.ws.made.origins / "clock"), str(checkout))
    ws = Workspace(case.ws.made, tmp_path / "into")
    ws.apply("full", "--in-place", f"clock={checkout}")
    data = json.loads(replace(case, ws=ws).good("install", "--json"))
    assert [t["upstream"] for t in data["trees"]] == ["greeter"]
    assert str(checkout) in data["passed_by"]["clock"]


def test_settings_of_pip_do_not_send_the_packages_elsewhere(case: Case, tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[install]\ntarget = {tmp_path / 'elsewhere'}\n")
    constraint = tmp_path / "constraint.txt"
    constraint.write_text("greeter==99\n")
    with_links = {"PIP_CONFIG_FILE": str(settings), "PIP_CONSTRAINT": str(constraint)}
    case.good("install", "--no-build-isolation", env=with_links)
    assert case.env.packages()["greeter"][1] == str(case.env.site / "greeter/__init__.py")
    assert not (tmp_path / "elsewhere").exists()


def test_what_lies_in_the_current_folder_or_beside_a_package_is_not_run(case: Case, tmp_path: Path) -> None:
    home = case.ws.made.cache.parent / "home"  # where the tool is run
    home.mkdir(exist_ok=True)
    (home / "csv.py").write_text("raise SystemExit('mine')\n")
    (home / "pip").mkdir()
    (home / "pip/__main__.py").write_text("raise SystemExit('mine')\n")
    (next(case.env.site.glob("pip-*.dist-info")) / "direct_url.json").write_text("{bad")
    try:
        case.good("install")
    finally:
        (home / "csv.py").unlink()
        shutil.rmtree(home / "pip")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_environment_that_cannot_be_written_is_refused_before_pip_begins(case: Case) -> None:
    case.env.site.chmod(0o555)
    try:
        assert "cannot be written" in case.refused(2, "--dry-run")
    finally:
        case.env.site.chmod(0o755)


def test_wrong_interpreters(case: Case, tmp_path: Path) -> None:
    broken = tmp_path / "pip.conf"
    broken.write_text("no ini\n")
    assert "has no pip" not in case.refused(2, env={"PIP_CONFIG_FILE": str(broken)})
    for python in ("/no/such/python", "no-such-python", "/bin/false", "/bin/echo", str(tmp_path)):
        done = case.ws.run("install", "--python", python)
        assert done.returncode == 2 and "--python" in done.stderr and "Traceback" not in done.stderr
    shutil.rmtree(case.env.site / "pip")
    assert "has no pip" in case.refused(2)


@pytest.mark.parametrize("over", [False, True])
def test_a_killed_install_is_made_good_by_the_next(over: bool, tools: Env, wheels: Path, tmp_path: Path) -> None:
    """A package without RECORD stops every later pip: its wheel has it first."""
    # So many that pip is at them for a while: with 150 it was done, once, before a busy machine had killed it.
    many = {f"greeter/many/m{n}.py": f"N = {n}\n" for n in range(600)}
    greeter = replace(
        GREETER,
        files={**GREETER.files, **GREETER_FILES, "greeter/many/__init__.py": "", **many},
        sdist=("greeter/__init__.py",),
    )
    clock = replace(CLOCK, files={**CLOCK.files, **CLOCK_FILES})
    made = make_distribution(tmp_path / "made", (greeter, clock), lock=True)
    case = Case(Workspace(made, tmp_path / "ws"), tools, wheels, ("--no-build-isolation",))
    case.ws.apply()
    (case.env.site / "mine.py").write_text("MINE = 1\n")
    (case.env.site / "~mine").mkdir()
    if over:
        case.good("install")
    _kill_in_the_middle(case, "~reeter" if over else "greeter/many/m9.py")
    assert over or (case.env.site / "greeter-1.0.dist-info/RECORD").exists()
    case.good("install")
    installed = case.env.snapshot()
    assert case.env.run("-c", WHOLE).strip() == "[]"
    assert not [p for p in installed if p.startswith(("~reeter", "~lock"))]
    assert "mine.py" in installed and (case.env.site / "~mine").is_dir()
    case.env.run("-m", "pip", "uninstall", "--quiet", "--yes", "greeter", "The.Clock")
    assert not (case.env.site / "greeter").exists()


def _kill_in_the_middle(case: Case, until: str) -> None:
    """Start an install, and kill it and its pip as soon as `until`, a path below site-packages, is there."""
    line = ["install", "--workspace", str(case.ws.folder), "--python", case.env.python, *case.always]
    running = subprocess.Popen(
        command(case.ws.made, *line), env=clean_environment(case.ws.made), start_new_session=True
    )
    while running.poll() is None and not (case.env.site / until).exists():
        time.sleep(0.0005)
    os.killpg(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
