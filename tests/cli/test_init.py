"""`patchctl init`: from an empty folder to a proven patch, for an upstream that no distribution here has."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from distribution import GREETER, REPO, Made, git, make_distribution, run_patchctl, write_files

MESSAGE = """hello: say which hour it is

Need: a greeting says the same all day, and nobody knows whether it is late.

An hour after the greeting, in a function of its own, so that what upstream says stays.

Risk: none; nothing calls it yet.

Feature: hours
Switch: none
Upstream-Status: Pending
Drop-When: greeter says the hour
"""
PROBE = """import json
import greeter.hello as hello
print(json.dumps([hello.hour() if hasattr(hello, "hour") else None, hello.__name__]))
"""
TEST = """import pytest

@pytest.mark.on
def test_the_hour_is_said(upstream):
    assert upstream.run("probe_hours.py", need=["greeter"])[0] == "noon"

@pytest.mark.off
def test_the_module_is_upstreams(upstream):
    assert upstream.run("probe_hours.py", need=["greeter"])[1] == "greeter.hello"
"""
MUTANT = {"file": "greeter/hello.py", "replace": 'return "noon"', "with": 'return "night"', "why": "another hour"}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Somebody's upstream: a repository with a tag, and a source distribution on an index."""
    greeter = replace(GREETER, sdist=("greeter/hello.py",))
    made = make_distribution(tmp_path_factory.mktemp("origin"), (greeter,))
    git(made.origins / "greeter", "tag", "v1.0")
    return made


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_patchctl(f"--cache={folder.parent / 'cache'}", *args, home=folder, env=env, timeout=300)


def good(folder: Path, *args: str) -> str:
    done = run(folder, *args)
    assert done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
    return done.stdout


def address(origin: Made) -> str:
    return f"file://{origin.origins / 'greeter'}"


def test_to_a_proven_first_patch(origin: Made, tmp_path: Path) -> None:
    own = tmp_path / "own"
    said = good(own, "init", "greeter", "v1.0", "--git", address(origin))
    assert "written  manifests/stacks/greeter/v1.0.yaml" in said and said.endswith(
        "patchctl new FEATURE --stack greeter\n"
    )
    for name in (line.split()[1] for line in said.splitlines() if line.startswith("written")):
        assert (own / name).is_file(), name
    assert "no errors" in good(own, "verify")
    assert "* -text" in (own / ".gitattributes").read_text().splitlines()
    assert "0 patches" in good(own, "apply", "--profile", "greeter")

    good(own, "new", "hours", "--stack", "greeter")
    tree = own / "edit/greeter-v1.0"
    (tree / "greeter/hello.py").open("a").write('\n\ndef hour():\n    return "noon"\n')
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--amend", "--message", MESSAGE)
    folder = "patches/greeter/v1.0/hours"
    files = {"tests/probe_hours.py": PROBE, "tests/test_hours.py": TEST, "mutants/hours.yaml": json.dumps(MUTANT)}
    write_files(own, {f"{folder}/{name}": text for name, text in files.items()})
    assert "v1.0.yaml lists 1 patch\n" in good(own, "export", "greeter")
    good(own, "lock")
    unproven = run(own, "verify", "--proven")
    assert unproven.returncode == 1 and "is not proven on greeter/v1.0" in unproven.stdout
    assert "1/1 mutants red" in good(own, "prove", "hours")
    assert "checked 1 Python file, 1 git tree, 1 patch, 1 profile, 1 stack: no errors" in good(
        own, "verify", "--proven"
    )
    assert "1 patch" in good(own, "apply", "--profile", "greeter")


def test_it_asks_on_a_terminal(origin: Made, tmp_path: Path) -> None:
    """For what the command line does not say, and nothing else; in a pipe it is an error."""
    own = tmp_path / "own"
    own.mkdir()
    asked = [sys.executable, "-m", "patchctl", f"--cache={tmp_path / 'cache'}", "init"]
    environment = {"HOME": str(own), "PATH": os.environ["PATH"], "PYTHONPATH": str(REPO), "PIP_NO_INDEX": "1"}
    ours, theirs = os.openpty()
    running = subprocess.Popen(
        asked, cwd=own, env=environment, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    os.close(theirs)
    os.write(ours, f"greeter\n{address(origin)}\n\nv1.0\n".encode())
    out, err = running.communicate(timeout=120)
    os.close(ours)
    assert running.returncode == 0 and "written  manifests/stacks/greeter/v1.0.yaml" in out, err
    assert "Name of the upstream: " in err and "Version, tag or commit: " in err
    refused = run(tmp_path / "other", "init")
    assert refused.returncode == 2 and "which upstream, and which version of it?" in refused.stderr


def test_from_an_index_alone(origin: Made, tmp_path: Path) -> None:
    own = tmp_path / "own"
    index = str(origin.index)
    done = run(own, "init", "greeter", "1.0", "--sdist", "greeter", "--dir", "below", PIP_FIND_LINKS=index)
    assert done.returncode == 0, done.stderr
    assert "next: cd below && patchctl new FEATURE" in done.stdout
    text = (own / "below/manifests/upstreams.yaml").read_text()
    assert 'sdist: "greeter"' in text and "git:" not in text
    assert "note     no package was found" in done.stdout and "packages" not in text  # this archive has no __init__.py
    checked = run(own / "below", "verify", PIP_FIND_LINKS=index)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("tag", ["1.0", "greeter@1.0", "V1.0+Cpu", "on"])
def test_from_a_tag_of_any_form(origin: Made, tmp_path: Path, tag: str) -> None:
    """One that YAML takes for a number or a truth, and one that a stack's name cannot have."""
    clone, own = tmp_path / "upstream", tmp_path / "own"
    git(tmp_path, "clone", "--quiet", str(origin.origins / "greeter"), str(clone))
    git(clone, "tag", tag)
    done = run(own, "init", "greeter", tag, "--git", clone.as_uri(), "--dir", "below")
    assert done.returncode == 0, done.stderr
    (manifest,) = (own / "below/manifests/stacks/greeter").iterdir()
    assert f'tag: "{tag}"' in manifest.read_text() or f"tag: {tag}\n" in manifest.read_text()
    assert run(own / "below", "verify", "--static").returncode == 0


def test_what_outdated_proposes_works_for_an_upstream_that_is_on_an_index_alone(origin: Made, tmp_path: Path) -> None:
    """No repository can be asked, so that none has to be told to be left out."""
    own, index = tmp_path / "own", tmp_path / "index"
    shutil.copytree(origin.index, index)
    done = run(own, "init", "greeter", "1.0", "--sdist", "greeter", PIP_FIND_LINKS=str(index))
    assert done.returncode == 0, done.stderr
    (archive,) = index.iterdir()
    with tarfile.open(archive) as old, tarfile.open(index / "greeter-2.0.tar.gz", "w:gz") as new:
        for info in old:
            info.name = info.name.replace("greeter-1.0", "greeter-2.0")
            data = old.extractfile(info).read().replace(b"1.0", b"2.0") if info.isfile() else b""
            new.addfile(info, io.BytesIO(data))
    said = run(own, "outdated", PIP_FIND_LINKS=str(index))
    assert said.returncode == 1 and said.stdout.startswith("1 of 1 upstream has something newer"), said.stdout
    proposed = said.stdout.splitlines()[-1].removeprefix("next: patchctl ")
    assert proposed == "pin greeter 2.0"
    pinned = run(own, *proposed.split(), PIP_FIND_LINKS=str(index))
    assert pinned.returncode == 0 and (own / "manifests/stacks/greeter/v2.0.yaml").is_file(), pinned.stderr


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("greeter", "v1.0"), 2, "--git URL"),
        (("Greeter Of Ours", "v1.0", "--sdist", "greeter"), 2, "no name of an upstream"),
        (("greeter", "v1.0", "--git", "/a/folder"), 2, "--mirror greeter=DIR"),
        (("greeter", "v1.0", "--git", "https://me:secret@example.invalid/x.git"), 2, "without a password"),
        (("greeter", "v9.9", "--git", "ORIGIN"), 3, "no place tells which commit v9.9 is"),
        (("greeter", "v1.0", "--git", "file:///nowhere/at/all"), 3, "no place tells"),
        (("greeter", "1.0", "--sdist", "greeter"), 3, "no place has a source distribution"),
        (("greeter", "1.0", "--sdist", "-e ."), 2, "'-e .' is no name of a project"),
        (("greeter", "main", "--sdist", "greeter"), 2, "'main' is no version"),
        (("on", "1.0", "--sdist", "greeter"), 2, "'on' is no name of an upstream"),
        (("1.0", "1.0", "--sdist", "greeter"), 2, "'1.0' is no name of an upstream"),
        (("greeter", "v9.9", "--git", "ORIGIN"), 3, "`--sdist PROJECT --source sdist` takes the package"),
        (("greeter", "1.0", "--sdist", "greeter", "--dir", "new/below"), 2, "mkdir -p"),
        (("greeter", "v1.0", "--git", "ORIGIN", "--mirror", "other=/a/folder"), 2, "no upstream 'other'"),
        (("greeter", "v1.0", "--git", "ORIGIN", "--mirror", "/a/folder"), 2, "--mirror"),
    ],
)
def test_what_cannot_be_begun_leaves_nothing(
    origin: Made, tmp_path: Path, args: tuple[str, ...], code: int, said: str
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    words = [address(origin) if word == "ORIGIN" else word for word in args]
    done = run(own, "init", *words)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "secret" not in done.stderr
    assert list(own.iterdir()) == []


@pytest.mark.parametrize(
    "there", ["manifests/notes.txt", "conftest.py", "tests/test_mine.py", ".gitignore", ".gitattributes"]
)
def test_what_is_there_is_kept(origin: Made, tmp_path: Path, there: str) -> None:
    own = tmp_path / "own"
    write_files(own, {there: "mine\n"})
    done = run(own, "init", "greeter", "v1.0", "--git", address(origin))
    assert done.returncode == 5 and there.partition("/")[0] in done.stderr
    assert (own / there).read_text() == "mine\n" and [p for p in own.rglob("*") if p.is_file()] == [own / there]
