"""`patchctl use`: a distribution's repository at a commit becomes what runs outside a clone take."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distribution import GIT_ENV, REPO, Made, git, make_distribution, run_patchctl

from patchctl.distributions import split_revision


class User:
    """A user with a home of its own, outside any distribution."""

    def __init__(self, made: Made, folder: Path) -> None:
        self.made, self.home = made, folder / "home"

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        env = {"PIP_FIND_LINKS": str(self.made.index), "PATCHCTL_CACHE": str(self.made.cache)}
        return run_patchctl(*args, home=self.home, env=env)

    def good(self, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, code: int, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stderr

    def root(self) -> str | None:
        return json.loads(self.good("use", "--list", "--json"))["default"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The small distribution, in a repository with the tag v1 and a later commit on main that renames the profile plain."""
    made = make_distribution(tmp_path_factory.mktemp("published"), lock=True)
    git(made.root, "init", "--quiet", "--initial-branch=main")
    (made.root / "run.sh").write_text("#!/bin/sh\n")
    (made.root / "run.sh").chmod(0o755)
    (made.root / "link").symlink_to("/etc/passwd")
    for name in (".gitattributes", "patches/.gitattributes"):  # as our own repository has them
        (made.root / name).write_text("* -text\n")
    commit(made, "one")
    git(made.root, "tag", "-a", "-m", "one", "v1")
    shutil.move(made.root / "manifests/profiles/plain.yaml", made.root / "manifests/profiles/bare.yaml")
    made.edit("manifests/profiles/bare.yaml", "name: plain", "name: bare")
    commit(made, "two")
    return made


@pytest.fixture
def user(published: Made, tmp_path: Path) -> User:
    return User(published, tmp_path)


def commit(made: Made, message: str) -> None:
    git(made.root, "add", "--all")
    git(made.root, "commit", "--quiet", "-m", message)


def commit_of(made: Made, name: str) -> str:
    return git(made.root, "rev-parse", f"{name}^{{commit}}").strip()


def test_a_tag_becomes_the_default_and_works_when_the_repository_is_gone(
    user: User, published: Made, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(published.root, moved, symlinks=True)
    assert "no distribution" in user.refused(2, "list")
    said = user.good("use", f"{moved.as_uri()}@v1")
    one = commit_of(published, "v1")
    assert f"* {one[:12]}  {moved}@v1" in said
    shutil.rmtree(moved)
    assert "plain" in user.good("list", "profiles")
    user.good("apply", "--profile", "full", "--workspace", "ws")
    user.good("verify", "--workspace", "ws")
    assert "no errors" in user.good("verify", "--static")
    root = Path(str(user.root()))
    assert f"distribution: {root}, {moved}@v1, commit {one}" in user.good("--version")
    assert os.access(root / "run.sh", os.X_OK) and not os.path.lexists(root / "link")
    assert not list(root.rglob(".gitattributes"))


def test_this_repository_is_one(user: User) -> None:
    if not (REPO / ".git").exists() or git(REPO, "rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("not a whole clone of git")
    head = git(REPO, "rev-parse", "HEAD").strip()
    user.good("use", f"{REPO.as_uri()}@{head}")
    assert "verl" in user.good("list", "profiles")


def test_without_a_revision_it_is_head_and_an_earlier_one_is_a_commit_away(user: User, published: Made) -> None:
    user.good("use", f"{published.root}@v1")
    user.good("use", str(published.root))
    assert "bare" in user.good("list", "profiles")
    listed = json.loads(user.good("use", "--list", "--json"))["distributions"]
    one, two = commit_of(published, "v1"), commit_of(published, "main")
    assert {(row["commit"], row["revision"], row["default"]) for row in listed} == {
        (one, "v1", False),
        (two, None, True),
    }
    user.good("use", one[:7])
    assert "plain" in user.good("list", "profiles")


def test_a_branch_moves_on_when_it_is_named_again(published: Made, tmp_path: Path) -> None:
    own = Made(tmp_path / "own", published.origins, published.cache)
    shutil.copytree(published.root, own.root, symlinks=True)
    user = User(published, tmp_path)
    user.good("use", f"{own.root}@main")
    before = user.root()
    own.edit("manifests/profiles/bare.yaml", "name: bare", "name: bare # the same")
    commit(own, "three")
    user.good("use", f"{own.root}@main")
    assert user.root() != before and commit_of(own, "main") in str(user.root())


def test_none_goes_back(user: User, published: Made) -> None:
    user.good("use", f"{published.root}@v1")
    assert "default: none" in user.good("use", "--none")
    assert "no distribution" in user.refused(2, "list")
    assert commit_of(published, "v1")[:12] in user.good("use", "--list"), "what was fetched stays"


def test_what_cannot_be_had_leaves_the_default(user: User, published: Made, tmp_path: Path) -> None:
    user.good("use", f"{published.root}@v1")
    before = user.root()
    assert "no tag or branch v1.0; similar: v1" in user.refused(3, "use", f"{published.root}@v1.0")
    assert "no such folder" in user.refused(3, "use", f"{tmp_path}/nowhere@v1")
    user.refused(3, "use", f"{published.root}@{'a' * 40}")
    assert "ext:: run commands" in user.refused(2, "use", "ext::sh -c true@v1")
    assert "is no distribution: it has no manifests/upstreams.yaml" in user.refused(
        2, "use", str(published.origins / "greeter")
    )
    assert "0 fetched distributions" in user.refused(2, "use", "abcdef0")
    assert user.root() == before and len(list((user.home / ".local/share/patchctl").glob("fetch-*"))) == 0


def test_a_broken_distribution_leaves_the_default(user: User, published: Made, tmp_path: Path) -> None:
    own = Made(tmp_path / "own", published.origins, published.cache)
    shutil.copytree(published.root, own.root, symlinks=True)
    own.edit("manifests/profiles/full.yaml", "name: full", "nmae: full")
    commit(own, "broken")
    assert "nmae" in user.refused(2, "use", str(own.root))
    assert user.root() is None


@pytest.mark.parametrize("name", ["..", ".git", "a\nb"])
def test_a_file_that_leads_elsewhere_is_refused_and_nothing_stays(
    user: User, published: Made, tmp_path: Path, name: str
) -> None:
    """A tree that git itself would not write."""
    repo = tmp_path / "hostile"
    shutil.copytree(published.root, repo, symlinks=True)
    blob = git(repo, "rev-parse", "HEAD:run.sh").strip()
    inner = hashed(repo, "tree", b"100644 planted\0" + bytes.fromhex(blob))
    top = hashed(repo, "tree", b"40000 " + name.encode() + b"\0" + bytes.fromhex(inner))
    commit = git(repo, "commit-tree", "-m", "hostile", top).strip()
    git(repo, "update-ref", "refs/tags/hostile", commit)
    assert "the repository has a file that is not written" in user.refused(3, "use", f"{repo}@hostile")
    assert user.root() is None and not list(user.home.rglob("planted"))


def hashed(repo: Path, kind: str, data: bytes) -> str:
    line = ["git", "-C", str(repo), "hash-object", "-t", kind, "-w", "--literally", "--stdin"]
    return subprocess.run(line, input=data, env=GIT_ENV, capture_output=True, check=True).stdout.decode().strip()


@pytest.mark.parametrize(
    "line", [("edit", "greeter"), ("lock",), ("new", "x", "--stack", "greeter"), ("prove", "typo")]
)
def test_a_verb_that_writes_says_how_to_clone(user: User, published: Made, line: tuple[str, ...]) -> None:
    user.good("use", f"{published.root}@v1")
    message = user.refused(2, *line)
    assert f"patchctl: {line[0]} works on a clone" in message
    assert f"run the same in {published.root}" in message or f"git clone --branch v1 {published.root} " in message


def test_one_of_url_list_and_none(user: User) -> None:
    for line in ((), ("--list", "--none"), ("URL", "--list")):
        assert "name a URL, --list or --none" in user.refused(2, "use", *line)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("https://host/a/b.git", ("https://host/a/b.git", None)),
        ("https://me@host/a.git", ("https://me@host/a.git", None)),
        ("git+https://me@host/a.git@v1", ("https://me@host/a.git", "v1")),
        ("ssh://git@host:22/a.git@release/1", ("ssh://git@host:22/a.git", "release/1")),
        ("git@host:a/b.git", ("git@host:a/b.git", None)),
        ("git@host:a/b.git@v1", ("git@host:a/b.git", "v1")),
        ("file:///a/b@v1", ("file:///a/b", "v1")),
        ("/a/b@v1", ("/a/b", "v1")),
        ("/a/b@", ("/a/b@", None)),
    ],
)
def test_the_last_at_sign_is_the_revisions(target: str, parts: tuple[str, str | None]) -> None:
    assert split_revision(target) == parts


def test_a_workspace_of_a_bundle_remembers_it_beside_a_default(user: User, published: Made, tmp_path: Path) -> None:
    """A machine without a network has a bundle and an installed patchctl, whose distribution need not be the bundle's."""
    other = make_distribution(tmp_path / "other", lock=True)
    bundle = tmp_path / "plain.tar"
    other.good("bundle", "create", "--profile", "plain", "--out", str(bundle))
    user.good("use", f"{published.root.as_uri()}@main")
    user.good("apply", "--bundle", str(bundle), "--profile", "plain")
    assert "as locked" in user.good("status")
    assert "no errors" in user.good("verify", "--workspace", "workspace")
    assert "no profile 'plain'" in user.refused(2, "apply", "--profile", "plain")
    shutil.rmtree(user.made.cache / "bundles", ignore_errors=False)
    assert "the distribution has no profile plain" in user.run("status").stdout


@pytest.mark.parametrize("verb", [("show", "nothing"), ("drift", "--profile", "nothing")])
def test_with_root_hints_are_commands_that_work(published: Made, tmp_path: Path, verb: tuple[str, ...]) -> None:
    """Outside the distribution, where a command that named none would take another, or none."""
    user = User(published, tmp_path)
    hint = user.refused(2, "--root", str(published.root), *verb).partition("try: ")[2]
    told = json.loads(user.run("--root", str(published.root), *verb, "--json").stdout)["error"]["hint"]
    assert " ".join(told.split()) == " ".join(hint.split())
    commands = re.findall("`(patchctl [^`]*)`", hint)
    assert commands, hint
    for one in commands:
        user.good(*shlex.split(one)[1:])


def test_root_is_named_where_it_matters_alone(published: Made, tmp_path: Path) -> None:
    user, root = User(published, tmp_path), str(published.root)
    made = ["apply", "--profile=full", "--workspace=ws"]
    said = user.good("--root", root, *made)
    assert "--root" not in said
    (user.home / "ws/greeter/README.md").write_text("edited\n")
    for named in (["--root", root], []):  # the second takes the distribution that the workspace was made from
        said = user.run(*named, "status", "--workspace=ws").stdout
        todo = re.search("^next: (patchctl .*)$", said, re.MULTILINE)
        assert todo and shlex.split(todo[1])[1:4] == ["--root", root, "drift"]
        assert user.run(*shlex.split(todo[1])[1:]).returncode == 1, "drift has a finding, the edit"
    other = run_patchctl("--root", ".", "show", "nothing", home=published.root)
    assert "`patchctl list patches`" in other.stderr, "the folder that it runs in has it"


def test_with_root_what_is_no_advice_stays_as_it_is(published: Made, tmp_path: Path) -> None:
    """A lock, a diff and a patch are data, whatever they say of commands."""
    user, root = User(published, tmp_path), str(published.root)
    user.good("--root", root, "apply", "--profile=full", "--workspace=ws")
    (user.home / "ws/greeter/README.md").write_text("`patchctl list`\npatchctl list\n")
    said = user.run("--root", root, "drift", "--workspace=ws").stdout
    assert "+`patchctl list`" in said and "+patchctl list" in said


def test_a_root_that_leads_to_itself_is_wrong_use(published: Made, tmp_path: Path) -> None:
    user = User(published, tmp_path)
    user.home.mkdir()
    (user.home / "loop").symlink_to("loop")
    assert "no folder" in user.refused(2, "--root", "loop", "list")


def test_a_current_folder_that_is_gone_is_wrong_use(tmp_path: Path) -> None:
    shell = f'mkdir away && cd away && rmdir ../away && exec "{sys.executable}" -m patchctl list profiles'
    done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "no longer there" in done.stderr) == (2, True), done.stderr
