"""patchctl prove, and what `verify` makes of its records: what is accepted as proof, what is not, and when it ends to hold."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, Made, Patch, Upstream, git, make_distribution
from test_json import check_output
from test_releases import without_patches

from patchctl.catalog.evidence import Proof, read_record, write_record

pytestmark = pytest.mark.heavy("runs pytest in processes of its own, some hundred times")

FEATURE = "patches/greeter/v1/typo"
TEST = f"{FEATURE}/tests/test_typo.py"
PROBE = f"{FEATURE}/tests/probe_typo.py"
MUTANT = f"{FEATURE}/mutants/typo.yaml"
RECORD = f"{FEATURE}/evidence.json"
SECOND = "patches/greeter/v2/typo"
# What docs/evidence/README.md asks of the tests of a distribution of one's own, and no more.
CONFTEST = """
import json, pathlib, pytest
HERE = pathlib.Path(__file__).parent
def pytest_addoption(parser):
    parser.addoption("--trees")
    parser.addoption("--stack", action="append", default=[])
    parser.addoption("--used")
    parser.addoption("--slow", action="store_true")
    parser.addoption("--dropped")
def pytest_configure(config):
    for name in ("on", "off", "misuse"):
        config.addinivalue_line("markers", name)
def pytest_collection_modifyitems(items):
    for item in items:
        item.user_properties += [("mark", mark.name) for mark in item.iter_markers()]
def pytest_sessionfinish(session):
    probes = sorted(str(p.relative_to(HERE)) for p in HERE.glob("patches/*/*/*/tests/probe_*.py"))
    if used := session.config.getoption("--used"):
        pathlib.Path(used).write_text(json.dumps(probes))
@pytest.fixture
def code(request):
    tree = pathlib.Path(request.config.getoption("--trees"), "greeter")
    if not tree.is_dir():
        pytest.skip("no tree of greeter")
    return (tree / "greeter/hello.py").read_text()
"""
TESTS = """
import pytest
@pytest.mark.on
def test_need(code):
    assert "Hello" in code
@pytest.mark.off
def test_rest(code):
    assert "shout" in code
"""
MISUSE = '@pytest.mark.misuse\ndef test_refusal(code):\n    assert "environ" in code\n'
# The harness's words (tests/behaviour/harness.py) for a probe whose time limit ended it: nothing is shown by that.
LATE = 'raise AssertionError("probe_typo.py (rank 0) was killed after 2 s of 2 s")'
KEYS = "file: greeter/hello.py\nwhy: the fix goes\n"
MUTATION = f"{KEYS}replace: Hello\nwith: Helo\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One feature with its tests, and the trees that they run on."""
    typo = replace(GREETER, patches=GREETER.patches[:1])
    made = make_distribution(tmp_path_factory.mktemp("prove"), (typo,), lock=True)
    (made.root / "manifests/profiles/plain.yaml").unlink(missing_ok=True)
    write(made.root, {"conftest.py": CONFTEST, TEST: TESTS, PROBE: "", MUTANT: MUTATION})
    for name in ("base", "patched"):
        made.good("apply", "--profile", "full", "--workspace", str(made.root.parent / "trees" / name))
    made.good("revert", "--workspace", str(made.root.parent / "trees/base"))
    return made


@pytest.fixture
def made(locked: Made, tmp_path: Path) -> Made:
    """A copy of the distribution; the trees are shared, and nothing may change them."""
    return replace(locked, root=Path(shutil.copytree(locked.root, tmp_path / "distribution")))


@pytest.fixture(scope="module")
def shown(locked: Made, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same, proven once."""
    root = tmp_path_factory.mktemp("shown") / "distribution"
    shown = replace(locked, root=Path(shutil.copytree(locked.root, root)))
    prove(shown)
    return shown


@pytest.fixture
def proven(shown: Made, tmp_path: Path) -> Made:
    """A copy of what is proven."""
    return replace(shown, root=Path(shutil.copytree(shown.root, tmp_path / "distribution")))


def trees(made: Made) -> str:
    return str(made.cache.parent / "trees")


def prove(made: Made, *more: str, code: int = 0) -> Any:
    done = made.patchctl("prove", "typo", "--trees", trees(made), "--json", *more, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    check_output(found, "patchctl.prove/1")
    (feature,) = found["features"]
    return feature


def unproven(made: Made) -> list[str]:
    """What `verify --proven` says of features, which must be all it finds."""
    done = made.patchctl("verify", "--static", "--proven", "--json")
    found = [f for f in json.loads(done.stdout)["findings"] if f["rule"] == "proven"]
    assert done.returncode == 1 or not found, done.stdout
    assert all(f["severity"] == "error" for f in found)
    return [f["message"].partition(": ")[2] for f in found]


def recorded(made: Made, stack: str, mutation: str | None = None) -> Proof:
    """What stands on record of the feature's tests on a stack, or of one of its mutations."""
    record = read_record(made.root, "greeter", stack, "typo")
    assert record is not None
    proof = record.tests if mutation is None else record.mutants[mutation]
    assert proof is not None
    return proof


def test_what_is_on_record_makes_no_trees(proven: Made) -> None:
    """It took 207 s to say that nothing had to run; now no source is needed for that."""

    def prove_without_a_source(*more: str) -> tuple[int, str]:
        done = proven.patchctl("prove", "typo", "--source", "sdist", *more)
        return done.returncode, done.stdout + done.stderr

    code, said = prove_without_a_source()
    assert code == 0 and "proven" in said
    assert prove_without_a_source("--rerun")[0] == 3
    (proven.root / MUTANT).write_text(MUTATION + "\n")
    assert prove_without_a_source("--only", "tests")[0] == 0
    assert prove_without_a_source()[0] == 3


def test_a_record_is_checked_by_running_it_again(proven: Made) -> None:
    """Nothing is written, and what ended otherwise than the record says is a problem."""
    file = proven.root / RECORD
    before = file.read_bytes()
    feature = prove(proven, "--check")
    assert feature["status"] == "proven" and feature["kept"] == 0 and file.read_bytes() == before
    assert prove(proven, "--check", "--only", "mutants")["status"] == "proven"
    assert proven.patchctl("prove", "typo", "--alone", "--only", "mutants").returncode == 2
    stored = read_record(proven.root, "greeter", "v1", "typo")
    assert stored is not None and stored.tests is not None
    other = {**stored.tests.results, "base": {**stored.tests.results["base"], "test_rest": "off failed"}}
    write_record(proven.root, replace(stored, tests=replace(stored.tests, results=other)))
    told = file.read_bytes()
    feature = prove(proven, "--check", code=1)
    assert feature["reasons"] == ["test_rest on the base trees: off passed, and the record says off failed"]
    assert file.read_bytes() == told
    file.unlink()
    assert prove(proven, "--check", code=1)["reasons"] == ["no record to compare with"]


def test_what_changed_since_a_commit_is_taken(proven: Made) -> None:
    root = proven.root
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "a release")
    assert "no record is another than at HEAD" in proven.good("prove", "--all", "--since", "HEAD")
    record = root / RECORD
    record.write_text(record.read_text() + "\n")
    assert prove(proven, "--check", "--since", "HEAD")["status"] == "proven"
    git(root, "rm", "--quiet", "--cached", RECORD)
    git(root, "commit", "--quiet", "-m", "its record is not added yet")
    assert prove(proven, "--check", "--since", "HEAD")["status"] == "proven"
    unknown = proven.patchctl("prove", "--all", "--since", "v9")
    assert unknown.returncode == 2 and "git cannot compare the distribution with 'v9'" in unknown.stderr


def test_records_are_signed(proven: Made) -> None:
    folder = proven.root.parent
    for name in ("key", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        public = (folder / f"{name}.pub").read_text()
        (folder / f"{name}.signers").write_text(f"patchctl@localhost {public}")

    def verified(signers: str) -> tuple[int, str]:
        done = proven.patchctl("verify", "--static", "--proven", "--record-signers", str(folder / f"{signers}.signers"))
        return done.returncode, done.stdout

    assert verified("key")[0] == 1 and "its record has no signature that counts" in verified("key")[1]
    assert prove(proven, "--sign", str(folder / "key"))["kept"] == 2
    assert verified("key")[0] == 0, verified("key")
    assert verified("other")[0] == 1
    record = proven.root / RECORD
    record.write_text(record.read_text() + "\n")
    assert verified("key")[0] == 1 and unproven(proven) == []
    prove(proven, "--sign", str(folder / "key"))
    assert verified("key")[0] == 0


def test_red_green_and_a_red_mutation_are_a_proof(made: Made) -> None:
    patched = Path(trees(made), "patched/greeter/greeter/hello.py")
    before = patched.stat().st_ino, patched.read_text()
    assert unproven(made) == ["no record"]
    feature = prove(made)
    assert (feature["status"], feature["reasons"], feature["kept"]) == ("proven", [], 0)
    assert {(one["test"], one["result"]) for one in feature["base"]} == {
        ("test_need", "failed"),
        ("test_rest", "passed"),
    }
    assert [one["result"] for one in feature["mutants"]["typo"]] == ["failed"]
    assert (patched.stat().st_ino, patched.read_text()) == before
    assert sorted(path.name for path in Path(trees(made)).iterdir()) == ["base", "patched"]
    tests, mutant = recorded(made, "v1"), recorded(made, "v1", "typo")
    assert tests.results["base"] == {"test_need": "on failed", "test_rest": "off passed"}
    assert tests.files.keys() == {TEST, PROBE} == mutant.files.keys()
    assert mutant.results == {"mutant": {"test_need": "on failed"}}
    assert tests.environment["python"] and tests.trees["greeter"].startswith("v1 git ")
    assert unproven(made) == []


def test_what_the_record_shows_does_not_run_again(proven: Made) -> None:
    made = proven
    first = (made.root / RECORD).read_bytes()
    feature = prove(made)
    assert (feature["status"], feature["kept"], feature["base"], feature["mutants"]) == ("proven", 2, [], {})
    write(made.root, {f"{FEATURE}/mutants/typo.other.yaml": MUTATION.replace("Helo", "Hallo")})
    feature = prove(made)
    assert (feature["kept"], list(feature["mutants"])) == (2, ["typo.other"])
    (made.root / FEATURE / "mutants/typo.other.yaml").unlink()
    assert len(prove(made, "--rerun")["base"]) == 2
    assert (made.root / RECORD).read_bytes() == first


def test_what_moved_with_the_same_bytes_does_not_run_again(proven: Made) -> None:
    """And the record stays as it was: it says what was run, and where that lay then."""
    record = (proven.root / RECORD).read_bytes()
    new = "patches/greeter/shared/typo/probe_typo.py"
    write(proven.root, {new: ""})
    (proven.root / PROBE).unlink()
    (proven.root / TEST).rename(proven.root / FEATURE / "tests/test_typo_renamed.py")
    assert unproven(proven) == []
    feature = prove(proven)
    assert (feature["status"], feature["kept"]) == ("proven", 2)
    assert (proven.root / RECORD).read_bytes() == record
    write(proven.root, {new: "# more\n"})
    assert unproven(proven) == [f"{PROBE} is gone"]


def test_parts_are_recorded_apart(made: Made) -> None:
    assert prove(made, "--only", "tests")["mutants"] == {}
    assert unproven(made) == ["mutation typo was not run"]
    assert prove(made, "--only", "mutants")["base"] == []
    assert unproven(made) == []


PATCH = "patches/greeter/v1/typo/0001-bugfix-typo.patch"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda made: made.edit(TEST, "shout", "shout("), f"{TEST} has changed"),
        (lambda made: write(made.root, {PROBE: "# more\n"}), f"{PROBE} has changed"),
        (lambda made: (made.root / PROBE).unlink(), f"{PROBE} is gone"),
        (lambda made: made.edit(MUTANT, "Helo", "Hallo"), f"{MUTANT} has changed"),
        (lambda made: write(made.root, {f"{FEATURE}/tests/test_typo_more.py": TESTS}), "typo_more.py was not run"),
        (lambda made: write(made.root, {f"{FEATURE}/mutants/typo.x.yaml": MUTATION}), "mutation typo.x was not run"),
        (lambda made: made.edit(PATCH, "Hello", "Hallo"), "the patch or one of its"),
        (lambda made: made.edit(PATCH, "\n def ", "\n async def "), "the patch or one of its"),
        (
            lambda made: made.edit(RECORD, '"schema": "patchctl.evidence/2"', '"schema": "mine"'),
            "not a record written by patchctl",
        ),
        (lambda made: (made.root / RECORD).write_text("{"), "not a record written by patchctl"),
        (lambda made: made.edit(RECORD, '"feature": "typo"', '"feature": "loud"'), "it is for loud on greeter/v1"),
    ],
)
def test_what_changed_ends_the_proof(proven: Made, change: Callable[[Made], object], why: str) -> None:
    change(proven)
    (said,) = unproven(proven)
    assert why in said


@pytest.mark.parametrize(
    ("pattern", "other"),
    [
        (r"@@ -(\d+)(.*) \+(\d+)", r"@@ -9\1\2 +9\3"),  # another patch makes the file longer
        (r"index \w", "index 0"),
        (r"Subject: \[PATCH\] hello", "Subject: [PATCH] the greeting"),
    ],
)
def test_where_the_lines_are_and_what_the_header_says_do_not_end_it(proven: Made, pattern: str, other: str) -> None:
    file = proven.root / PATCH
    text, count = re.subn(pattern, other, file.read_text())
    assert count == 1
    file.write_text(text)
    assert unproven(proven) == []


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        (TEST, TESTS.replace('"Hello" in', '"hello" in'), "base: on test_need passed, must be failed"),
        (TEST, TESTS.replace('"shout" in', '"Hello" in'), "base: off test_rest failed, must be passed"),
        (TEST, TESTS.replace('"Hello" in', '"Hullo" in'), "patched: on test_need failed"),
        (TEST, TESTS + "def test_unmarked(): pass\n", "test_unmarked needs exactly one"),
        (TEST, "import nothing_of_this_name\n", "error"),
        (TEST, TESTS.replace("(code)", "(nothing)"), "base: on test_need error"),
        (TEST, TESTS.replace('assert "Hello" in code', f'if "Hello" not in code: {LATE}'), "base: on test_need error"),
        (MUTANT, MUTATION.replace("replace: Hello", "replace: absent"), "occurs 0 times in greeter/hello.py"),
        (MUTANT, MUTATION.replace("with: Helo", "with: Hello, too"), "no `on` or `misuse` test fails"),
    ],
)
def test_what_is_no_proof_takes_the_record_away(proven: Made, file: str, text: str, problem: str) -> None:
    made = proven
    write(made.root, {file: text})
    feature = prove(made, code=1)
    assert feature["status"] == "not proven" and any(problem in reason for reason in feature["reasons"])
    record = json.loads((made.root / RECORD).read_text())
    assert (record["tests"] is None) == (file == TEST)
    assert len(unproven(made)) == 1


@pytest.mark.parametrize("hang", [LATE, "import time; time.sleep(600)"])
def test_a_mutation_that_hangs_is_red_where_the_patched_trees_do_not(made: Made, hang: str) -> None:
    late = TESTS.replace("    assert", f"    if 'Hola' in code: {hang}\n    assert", 1)
    write(made.root, {TEST: late, MUTANT: MUTATION.replace("Helo", "Hola")})
    feature = prove(made, "--timeout", "10")
    assert feature["status"] == "proven"
    (red,) = [one for one in feature["mutants"]["typo"] if one["result"] == "failed"]
    assert red["mark"] == "on" and "was killed after" in red["message"]
    proof = recorded(made, "v1", "typo")
    assert next(iter(proof.results["mutant"].values())) == "on failed"
    assert proof.files.keys() == {TEST, PROBE}


def test_a_mutation_that_hangs_where_the_patched_trees_do_is_not_proven(made: Made) -> None:
    once = made.root / "ran"
    # The tests on both trees end; then everything hangs.
    late = TESTS.replace(
        "    assert",
        f"    import pathlib, time\n    runs = pathlib.Path({str(once)!r})\n    runs.touch()\n"
        "    with runs.open('a') as out: out.write('.')\n"
        "    if len(runs.read_text()) > 2: time.sleep(600)\n    assert",
        1,
    )
    write(made.root, {TEST: late})
    reasons = prove(made, "--timeout", "10", code=1)["reasons"]
    assert any("no `on` or `misuse` test fails" in one and "was killed after 10 s" in one for one in reasons), reasons


def test_mutations_run_side_by_side(made: Made) -> None:
    """Two that wait for each other end only if both run at a time."""
    place = made.root / "met"
    place.mkdir()
    meet = (
        f"    import pathlib, time\n    place = pathlib.Path({str(place)!r})\n"
        "    for word, other in ('Hallo', 'Hola'), ('Hola', 'Hallo'):\n"
        "        if word in code:\n            (place / word).touch()\n"
        "            while not (place / other).exists(): time.sleep(0.05)\n    assert"
    )
    second = f"{FEATURE}/mutants/typo.second.yaml"
    write(
        made.root,
        {
            TEST: TESTS.replace("    assert", meet, 1),
            MUTANT: MUTATION.replace("Helo", "Hallo"),
            second: MUTATION.replace("Helo", "Hola"),
        },
    )
    assert sorted(prove(made, "--jobs", "2", "--timeout", "120")["mutants"]) == ["typo", "typo.second"]
    assert unproven(made) == []


def test_output_of_a_red_run_is_kept_and_a_test_can_be_watched(made: Made) -> None:
    write(made.root, {TEST: TESTS.replace('    assert "shout"', '    print("so it is")\n    assert "shout!"')})
    done = made.patchctl("prove", "typo", "--trees", trees(made), timeout=600)
    log = made.root / "edit/prove-logs/test_typo.patched.log"
    assert done.returncode == 1 and f"output: {log}" in done.stdout, done.stdout
    assert "so it is" in log.read_text()
    watched = made.patchctl("prove", "typo", "--trees", trees(made), "--debug", "rest", timeout=600)
    assert watched.returncode == 1 and "so it is" in watched.stdout and "1 failed, 1 deselected" in watched.stdout
    assert "-k rest" in watched.stderr and not (made.root / RECORD).exists()
    assert made.patchctl("prove", "typo", "--trees", trees(made), "--debug", "need", timeout=600).returncode == 0
    refused = made.patchctl("prove", "--all", "--debug", "rest", "--stack", "clock")
    assert refused.returncode == 2


def test_a_mutation_with_a_wrong_key_is_named(made: Made) -> None:
    made.edit(MUTANT, "why:", "because:")
    done = made.patchctl("prove", "typo", "--trees", trees(made))
    assert done.returncode == 2 and MUTANT in done.stderr and "the keys must be file" in done.stderr


def test_a_refusal_taken_out_is_seen_by_misuse_tests_and_a_part_by_its_own(made: Made) -> None:
    part = f"{FEATURE}/tests/test_typo_part.py"
    write(
        made.root,
        {
            part: TESTS.replace('"Hello" in', '"Hello, " in').replace("test_need", "test_part"),
            TEST: TESTS + MISUSE,
            f"{FEATURE}/mutants/typo.part_less.yaml": MUTATION.replace("Hello", "'Hello, '").replace(
                "Helo", "'Hello. '"
            ),
            f"{FEATURE}/mutants/typo.refuse.yaml": MUTATION.replace("Hello", "os.environ.get").replace(
                "Helo", "os.getenv"
            ),
        },
    )
    mutants = prove(made)["mutants"]
    red = {name: [(one["test"], one["result"]) for one in run] for name, run in mutants.items()}
    assert red["typo"] == [("test_need", "failed")]
    assert red["typo.part_less"] == [("test_part", "failed")]
    assert red["typo.refuse"] == [("test_need", "passed"), ("test_refusal", "failed")]


def test_trees_that_are_not_what_their_stack_gives_are_refused(made: Made, tmp_path: Path) -> None:
    own = tmp_path / "trees"
    shutil.copytree(trees(made), own, symlinks=True)
    (own / "patched/greeter/greeter/hello.py").write_text("Hello, shout\n")
    done = made.patchctl("prove", "typo", "--trees", str(own))
    assert done.returncode == 2 and "is not as it was written" in done.stderr and "hello.py" in done.stderr
    shutil.rmtree(own)
    shutil.copytree(trees(made), own, symlinks=True)
    shutil.rmtree(own / "base")
    shutil.copytree(own / "patched", own / "base", symlinks=True)
    done = made.patchctl("prove", "typo", "--trees", str(own))
    assert done.returncode == 2 and "holds no unpatched tree of greeter v1" in done.stderr
    assert not (made.root / RECORD).exists()


def test_a_run_into_a_file_names_each_step_as_it_begins(made: Made) -> None:
    slow = TESTS.replace("    assert", "    import time\n    time.sleep(2.5)\n    assert", 1)
    write(made.root, {TEST: slow})
    done = made.patchctl("prove", "typo", "--trees", trees(made), env={"PATCHCTL_NO_PROGRESS": ""})
    told = [line.rpartition(",")[0] for line in done.stderr.splitlines()]
    assert "patchctl: greeter typo  test_typo.py on the base trees, file 1 of 1" in told, done.stderr
    assert any(line.startswith("patchctl: greeter typo  mutation typo, 1 of 1") for line in told), done.stderr


def test_what_is_red_can_be_run_again(made: Made, tmp_path: Path) -> None:
    write(made.root, {TEST: TESTS.replace('"Hello" in', '"Hullo" in')})
    done = made.patchctl("prove", "typo", "--trees", trees(made), "--only", "tests")
    (again,) = [line for line in done.stdout.splitlines() if line.startswith("    again: ")]
    ran = subprocess.run(shlex.split(again)[1:], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    done = made.patchctl("prove", "typo", "--only", "tests")
    kept = "    again: patchctl prove typo --stack greeter/v1 --trees build/trees/greeter-v1 "
    assert any(line.startswith(kept) for line in done.stdout.splitlines()), done.stdout


def test_trees_are_made_where_none_are_named(made: Made) -> None:
    done = made.good("prove", "typo", "--only", "tests")
    assert done.startswith(
        "proven: greeter/v1 typo: 1/1 on red unpatched, 1/1 off green unpatched, 1/1 on green patched"
    )


def test_a_stack_of_a_source_distribution_alone(tmp_path: Path) -> None:
    """No repository is there: trees, record, `verify` and a rebase that proves know the pin by the archive's digest."""
    members = ("greeter/__init__.py", "greeter/hello.py")
    typo = replace(GREETER, patches=GREETER.patches[:1], sdist=members)
    made = make_distribution(tmp_path, (typo,))
    (made.root / "manifests/profiles/plain.yaml").unlink(missing_ok=True)
    manifest = made.root / "manifests/stacks/greeter/v1.yaml"
    text = re.sub(r"  tree: .*\n", "", re.sub(r"  commit: .*", "  commit: null", manifest.read_text()))
    manifest.write_text(text)
    shutil.rmtree(made.origins / "greeter")
    write(made.root, {"conftest.py": CONFTEST, TEST: TESTS, PROBE: "", MUTANT: MUTATION})
    made.good("lock")
    done = made.good("prove", "--all")
    assert "1/1 on red unpatched, 1/1 off green unpatched, 1/1 on green patched" in done, done
    sha256 = text.partition("sha256: ")[2].split()[0].strip('"')
    assert recorded(made, "v1").pin == f"sdist:{sha256}" and recorded(made, "v1").trees["greeter"].startswith(
        "v1 sdist "
    )
    assert unproven(made) == []
    assert prove(made, "--trees", str(tmp_path / "own"))["kept"] == 2  # trees of one's own, made where none are

    archive = {f"greeter-2.0/{name}": GREETER.files[name] for name in members} | {
        "greeter-2.0/PKG-INFO": "Name: greeter\n"
    }
    archive["greeter-2.0/greeter/hello.py"] += "\n\nLATER = 1\n"
    with tarfile.open(made.index / "greeter-2.0.tar.gz", "w:gz") as tar:
        for name, content in archive.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    made.good("pin", "greeter", "2.0", "--source", "sdist")
    (new,) = (f.stem for f in manifest.parent.iterdir() if f != manifest)
    ended = made.patchctl("rebase", "greeter/v1", "--to", new, "--prove", "--json")
    assert ended.returncode == 10 and json.loads(ended.stdout)["unproven"] == {}, ended.stdout + ended.stderr
    assert recorded(made, new).pin != f"sdist:{sha256}"
    assert made.patchctl("drift", "greeter/v1", "--against", "2.0").returncode == 10


def test_alone_is_with_what_it_requires_and_nothing_else(tmp_path: Path) -> None:
    """Both are green with all patches, and one of them by what another does, which it does not require. No record is written."""
    kinds = dict.fromkeys(("greeter/a.py", "greeter/b.py"), "KIND = 0\n")
    more = [
        Patch(f, {f"greeter/{f}.py": "KIND = 1\n"}, f"{f}: be kind", requires=r) for f, r in (("a", "typo"), ("b", ""))
    ]
    greeter = replace(GREETER, files={**GREETER.files, **kinds}, patches=(GREETER.patches[0], *more))
    made = make_distribution(tmp_path, (greeter, CLOCK))
    (made.root / "manifests/profiles/plain.yaml").unlink(missing_ok=True)
    write(made.root, {"conftest.py": CONFTEST})
    for name in ("a", "b"):
        test = TESTS.replace('"Hello" in code', f'"Hello" in code and "1" in (tree / "greeter/{name}.py").read_text()')
        write(
            made.root,
            {
                f"patches/greeter/v1/{name}/tests/test_{name}.py": test.replace("(code)", "(code, tree)"),
                f"patches/greeter/v1/{name}/mutants/{name}.yaml": f"file: greeter/{name}.py\nwhy: it goes\nreplace: KIND = 1\nwith: KIND = 0\n",
            },
        )
    tree = 'TREE = lambda r: pathlib.Path(r.config.getoption("--trees"), "greeter")\n@pytest.fixture\ndef tree(request):\n    return TREE(request)\n'
    write(made.root, {"conftest.py": CONFTEST + tree})
    done = made.patchctl("prove", "a", "b", "--alone")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "proven: greeter/v1 a" in done.stdout and "not proven: greeter/v1 b" in done.stdout
    assert not list((made.root / "patches").rglob("evidence.json"))
    assert made.patchctl("prove", "b").returncode == 0
    before = (made.root / "patches/greeter/v1/b/evidence.json").read_bytes()
    assert made.patchctl("prove", "b", "--alone", "--only", "tests").returncode == 1
    assert (made.root / "patches/greeter/v1/b/evidence.json").read_bytes() == before
    assert "--alone makes its trees" in made.patchctl("prove", "b", "--alone", "--trees", str(tmp_path / "t")).stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "name features, or --all"),
        (("typo", "--all"), "name features, or --all"),
        (("typoo",), "no feature 'typoo'; did you mean 'typo'?"),
        (("typo@clock",), "no feature 'typo' of clock"),
        (("typo", "--stack", "greeter/v9"), "no stack 'v9' of greeter"),
        (("typo", "--profile", "empty"), "no profile 'empty'"),
    ],
)
def test_what_cannot_be_proven_is_said(made: Made, args: tuple[str, ...], said: str) -> None:
    done = made.patchctl("prove", *args)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_mutation_of_nothing_is_named(made: Made) -> None:
    """With the rule of `verify`, and no other: what lies in no feature's folder is run by nobody."""
    write(made.root, {"tests/behaviour/mutants/gone.yaml": MUTATION, "tests/behaviour/test_gone.py": TESTS})
    done = made.patchctl("prove", "--all", "--trees", trees(made))
    found = json.loads(made.patchctl("verify", "--static", "--json").stdout)["findings"]
    left = [f"{f['file']}: {f['message']}" for f in found if f["rule"] == "left-over"]
    assert done.returncode == 1 and len(left) == 2 and all(one in done.stdout for one in left)


def test_a_feature_without_mutations_is_not_proven(proven: Made) -> None:
    (proven.root / MUTANT).unlink()
    feature = prove(proven, code=1)
    assert feature["status"] == "not proven" and "no mutation" in feature["reasons"]
    assert unproven(proven) == ["it has no mutation"]


def second_stack(made: Made, folder: Path, newer: Upstream) -> str:
    """Puts a stack that comes from v1 and the profile `next` beside what is there; returns the place of its repository."""
    other = make_distribution(folder, (newer,), lock=True)
    manifest = f"manifests/stacks/greeter/{newer.stack}.yaml"
    for file in (
        manifest,
        f"manifests/locks/greeter/{newer.stack}.json",
        f"manifests/trees/greeter/{newer.stack}.tsv",
    ):
        shutil.copy(other.root / file, made.root / file)
    if newer.patches:
        shutil.copytree(other.root / f"patches/greeter/{newer.stack}", made.root / f"patches/greeter/{newer.stack}")
    made.edit(manifest, f"name: {newer.stack}\n", f"name: {newer.stack}\ncomes_from: v1\n")
    text = (made.root / "manifests/profiles/full.yaml").read_text()
    (made.root / "manifests/profiles/next.yaml").write_text(text.replace("full", "next").replace("v1", newer.stack))
    return f"greeter={other.origins / 'greeter'}"


@pytest.mark.parametrize("upstream_took_it", [True, False])
@pytest.mark.parametrize("key", ["dropped", "postponed"])
def test_whether_a_need_is_met_that_a_stack_dropped(tmp_path: Path, key: str, upstream_took_it: bool) -> None:
    typo = replace(GREETER, patches=GREETER.patches[:1])
    made = make_distribution(tmp_path / "one", (typo,), lock=True)
    write(made.root, {"conftest.py": CONFTEST, TEST: TESTS, MUTANT: MUTATION})
    hello = typo.files["greeter/hello.py"].replace("Says hello.", "Says hello, again.")
    files = {**typo.files, "greeter/hello.py": hello.replace("Helo", "Hello") if upstream_took_it else hello}
    place = second_stack(made, tmp_path / "two", replace(typo, stack="v2", files=files, patches=()))
    args = ("prove", "typo", "--stack", "greeter/v2", "--mirror", place, "--json")
    refused = made.patchctl(*args)
    assert refused.returncode == 2 and "no feature 'typo' of greeter/v2" in refused.stdout
    made.edit(
        "manifests/stacks/greeter/v2.yaml",
        "comes_from: v1\n",
        f"comes_from: v1\n{key}: {{typo: It is said to be there.}}\n",
    )
    done = made.patchctl(*args)
    found = json.loads(done.stdout)
    check_output(found, "patchctl.prove/1")
    (feature,) = found["features"]
    assert done.returncode == (0 if upstream_took_it else 1), done.stderr
    assert feature["status"] == ("met" if upstream_took_it else "not met")
    assert [(o["test"], o["result"]) for o in feature["base"]] == [
        ("test_need", "passed" if upstream_took_it else "failed")
    ]
    assert (feature["patched"], feature["mutants"], (made.root / SECOND).exists()) == ([], {}, False)
    said = made.patchctl(*args[:-1]).stdout
    assert f"{feature['status']}: greeter/v2 typo: {int(upstream_took_it)}/1 on green unpatched" in said, said


def test_two_stacks_of_one_upstream_have_each_its_own_evidence(tmp_path: Path) -> None:
    """The same feature on v1 and v2: a record of one says nothing of the other, tests and mutations may be a stack's own."""
    typo = replace(GREETER, patches=GREETER.patches[:1])
    made = make_distribution(tmp_path / "one", (typo,), lock=True)
    newer = {k: v.replace("Says hello.", "Says hello, again.") for k, v in typo.files.items()}
    fixed = newer["greeter/hello.py"].replace("Helo", "Hello")
    patches = [Patch("typo", {"greeter/hello.py": fixed}, "hello: spell it")]
    place = second_stack(made, tmp_path / "two", replace(typo, stack="v2", files=newer, patches=patches))
    write(made.root, {"conftest.py": CONFTEST, TEST: TESTS, MUTANT: MUTATION})

    def proven() -> set[str]:
        """By stack, from what `verify` says of those that are not."""
        return {"greeter/v1", "greeter/v2"} - {
            line.partition(" not proven on ")[2].partition(":")[0] for line in said()
        }

    def said() -> list[str]:
        report = json.loads(made.patchctl("verify", "--static", "--proven", "--json").stdout)
        return [f["message"] for f in report["findings"] if f["rule"] == "proven"]

    assert proven() == set()
    made.good("prove", "typo", "--stack", "greeter/v1")
    assert proven() == {"greeter/v1"}
    made.good("prove", "typo", "--mirror", place)
    assert proven() == {"greeter/v1", "greeter/v2"}
    own = TESTS.replace('"Hello" in', '"Hello" in code and "again" in')
    write(made.root, {f"{SECOND}/tests/test_typo.py": own})
    assert proven() == {"greeter/v1"}
    made.good("prove", "typo", "--mirror", place)
    assert list(recorded(made, "v2").files) == [f"{SECOND}/tests/test_typo.py"]
    write(made.root, {f"{SECOND}/mutants/typo.next.yaml": MUTATION})
    assert proven() == {"greeter/v1"}
    made.good("prove", "typo", "--mirror", place)
    assert proven() == {"greeter/v1", "greeter/v2"}
    shutil.rmtree(made.root / SECOND / "mutants")
    shutil.rmtree(made.root / SECOND / "tests")
    assert proven() == {"greeter/v1"}
    made.edit("manifests/stacks/greeter/v2.yaml", "comes_from: v1\n", "")
    assert "it has no test" in "".join(said())
    made.edit(TEST, "shout", "shout(")
    assert proven() == set()


def test_a_report_says_what_is_proven_and_what_is_lacking(proven: Made) -> None:
    args = ("report", "--out", str(proven.root / "report.html"), "--force", "--json")
    (patch,) = json.loads(proven.good(*args))["patches"]
    assert patch["unproven"] is None and patch["run"]["tests"] == {"off": 1, "on": 1} and patch["run"]["mutants"] == 1
    page = (proven.root / "report.html").read_text()
    assert "1 of 1</dd>" in page and f"run on {patch['run']['date']}: tests 1 off, 1 on; 1 mutation turned red" in page
    write(proven.root, {TEST: TESTS + "\n"})
    (patch,) = json.loads(proven.good(*args))["patches"]
    assert (
        patch["unproven"] == f"{TEST} has changed"
        and f"{TEST} has changed" in (proven.root / "report.html").read_text()
    )
    write(proven.root, {RECORD: "{"})
    (patch,) = json.loads(proven.good(*args))["patches"]
    assert "not a record written by patchctl" in patch["unproven"] and patch["run"] is None


def two_sets(made: Made, older: str, newer: str, bare: str) -> None:
    """The profile `full` on two releases with these stacks of the greeter, one of which is v1; `bare` is v1 without patches."""
    manifests = made.root / "manifests"
    text = (manifests / "stacks/greeter/v1.yaml").read_text().replace("name: v1", f"name: {bare}")
    sets = {
        f"releases/{name}.yaml": f'schema: 1\nname: "{name}"\nsummary: A release.\nstacks:\n  greeter: {stack}\n'
        for name, stack in {"2001.02": older, "2001.11": newer}.items()
    }
    write(
        manifests,
        {
            **sets,
            f"stacks/greeter/{bare}.yaml": "\n".join(without_patches(text)) + "\n",
            "profiles/full.yaml": 'schema: 1\nname: full\nsummary: On both.\nreleases:\n  "2001.02": {}\n  "2001.11": {}\n',
        },
    )
    made.good("lock")


def taken(made: Made, workspace: Path) -> tuple[str, str]:
    done = made.patchctl("apply", "--profile", "full", "--workspace", str(workspace), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["release"], done.stderr


def test_a_profile_is_taken_on_the_newest_release_on_which_it_is_proven(proven: Made, tmp_path: Path) -> None:
    two_sets(proven, "earlier", "v1", bare="earlier")
    assert taken(proven, tmp_path / "while proven") == ("2001.11", "")
    (proven.root / TEST).write_text(TESTS + "# another test\n")
    chosen, why = taken(proven, tmp_path / "stale")
    assert chosen == "2001.02"
    assert "on 2001.11 features are not proven: typo@greeter" in why


def test_a_release_that_is_only_pinned_proves_nothing(proven: Made, tmp_path: Path) -> None:
    two_sets(proven, "v1", "later", bare="later")
    chosen, why = taken(proven, tmp_path / "ws")
    assert chosen == "2001.02"
    assert "on 2001.11 greeter/later has no patches yet" in why


def test_a_release_to_which_features_are_still_to_come_is_not_proven(proven: Made, tmp_path: Path) -> None:
    two_sets(proven, "earlier", "v1", bare="earlier")
    proven.edit(
        "manifests/stacks/greeter/v1.yaml", "name: v1\n", "name: v1\ncomes_from: earlier\npostponed: {loud: soon}\n"
    )
    chosen, why = taken(proven, tmp_path / "ws")
    assert chosen == "2001.02"
    assert "on 2001.11 features are postponed: loud@greeter" in why
