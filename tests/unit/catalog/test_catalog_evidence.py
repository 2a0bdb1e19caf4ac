"""What a record of evidence holds on to: files by content, wherever they lie, and each of them. And what it is as a file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from distribution import GREETER, Made, make_distribution, write_files

from patchctl.catalog.evidence import Evidence, EvidenceRecord, Proof, digests, read_record, record_file, write_record
from patchctl.errors import BadManifest
from patchctl.manifest.distribution import Distribution
from patchctl.stack.plan import load_patches

FEATURE, SECOND = "patches/greeter/v1/polite", "patches/greeter/v2/polite"
TEST, MORE = f"{FEATURE}/tests/test_polite.py", f"{FEATURE}/tests/test_polite_more.py"
PROBE, SHARED = f"{FEATURE}/tests/probe_polite.py", "tests/behaviour/words.py"
STANDIN, PACKAGE = "standins/mouth/lips.py", "standins/mouth/tongue/__init__.py"
MUTANT = f"{FEATURE}/mutants/polite.yaml"
SHARED_BY_STACKS = "patches/greeter/shared/polite"
READ = [TEST, MORE, PROBE, SHARED, STANDIN, PACKAGE]
ENVIRONMENT = {"machine": "Linux x86_64", "python": "3.11.7"}
TREES = {"greeter": f"v1 git {'1' * 40}"}


@dataclass(frozen=True)
class Proven:
    """A distribution, of which one feature is proven on one stack by runs that nobody made."""

    root: Path
    stack: str = "v1"

    def unproven(self) -> str | None:
        """Why it is not any more."""
        dist = Distribution.load(self.root)
        stack = dist.stack("greeter", self.stack)
        (patch,) = (p for p in load_patches(dist, stack) if p.feature == "polite")
        return Evidence(dist).unproven(stack, patch)

    def record(self) -> EvidenceRecord:
        """What holds of the files that are there now."""
        dist = Distribution.load(self.root)
        stack = dist.stack("greeter", self.stack)
        (patch,) = (p for p in load_patches(dist, stack) if p.feature == "polite")
        results = {"base": {"test_need": "on failed"}, "patched": {"test_need": "on passed", "test_rest": "off passed"}}
        files = digests(self.root, [name.replace("/v1/", f"/{self.stack}/") for name in READ])
        tests = Proof(stack.pin.identity, patch.change_digest, files, results, ENVIRONMENT, TREES, "2026-11-23")
        used = {name: digest for name, digest in files.items() if not name.endswith("_more.py")}
        (mutation,) = digests(self.root, [MUTANT.replace("/v1/", f"/{self.stack}/")]).values()
        red = {"mutant": {"test_need": "on failed"}}
        mutant = replace(tests, files=used, results=red, mutation=mutation)
        return EvidenceRecord("greeter", self.stack, "polite", tests, {"polite": mutant})

    def move(self, old: str, new: str) -> None:
        (self.root / new).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(self.root / old, self.root / new)

    @property
    def file(self) -> Path:
        return record_file(self.root, "greeter", self.stack, "polite")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_distribution(tmp_path_factory.mktemp("evidence"), (GREETER,))
    texts = {TEST: "# a test\n", MORE: "# more\n", PROBE: "# a probe\n", MUTANT: "# a mutation\n"}
    empty = {PACKAGE: "", "standins/ear/drum/__init__.py": ""}
    write_files(made.root, {**texts, SHARED: "# words\n", STANDIN: "# lips\n", **empty})
    return made


@pytest.fixture
def proven(made: Made, tmp_path: Path) -> Proven:
    proven = Proven(Path(shutil.copytree(made.root, tmp_path / "distribution")))
    write_record(proven.root, proven.record())
    assert proven.unproven() is None
    return proven


@pytest.fixture
def second(proven: Proven) -> Proven:
    """The same feature on a stack that comes from the first, with tests of its own that are the same bytes."""
    manifest = (proven.root / "manifests/stacks/greeter/v1.yaml").read_text()
    later = manifest.replace("name: v1\n", "name: v2\ncomes_from: v1\n")
    write_files(proven.root, {"manifests/stacks/greeter/v2.yaml": later})
    shutil.copytree(proven.root / "patches/greeter/v1", proven.root / "patches/greeter/v2")
    second = replace(proven, stack="v2")
    write_record(second.root, second.record())
    assert second.unproven() is None
    return second


MOVES: Mapping[str, tuple[str, str]] = {
    "a probe to what stacks share": (PROBE, f"{SHARED_BY_STACKS}/tests/probe_polite.py"),
    "a test to what stacks share": (TEST, f"{SHARED_BY_STACKS}/tests/test_polite.py"),
    "a probe to what serves several features": (PROBE, "tests/behaviour/greeter/probe_polite.py"),
    "a probe into a folder beside its tests": (PROBE, f"{FEATURE}/tests/probes/probe_polite.py"),
    "a module of several features": (SHARED, "tests/behaviour/common/words.py"),
    "a stand-in": (STANDIN, "standins/first/mouth/lips.py"),
    "a package of a stand-in": (PACKAGE, "standins/first/mouth/tongue/__init__.py"),
    "a test": (TEST, f"{FEATURE}/tests/test_first.py"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), MOVES.values(), ids=MOVES)
def test_a_file_that_moved_with_the_same_bytes_is_as_it_was(proven: Proven, old: str, new: str) -> None:
    proven.move(old, new)
    assert proven.unproven() is None
    (proven.root / new).write_text("# other bytes\n")
    assert proven.unproven() in (f"{old} is gone", f"{new} was not run")


def test_tests_and_mutations_that_moved_to_the_stack_it_comes_from(second: Proven) -> None:
    """Two stacks had a copy each; with one of them gone, the other is what both run."""
    for part in ("tests", "mutants"):
        shutil.rmtree(second.root / SECOND / part)
    assert second.unproven() is None
    for file in (TEST, PROBE, MUTANT):
        before = (second.root / file).read_text()
        (second.root / file).write_text("# other bytes\n")
        assert second.unproven() is not None, file
        (second.root / file).write_text(before)
    (second.root / PROBE).unlink()
    assert second.unproven() == f"{SECOND}/tests/probe_polite.py is gone"


def test_what_two_stacks_share_stands_once(second: Proven) -> None:
    """Tests, probes, mutations and carried files of both in one place: what both records hold, until one byte changes."""
    first = replace(second, stack="v1")
    for part in ("tests", "mutants", "files"):
        second.move(f"{FEATURE}/{part}", f"{SHARED_BY_STACKS}/{part}")
        shutil.rmtree(second.root / SECOND / part)
    assert (first.unproven(), second.unproven()) == (None, None)
    for file in ("tests/test_polite.py", "tests/probe_polite.py", "mutants/polite.yaml", "files/greeter/manners.py"):
        before = (second.root / SHARED_BY_STACKS / file).read_text()
        (second.root / SHARED_BY_STACKS / file).write_text("# other bytes\n")
        assert None not in (first.unproven(), second.unproven()), file
        (second.root / SHARED_BY_STACKS / file).write_text(before)
    assert (first.unproven(), second.unproven()) == (None, None)


def test_a_file_of_its_own_comes_before_a_shared_one_of_its_name(second: Proven) -> None:
    for part in ("tests", "mutants", "files"):
        shutil.copytree(second.root / FEATURE / part, second.root / SHARED_BY_STACKS / part)
    for file in (second.root / SHARED_BY_STACKS).rglob("*.*"):
        file.write_text("# other bytes\n")
    assert second.unproven() is None
    shutil.rmtree(second.root / SECOND / "mutants")
    assert (
        second.unproven() == f"{SHARED_BY_STACKS}/mutants/polite.yaml has changed"
    )  # not that of the stack it comes from


def test_a_probe_that_stayed_where_its_tests_were_is_not_what_they_find(second: Proven) -> None:
    for file in (TEST, MORE):
        (second.root / file.replace("/v1/", "/v2/")).unlink()
    assert second.unproven() is None
    (second.root / PROBE).unlink()
    assert second.unproven() == f"{SECOND}/tests/probe_polite.py is no longer next to its tests"


Change = Callable[[Proven], object]
ENDS: Mapping[str, tuple[str, Change]] = {
    **{
        f"a changed byte in {name}": (f"{name} has changed", lambda p, name=name: (p.root / name).write_text("# x\n"))
        for name in (*READ, MUTANT)
    },
    **{f"no {name}": (f"{name} is gone", lambda p, name=name: (p.root / name).unlink()) for name in READ},
    "no mutation": ("it has no mutation", lambda p: (p.root / MUTANT).unlink()),
    "one test more": (
        f"{FEATURE}/tests/test_x.py was not run",
        lambda p: (p.root / f"{FEATURE}/tests/test_x.py").write_text("# x\n"),
    ),
    "a second copy of a test": (
        f"{FEATURE}/tests/test_x.py was not run",
        lambda p: shutil.copy(p.root / TEST, p.root / f"{FEATURE}/tests/test_x.py"),
    ),
    "one mutation more": (
        "mutation polite.x was not run",
        lambda p: (p.root / f"{FEATURE}/mutants/polite.x.yaml").write_text("# x\n"),
    ),
    "a module that hides the one that was read": (
        f"{FEATURE}/tests/words.py was not read",
        lambda p: (p.root / f"{FEATURE}/tests/words.py").write_text("# x\n"),
    ),
    "a probe that moved, and another in its place": (
        f"{PROBE} has changed",
        lambda p: (p.move(PROBE, "tests/behaviour/probe_polite.py"), (p.root / PROBE).write_text("# x\n")),
    ),
    "a copy in another feature's folder": (
        f"{PROBE} is gone",
        lambda p: p.move(PROBE, "patches/greeter/v1/typo/tests/probe_polite.py"),
    ),
    "a copy among the carried files": (f"{PROBE} is gone", lambda p: p.move(PROBE, f"{FEATURE}/files/probe_polite.py")),
    "another file of the same bytes": (f"{PROBE} is gone", lambda p: p.move(PROBE, "tests/behaviour/probe_other.py")),
    "a test that is the feature's no more": (f"{MORE} is gone", lambda p: p.move(MORE, "tests/behaviour/test_polite_more.py")),
    "another carried file": (
        "the patch or one of its carried files has changed",
        lambda p: (p.root / f"{FEATURE}/files/greeter/manners.py").write_text("# x\n"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("why", "change"), ENDS.values(), ids=ENDS)
def test_what_changed_ends_the_proof(proven: Proven, why: str, change: Change) -> None:
    change(proven)
    assert proven.unproven() == why


def test_one_of_two_files_of_the_same_bytes_does_not_stand_for_both(proven: Proven) -> None:
    """Two empty packages of one name were read; with one of them gone, the other is still only itself."""
    twin = "standins/nose/tongue/__init__.py"
    write_files(proven.root, {twin: ""})
    record = proven.record()
    assert record.tests is not None
    both = replace(record.tests, files=record.tests.files | digests(proven.root, [twin]))
    write_record(proven.root, replace(record, tests=both))
    assert proven.unproven() is None
    proven.move(twin, "standins/first/nose/tongue/__init__.py")
    assert proven.unproven() is None
    (proven.root / PACKAGE).unlink()
    assert proven.unproven() in (f"{PACKAGE} is gone", f"{twin} is gone")


def test_another_pin_or_patch(proven: Proven) -> None:
    record = proven.record()
    assert record.tests is not None
    for change, why in (
        ({"pin": "0" * 40}, "another pin"),
        ({"patch": "0" * 64}, "the patch or one of its carried files"),
    ):
        write_record(proven.root, replace(record, tests=replace(record.tests, **change)))
        assert why in (proven.unproven() or "")


def test_what_runs_share_stands_once(proven: Proven) -> None:
    """Under keys that are made of it, so that a record has the same bytes whoever writes it, and in which order."""
    record = proven.record()
    before = proven.file.read_bytes()
    again = read_record(proven.root, "greeter", "v1", "polite")
    assert again == record
    for name in ("a", "b", "c"):
        again = replace(again, mutants={name: record.mutants["polite"], **again.mutants})
    write_record(proven.root, again)
    text = proven.file.read_text()
    assert [text.count(f'"{word}"') for word in ("Linux x86_64", "3.11.7", TREES["greeter"])] == [1, 1, 1]
    shared = json.loads(text)["shared"]
    assert {name: len(table) for name, table in shared.items()} == {
        "environment": 1,
        "files": 2,
        "patch": 1,
        "trees": 1,
    }
    back = replace(again, mutants=dict(sorted(again.mutants.items(), reverse=True)))
    write_record(proven.root, back)
    assert proven.file.read_text() == text
    write_record(proven.root, record)
    assert proven.file.read_bytes() == before


def test_mutations_proven_on_two_branches_merge(proven: Proven) -> None:
    """Each line that a run adds stands alone: what the one branch has is what the other has, and its own."""
    record = proven.record()
    one = record.mutants["polite"]

    def lines(*names: str) -> list[str]:
        more = {name: replace(one, mutation=name[0] * 64) for name in names}
        write_record(proven.root, replace(record, mutants={**record.mutants, **more}))
        return proven.file.read_text().splitlines()

    neither, first, second, both = lines(), lines("a.one"), lines("z.other"), lines("a.one", "z.other")
    assert len(both) - len(neither) == len(first) - len(neither) + len(second) - len(neither)
    assert set(first) | set(second) == set(both)


def refused(proven: Proven) -> str:
    with pytest.raises(BadManifest) as told:
        read_record(proven.root, "greeter", "v1", "polite")
    assert told.value.where is not None and str(proven.file) in str(told.value.where)
    assert told.value.hint and proven.unproven() == told.value.what
    return told.value.what


@pytest.mark.parametrize("name", ["environment", "files", "patch", "trees"])
def test_a_reference_to_nothing_is_said(proven: Proven, name: str) -> None:
    data = json.loads(proven.file.read_text())
    key = data["tests"]["run"][name]
    del data["shared"][name][key]
    proven.file.write_text(json.dumps(data))
    assert refused(proven) == f"the record is incomplete: tests refers to {name} {key!r}, which `shared` does not have"


def test_what_a_key_was_not_made_of_is_said(proven: Proven) -> None:
    text = proven.file.read_text()
    proven.file.write_text(text.replace("3.11.7", "3.12.1"))
    assert "was edited by hand or by a merge: environment" in refused(proven)
    data = json.loads(text)
    data["mutants"]["polite"]["run"]["files"] = "0" * 12
    proven.file.write_text(json.dumps(data))
    assert "mutation polite refers to files '000000000000'" in refused(proven)


def test_the_first_schema_is_not_read(proven: Proven) -> None:
    proven.file.write_text(proven.file.read_text().replace("patchctl.evidence/2", "patchctl.evidence/1"))
    assert "its schema is not patchctl.evidence/2" in refused(proven)
