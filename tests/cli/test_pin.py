"""`pin`: a new stack beside the old one, from a repository and a package index that are really asked."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, Made, git, make_distribution, run_patchctl, write_files
from killing import killed, points
from on_disk import snapshot

VERSION = "__version__ = version = '{0}'\n__version_tuple__ = version_tuple = {1}\n__commit_id__ = commit_id = '{2}'\n"
POINTS = 8
SETUP = "from setuptools_scm import get_version\nget_version(write_to='greeter/_version.py')\n"


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """greeter with a tag, a source distribution, and a generated file that its setup.py names."""
    files = {**GREETER.files, "setup.py": SETUP}
    made = make_distribution(
        tmp_path / "made", (replace(GREETER, files=files, sdist=("README.md", "greeter/hello.py")), CLOCK)
    )
    git(made.origins / "greeter", "tag", "v1.0")
    commit = git(made.origins / "greeter", "rev-parse", "HEAD").strip()
    manifest = made.root / "manifests/stacks/greeter/v1.yaml"
    content = "".join(f"      {line}\n" for line in VERSION.format("1.0", "(1, 0)", f"g{commit[:9]}").splitlines())
    block = (
        f"generated:\n  - path: greeter/_version.py\n    why: The version is read from it.\n    content: |\n{content}"
    )
    manifest.write_text(manifest.read_text().replace("  sdist:", "  tag: v1.0\n  sdist:") + block)
    return made


def goes_on(made: Made, files: Mapping[str, str | None], tag: str | None = "v1.1rc2") -> tuple[str, str]:
    origin = made.origins / "greeter"
    write_files(origin, files)
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "--allow-empty", "-m", "the next one")
    if tag:
        git(origin, "tag", "--annotate", "-m", tag, tag)
    commit, tree = git(origin, "rev-parse", "HEAD", "HEAD^{tree}").split()
    return commit, tree


def archive(made: Made, version: str, files: Mapping[str, str], says: str = "") -> None:
    """A source distribution on the index; `says` is what its PKG-INFO says that it is."""
    name, _, inside = (says or f"greeter {version}").partition(" ")
    with tarfile.open(made.index / f"greeter-{version}.tar.gz", "w:gz") as tar:
        for file, text in {**files, "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {inside}\n"}.items():
            info = tarfile.TarInfo(f"greeter-{version}/{file}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))


def pin(made: Made, *args: str, code: int = 0) -> dict[str, Any]:
    done = made.patchctl("pin", *args, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_everything_is_found(made: Made) -> None:
    commit, tree = goes_on(made, {"README.md": "again\n", "requirements.txt": "torch==2.9\n"})
    theirs = VERSION.format("1.1rc2", "(1, 1, 'rc2')", f"g{commit[:9]}")
    archive(made, "1.1rc2", {"README.md": "again\n", "greeter/_version.py": theirs, "greeter/_built.py": "X = 1\n"})
    found = pin(made, "greeter", "1.1rc2")
    assert (found["commit"], found["tree"], found["tag"]) == (commit, tree, "v1.1rc2")
    assert found["sdist"]["version"] == "1.1rc2" and found["forms"] == ["git", "sdist"]
    assert found["notes"] == [
        "generated greeter/_version.py: the source distribution of v1.1rc2 has it",
        "the source distribution has greeter/_built.py, which upstream does not track: does the package need it?",
    ]
    text = (made.root / "manifests/stacks/greeter/v1.1rc2.yaml").read_text()
    assert text == found["manifest"] and "comes_from: v1\n" in text
    assert "version = '1.1rc2'" in text and "(1, 1, 'rc2')" in text and f"'g{commit[:9]}'" in text
    made.good("lock", "--upstream", "greeter")
    (finding,) = [
        f
        for f in json.loads(made.patchctl("verify", "--static", "--json").stdout)["findings"]
        if f["rule"] == "dropped"
    ][:1]
    assert "v1 has loud, and this stack has not" in finding["message"]


def test_files_of_a_submodule_are_one_line(made: Made) -> None:
    origin = made.origins / "greeter"
    git(origin, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},third_party/kernels")
    git(origin, "commit", "--quiet", "-m", "with a submodule")
    git(origin, "tag", "v1.1")
    theirs = VERSION.format("1.1", "(1, 1)", f"g{git(origin, 'rev-parse', 'HEAD')[:9]}")
    inside = {f"third_party/kernels/{name}": "int x;\n" for name in ("a.h", "b.h", "deep/c.h")}
    archive(made, "1.1", {"greeter/_version.py": theirs, "third_party/kernelsort.h": "int y;\n", **inside})
    assert pin(made, "greeter", "1.1")["notes"] == [
        "generated greeter/_version.py: the source distribution of v1.1 has it",
        "the source distribution has 3 files of the submodule third_party/kernels",
        "the source distribution has third_party/kernelsort.h, which upstream does not track: does the package need it?",
    ]


def test_the_proposal_names_file_and_line(made: Made) -> None:
    upstreams = made.root / "manifests/upstreams.yaml"
    more = "requirements:\n  torch:\n    summary: T.\n    kind: python\n    distribution: torch\n"
    upstreams.write_text(upstreams.read_text() + more)
    goes_on(made, {"requirements.txt": "numpy\ntorch==2.9.0\n"})
    (one,) = pin(made, "greeter", "v1.1rc2", "--dry-run")["runtime"]
    assert one == {"name": "torch", "value": "==2.9.0", "file": "requirements.txt", "line": 2}
    assert "no profile was changed" in made.good("pin", "greeter", "v1.1rc2", "--dry-run")


def test_a_dry_run_writes_nothing(made: Made) -> None:
    goes_on(made, {"README.md": "again\n"})
    before = snapshot(made.root)
    assert "dry run" in made.good("pin", "greeter", "v1.1rc2", "--dry-run")
    assert snapshot(made.root) == before


def test_a_branch_and_a_commit(made: Made) -> None:
    commit, tree = goes_on(made, {"README.md": "again\n"}, tag=None)
    assert pin(made, "greeter", "main", "--dry-run")["stack"] == "main"
    found = pin(made, "greeter", commit, "--name", "today")
    assert (found["stack"], found["commit"], found["tree"], found["tag"]) == ("today", commit, tree, None)


def test_of_a_commits_tags_that_of_the_latest_version_counts(made: Made) -> None:
    commit, _ = goes_on(made, {"README.md": "again\n"}, tag=None)
    for tag in ("V1.3-RC", "release/v1.2", "v1.1.0", "v1.0.9"):
        git(made.origins / "greeter", "tag", tag)
    git(made.origins / "greeter", "update-ref", "refs/tags/-dash", commit)
    assert pin(made, "greeter", commit, "--dry-run")["tag"] == "v1.1.0"
    for tag in ("v1.1.0", "v1.0.9", "release/v1.2", "V1.3-RC"):
        git(made.origins / "greeter", "tag", "--delete", tag)
    assert pin(made, "greeter", commit, "--dry-run")["tag"] is None


def test_the_first_digits_of_a_commit(made: Made) -> None:
    commit, _ = goes_on(made, {"README.md": "again\n"}, tag=None)
    for length in (7, 12):
        found = pin(made, "greeter", commit[:length], "--dry-run")
        assert (found["stack"], found["commit"], found["sdist"]) == (commit[:length], commit, None)
    error = pin(made, "greeter", "0123456", code=3)["error"]
    assert "give all 40 digits" in error["tried"][0]["reason"]


def test_a_new_import_that_nothing_provides_is_noted(made: Made) -> None:
    guarded = "try:\n    import perhaps\nexcept ImportError:\n    perhaps = None\n"
    text = (
        f"import os\nimport numpy.linalg\nimport yaml\nimport adaptor_of_theirs\nfrom greeter import hello\n{guarded}"
    )
    goes_on(made, {"greeter/more.py": text, "requirements.txt": "numpy>=2\npyyaml\n"})
    notes = pin(made, "greeter", "v1.1rc2")["notes"]
    assert [n for n in notes if "is imported" in n] == [
        "adaptor_of_theirs is imported at greeter/more.py:4, and was not before: neither the tree nor its requirements name it"
    ]
    goes_on(made, {"greeter/other.py": "import adaptor_of_theirs\n"}, tag="v1.2")
    assert not any("is imported" in n for n in pin(made, "greeter", "v1.2")["notes"])


def test_a_release_follows_the_newest_stack_that_is_not_newer(made: Made) -> None:
    goes_on(made, {"README.md": "again\n"})
    pin(made, "greeter", "v1.1rc2")
    goes_on(made, {"README.md": "mended\n"}, tag="v1.0.1")
    assert "comes_from: v1\n" in pin(made, "greeter", "v1.0.1", "--dry-run")["manifest"]
    goes_on(made, {"README.md": "anew\n"}, tag="v1.2")
    assert "comes_from: v1.1rc2\n" in pin(made, "greeter", "v1.2", "--dry-run")["manifest"]


def test_it_overwrites_nothing(made: Made) -> None:
    goes_on(made, {"README.md": "again\n"})
    pin(made, "greeter", "v1.1rc2")
    before = snapshot(made.root)
    assert "a stack greeter/v1.1rc2 already" in pin(made, "greeter", "v1.1rc2", code=2)["error"]["what"]
    assert snapshot(made.root) == before


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"setup.py": "print('nothing is generated')\n"}, "nothing at v1.1rc2 names it"),
        ({"greeter/_version.py": "__version__ = '1.1'\n"}, "upstream tracks it at v1.1rc2"),
    ],
    ids=["gone", "tracked"],
)
def test_a_generated_file_that_is_not_expected_any_more(made: Made, files: dict[str, str], says: str) -> None:
    goes_on(made, files)
    before = snapshot(made.root)
    error = pin(made, "greeter", "v1.1rc2", code=2)["error"]
    assert f"greeter/_version.py: {says}" in error["what"] and snapshot(made.root) == before


def test_an_unknown_revision_names_every_place_and_what_is_like_it(made: Made) -> None:
    goes_on(made, {"README.md": "again\n"})
    error = pin(made, "greeter", "v1.1rc3", code=3)["error"]
    (tried,) = error["tried"]
    assert "similar: v1.1rc2" in tried["reason"] and "--commit" in error["hint"]


def test_without_a_repository_the_user_says_the_commit(made: Made) -> None:
    commit, _ = goes_on(made, {"README.md": "again\n"})
    version = VERSION.format("1.1rc2", "(1, 1, 'rc2')", f"g{commit[:9]}")
    archive(made, "1.1rc2", {"README.md": "again\n", "greeter/_version.py": version})
    (made.origins / "greeter").rename(made.origins / "gone")
    assert pin(made, "greeter", "v1.1rc2", code=3)["error"]["tried"]
    wrong = pin(made, "greeter", "v1.1rc2", "--commit", "0" * 40, code=3)["error"]
    assert f"is commit {commit[:9]}" in wrong["what"]
    by_version = pin(made, "greeter", "1.1rc2", "--commit", commit, "--dry-run")
    found = pin(made, "greeter", "v1.1rc2", "--commit", commit)
    assert (found["commit"], found["tree"], found["forms"]) == (commit, None, ["sdist"])
    assert (by_version["stack"], by_version["tag"]) == (found["stack"], found["tag"]) == ("v1.1rc2", "v1.1rc2")


def test_a_version_file_of_another_value_is_noted(made: Made) -> None:
    commit, _ = goes_on(made, {"README.md": "again\n"})
    version = VERSION.format("1.1rc2.dev0", "(1, 1, 'rc2')", f"g{commit[:9]}")
    archive(made, "1.1rc2", {"README.md": "again\n", "greeter/_version.py": version})
    notes = pin(made, "greeter", "v1.1rc2")["notes"]
    assert (
        "generated greeter/_version.py: __version__ is '1.1rc2', and '1.1rc2.dev0' in the source distribution" in notes
    )


def test_of_the_source_distribution_alone(made: Made) -> None:
    """`--source sdist` asks no repository, though one is there; everything works with such a stack."""
    commit, _ = goes_on(made, {"README.md": "again\n"})
    version = VERSION.format("1.1rc2", "(1, 1, 'rc2')", f"g{commit[:9]}")
    archive(
        made, "1.1rc2", {**GREETER.files, "README.md": "again\n", "greeter/_version.py": version, "setup.py": SETUP}
    )
    found = pin(made, "greeter", "1.1rc2", "--source", "sdist")
    sha256 = found["sdist"]["sha256"]
    assert (found["stack"], found["commit"], found["tree"], found["tag"]) == ("v1.1rc2", f"sdist:{sha256}", None, None)
    assert found["forms"] == ["sdist"] and "commit: null  # the source distribution alone" in found["manifest"]
    assert f"the source distribution says that it is commit {commit[:9]}, which nothing has proven" in found["notes"]
    assert f"'g{commit[:9]}'" in found["manifest"], "the generated file names the archive's commit"
    (made.origins / "greeter").rename(made.origins / "gone")
    manifest = made.root / "manifests/stacks/greeter/v1.1rc2.yaml"
    (made.root / "manifests/profiles/alone.yaml").write_text(
        "schema: 1\nname: alone\nsummary: S.\nstacks: {greeter: v1.1rc2}\n"
    )
    workspace, profile = made.root.parent / "ws", ("--profile", "alone")
    made.good("fetch", *profile)
    made.good("apply", *profile, "--workspace", str(workspace))  # of an empty stack
    assert (workspace / "greeter/README.md").read_text() == "again\n"

    made.good("rebase", "greeter/v1", "--to", "v1.1rc2", "--source", "sdist")
    assert "commit: null" in manifest.read_text() and "-polite.patch" in manifest.read_text()
    locked = json.loads((made.root / "manifests/locks/greeter/v1.1rc2.json").read_text())
    assert {form for r in locked["results"] for form in r["forms"]} == {"sdist"} and locked["pin"]["commit"] is None
    made.good("lock")
    listed = (made.root / "manifests/trees/greeter/v1.1rc2.tsv").read_text()
    assert listed.startswith(f"# greeter v1.1rc2: sdist greeter 1.1rc2 sha256 {sha256}\n")

    made.good("apply", *profile, "--workspace", str(workspace))
    (tree,) = json.loads(made.good("status", "--workspace", str(workspace), "--json"))["trees"]
    assert (tree["pin"], tree["form"], len(tree["patches"])) == (f"sdist:{sha256}", "sdist", 3)
    made.good("verify", "--workspace", str(workspace))
    verified = json.loads(made.patchctl("verify", "--json").stdout)
    assert not [f for f in verified["findings"] if f["rule"] in ("lock-tree", "tree-list", "applies", "lock")]
    (same,) = json.loads(made.good("identify", str(workspace / "greeter"), "--json"))["trees"]
    assert (same["commit"], same["stacks"], same["exact"]) == (f"sdist:{sha256}", ["v1.1rc2"], True)
    assert f"sdist:{sha256}" in made.good("list", "stacks", "--json")
    made.good("lock", "--pages")

    made.good("edit", "greeter/v1.1rc2", "--dir", str(workspace.parent / "edited"))
    made.good("export", "greeter/v1.1rc2", "--dir", str(workspace.parent / "edited"))
    drift = made.patchctl("drift", "greeter/v1.1rc2", "--against", "1.1rc2", "--json")
    assert drift.returncode == 0, drift.stdout + drift.stderr
    bundle = workspace.parent / "alone.tar"
    made.good("bundle", "create", *profile, "--out", str(bundle))
    args = ("apply", "--bundle", str(bundle), *profile, "--workspace", str(workspace.parent / "elsewhere"))
    done = run_patchctl(f"--cache={workspace.parent / 'no cache'}", *args, home=workspace.parent / "no home")
    assert done.returncode == 0, done.stdout + done.stderr
    head = ("rev-parse", "HEAD")
    assert git(Path(args[-1]) / "greeter", *head) == git(workspace / "greeter", *head)
    made.good("revert", "--workspace", str(workspace))
    nothing = made.patchctl("fetch", *profile, "--refresh", "--source", "git")
    assert nothing.returncode == 3 and "a source distribution only and names no commit" in nothing.stderr


@pytest.mark.parametrize("says", ["greeter 1.1rc1", "other 1.1rc2", "greeter one"])
def test_an_archive_under_another_name_is_not_pinned(made: Made, says: str) -> None:
    goes_on(made, {"README.md": "again\n"})
    archive(made, "1.1rc2", {**GREETER.files, "README.md": "again\n", "setup.py": SETUP}, says)
    before = snapshot(made.root)
    error = pin(made, "greeter", "1.1rc2", "--source", "sdist", code=3)["error"]
    assert error["what"].endswith(f"says that it is {says}") and snapshot(made.root) == before


def test_an_index_without_it_says_so(made: Made) -> None:
    goes_on(made, {"README.md": "again\n"})
    before = snapshot(made.root)
    error = pin(made, "greeter", "1.1rc2", "--source", "sdist", code=3)["error"]
    assert "no place has a source distribution of 1.1rc2" in error["what"] and error["tried"]
    assert snapshot(made.root) == before


def test_a_repository_that_names_it_and_cannot_give_it(made: Made) -> None:
    """A fetch that broke off: without its tree the pin would be a weaker one than the next run makes."""
    commit, _ = goes_on(made, {"README.md": "again\n"})
    archive(made, "1.1rc2", {"greeter/_version.py": VERSION.format("1.1rc2", "(1, 1, 'rc2')", f"g{commit[:9]}")})
    blob = git(made.origins / "greeter", "rev-parse", "HEAD:README.md").strip()
    file = made.origins / "greeter/.git/objects" / blob[:2] / blob[2:]
    held, before = file.read_bytes(), snapshot(made.root)
    file.unlink()
    error = pin(made, "greeter", "v1.1rc2", code=3)["error"]
    assert commit in error["what"] and error["tried"] and "--source sdist" in error["hint"]
    assert snapshot(made.root) == before
    assert (
        "tree: null"
        in pin(made, "greeter", "v1.1rc2", "--dry-run", "--source", "sdist", "--commit", commit)["manifest"]
    )
    file.write_bytes(held)
    assert pin(made, "greeter", "v1.1rc2", "--dry-run")["forms"] == ["git", "sdist"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_an_archive_that_finds_no_room_is_not_left_out(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    from patchctl.errors import MachineFailed
    from patchctl.source import package_index
    from patchctl.source.places import IndexConfig
    from patchctl.terminal.progress import Progress

    archive(made, "1.1rc2", {"README.md": "again\n"})
    full = made.root.parent / "full"
    full.mkdir()
    (full / "archive").symlink_to("/dev/full")
    monkeypatch.setattr(
        package_index, "machine_config", lambda: IndexConfig(index_urls=(), find_links=(str(made.index),))
    )
    with pytest.raises(MachineFailed, match="No space left"):
        package_index.find_digest("greeter", "1.1rc2", full, Progress(), [])


@pytest.mark.heavy("killed at every operation")
def test_killed_anywhere_it_has_written_all_or_nothing(made: Made) -> None:
    """With nothing in the cache, from both places; the next run is hindered by nothing that a killed one left."""
    commit, _ = goes_on(made, {"README.md": "again\n"})
    archive(made, "1.1rc2", {"greeter/_version.py": VERSION.format("1.1rc2", "(1, 1, 'rc2')", f"g{commit[:9]}")})
    line, manifest = ("pin", "greeter", "v1.1rc2"), made.root / "manifests/stacks/greeter/v1.1rc2.yaml"
    before = snapshot(made.root)
    code, total = killed(made, 0, *line)
    assert code == 0 and total > 15
    whole = manifest.read_bytes()
    for at in points(total, POINTS):
        manifest.unlink(missing_ok=True)
        shutil.rmtree(made.cache)
        assert killed(made, at, *line)[0] == -9
        if manifest.exists():
            assert manifest.read_bytes() == whole, at
            continue
        left = {p: s for p, s in snapshot(made.root).items() if not p.endswith("/.v1.1rc2.yaml.new")}
        assert left == before, at
        assert pin(made, *line[1:])["manifest"].encode() == manifest.read_bytes() == whole, at
        made.good("list", "stacks")


def test_the_first_stack_of_an_upstream(made: Made, tmp_path: Path) -> None:
    for path in ("manifests/stacks/clock", "patches/clock", "manifests/profiles"):
        shutil.rmtree(made.root / path)
    found = pin(made, "clock", "main")
    assert found["comes_from"] is None and found["commit"] == git(made.origins / "clock", "rev-parse", "main").strip()
    text = (made.root / "manifests/stacks/clock/main.yaml").read_text()
    assert "comes_from" not in text and text.endswith("patches: []\n")
    assert "clock    main" in made.good("list", "stacks")
    made.good("lock")
    made.good("verify", "--static")
    done = made.good("pin", "clock", "main", "--name", "again", "--dry-run")
    assert done.startswith("clock/again  comes from main")
