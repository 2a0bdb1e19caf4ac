"""Proves a feature on a stack: its tests are red without it, green with it, and red again when its core is taken out.

- on the unpatched trees every `on` test fails and every `off` test passes;
- on the patched trees every `on`, `off` and `misuse` test passes;
- on a copy of the patched tree with one mutation at least one `on` or `misuse` test fails, for each mutation; mutations are
  run only where the tests are green on the patched tree.

What ended so goes into the record at once (patchctl.catalog.evidence), run by run, so that a run which is stopped goes on where
it was. What ended otherwise takes the same run out of the record.

A feature that a stack dropped, or has not yet, has its tests there too, those of the stack that has it: all `on` tests are green on
the unpatched trees where upstream meets the need. Nothing is recorded of that.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from patchctl import __version__, process_group
from patchctl.bundle.signature import EVIDENCE, SigningKey
from patchctl.catalog.evidence import (
    Evidence,
    EvidenceRecord,
    Proof,
    digests,
    mutants_of,
    read_record,
    record_file,
    tests_of,
    with_mutant,
    write_record,
)
from patchctl.errors import BadManifest, WrongUse
from patchctl.git.run import GitFailed
from patchctl.git.worktree import enclosing
from patchctl.manifest.diagnostics import did_you_mean, quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import RECORD, descent
from patchctl.manifest.types import Stack
from patchctl.prove.runs import (
    TIMEOUT_S,
    Bench,
    Mutant,
    MutationError,
    PytestRun,
    judge_base,
    judge_met,
    judge_mutant,
    judge_patched,
    load_mutants,
    mutated,
)
from patchctl.stack.patches import StackPatch, load_patch, parse_feature
from patchctl.terminal.text import one_line

# The interpreter that probes run under (tests/behaviour/harness.py); its packages are what the tests ran with.
TORCH_PYTHON = "PATCHCTL_TORCH_PYTHON"
_VERSIONS = """
import importlib.metadata as m, json, platform
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return "none"
names = "torch", "transformers", "numpy", "ray", "tensordict"
print(json.dumps({"python": platform.python_version(), **{n: version(n) for n in names}}))
"""


@dataclass(frozen=True)
class FeatureOnStack:
    """What is to be proven: the patch that carries a feature in a stack; `dropped` where that is another stack, which this one
    comes from and has it no more."""

    stack: Stack
    patch: StackPatch
    dropped: bool = False

    @property
    def feature(self) -> str:
        return self.patch.feature


@dataclass
class Verdict:
    """What was shown for one feature of one stack. `mutants` and the rest hold what ran now; `kept` is how many runs an
    earlier record had already shown; `lacking` says why nothing could run."""

    upstream: str
    stack: str
    feature: str
    base: PytestRun = field(default_factory=PytestRun)
    patched: PytestRun = field(default_factory=PytestRun)
    mutants: dict[str, PytestRun] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    kept: int = 0
    lacking: str = ""
    dropped: bool = False

    @property
    def skipped(self) -> int:
        return sum(len(run.skipped) for run in (self.base, self.patched, *self.mutants.values()))

    @property
    def reasons(self) -> list[str]:
        """What is wrong, then why tests were skipped."""
        runs = (self.base, self.patched, *self.mutants.values())
        lacking = [self.lacking] if self.lacking else []
        return [
            *self.problems,
            *lacking,
            *dict.fromkeys(f"skipped: {one.message}" for run in runs for one in run.skipped),
        ]

    @property
    def bad(self) -> list[PytestRun]:
        """The runs of test files on either tree that did not end as they must."""
        on_base = judge_met if self.dropped else judge_base
        bad = [one for one in self.base.parts if on_base(one)]
        return [*bad, *(one for one in self.patched.parts if judge_patched(one))] if self.problems else []

    @property
    def broken(self) -> bool:
        """Whether the trees run, as its tests on the unpatched ones show, and it is red on the patched ones."""
        return bool(self.patched.red) and not judge_base(self.base)

    @property
    def status(self) -> str:
        good, bad = ("met", "not met") if self.dropped else ("proven", "not proven")
        if self.problems:
            return bad
        return "skipped" if self.skipped or self.lacking else good


@dataclass(frozen=True)
class Trees:
    """The folders of unpatched and patched trees; `stacks` and `ids` say of each upstream what the patched one is,
    `left_out` why it lacks a feature, by (upstream, feature)."""

    base: Path
    patched: Path
    stacks: Mapping[str, str]
    ids: Mapping[str, str]
    left_out: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Runs:
    """What a prover runs: `parts` of "tests" and "mutants"; with `rerun` what records show already too; `jobs` runs of pytest at a
    time, each for `timeout` seconds at most. Without `keep` records are neither read nor written: the trees are not those of
    a profile. With `check` what ran is compared with the records, too."""

    parts: Sequence[str] = ("tests", "mutants")
    rerun: bool = False
    keep: bool = True
    jobs: int = 1
    timeout: float = TIMEOUT_S
    check: bool = False


class Prover:
    """Proves features on one pair of trees. `cache` is an empty folder: a proof takes nothing from a run before it."""

    def __init__(self, dist: Distribution, trees: Trees, how: Runs, cache: Path) -> None:
        self.dist, self.root, self.trees, self.how = dist, dist.root, trees, how
        self.bench = Bench.of(dist.root, trees.stacks, cache, how.jobs, how.timeout)

    def prove(self, subject: FeatureOnStack, note: Callable[[str], None]) -> Verdict:
        """Runs what the record does not show yet, everything with `rerun`; `note` is told what runs."""
        stack, patch = subject.stack, subject.patch
        verdict = Verdict(stack.upstream, stack.name, subject.feature, dropped=subject.dropped)
        if reason := lacking(self.trees, subject):
            verdict.lacking = reason
            return verdict
        tests = tests_of(self.dist, stack, subject.feature)
        record = self._record(subject)
        evidence = Evidence(self.dist)
        if not tests:
            verdict.problems.append("no test")
            return verdict
        if subject.dropped:
            option = f"--dropped={stack.upstream}/{subject.feature}"
            verdict.base = self.bench.run(tests, self.trees.base, "on", note, option)
            verdict.problems += judge_met(verdict.base)
            return verdict
        if "tests" in self.how.parts:
            if self.how.rerun or evidence.tests_stale(record, stack, patch) is not None:
                record = self._tests(subject, tests, record, verdict, note)
            else:
                verdict.kept += 1
        if "mutants" in self.how.parts:
            self._mutants(subject, tests, record, verdict, note)
        if self.how.check and record.tests is not None:
            verdict.problems += unlike(
                read_record(self.root, stack.upstream, stack.name, subject.feature), record.tests
            )
        return verdict

    def _record(self, subject: FeatureOnStack) -> EvidenceRecord:
        names = subject.stack.upstream, subject.stack.name, subject.feature
        if not self.how.keep and not (self.how.check and "tests" not in self.how.parts):
            return EvidenceRecord(*names)
        try:
            return read_record(self.root, *names) or EvidenceRecord(*names)
        except BadManifest:
            return EvidenceRecord(*names)  # it proves nothing, and is written anew

    def _tests(
        self,
        subject: FeatureOnStack,
        tests: Sequence[str],
        record: EvidenceRecord,
        verdict: Verdict,
        note: Callable[[str], None],
    ) -> EvidenceRecord:
        before = digests(self.root, tests)
        verdict.base = self.bench.run(tests, self.trees.base, "on or off", note)
        verdict.patched = self.bench.run(tests, self.trees.patched, "", note)
        verdict.problems += judge_base(verdict.base) + judge_patched(verdict.patched)
        proof = None
        if not verdict.problems and not verdict.skipped:
            results = {
                side: {one.test: f"{one.mark} {one.result}" for one in run.outcomes}
                for side, run in (("base", verdict.base), ("patched", verdict.patched))
            }
            proof = self._proof(subject, before, verdict.base.used | verdict.patched.used, results)
        return self._kept(replace(record, tests=proof))

    def _kept(self, record: EvidenceRecord) -> EvidenceRecord:
        if self.how.keep:
            write_record(self.root, record)
        return record

    def _mutants(
        self,
        subject: FeatureOnStack,
        tests: Sequence[str],
        record: EvidenceRecord,
        verdict: Verdict,
        note: Callable[[str], None],
    ) -> None:
        stack = subject.stack
        evidence = Evidence(self.dist)
        if evidence.tests_stale(record, stack, subject.patch) is not None:
            # A test that is red on the patched tree is red on every mutation of it.
            verdict.problems.append("no mutation was run: the tests are not shown to be green on the patched tree")
            return
        files = mutants_of(self.dist, stack, subject.feature)
        stale = evidence.mutants_stale(record, stack, subject.patch)
        for name in record.mutants.keys() - stale.keys():
            record = with_mutant(record, name, None)  # its file is gone
        if not files:
            verdict.problems.append("no mutation")
        wanted = [
            one
            for one in load_mutants(self.root, stack.upstream, files)
            if self.how.rerun or stale[one.name] is not None
        ]
        verdict.kept += len(files) - len(wanted)

        def run(mutant: Mutant) -> tuple[PytestRun | None, list[str], Proof | None]:
            note(f"mutation {mutant.name}, {wanted.index(mutant) + 1} of {len(wanted)}")
            return self._mutant(subject, mutant, tests)

        for mutant, (ran, problems, proof) in process_group.each(run, wanted, self.how.jobs):
            record = self._kept(with_mutant(record, mutant.name, proof))
            verdict.problems += problems
            if ran is not None:
                verdict.mutants[mutant.name] = ran

    def _mutant(
        self, subject: FeatureOnStack, mutant: Mutant, tests: Sequence[str]
    ) -> tuple[PytestRun | None, list[str], Proof | None]:
        before = digests(self.root, [mutant.source, *tests])
        try:
            with mutated(self.trees.patched, mutant) as trees:
                run = self.bench.run_mutant(mutant, subject.feature, tests, trees, self.trees.patched)
        except MutationError as error:
            return None, [str(error)], None
        if run.red is None or run.skipped:
            return run, judge_mutant(mutant, run), None
        # Only what the red one used: a test that was not needed may change.
        results = {"mutant": {run.red.test: f"{run.red.mark} {run.red.result}"}}
        return run, [], self._proof(subject, before, run.used, results, mutation=before[mutant.source])

    def _proof(
        self,
        subject: FeatureOnStack,
        before: Mapping[str, str],
        used: set[str],
        results: dict[str, dict[str, str]],
        mutation: str | None = None,
    ) -> Proof:
        files = digests(self.root, used)
        # A test that was changed while it ran is recorded as it was before: the record is stale at once.
        files |= {name: digest for name, digest in before.items() if name in files}
        return Proof(
            pin=subject.stack.pin.identity,
            patch=subject.patch.change_digest,
            files=files,
            results=results,
            environment=dict(environment()),
            trees=dict(self.trees.ids),
            date=datetime.date.today().isoformat(),
            mutation=mutation,
        )


def on_record(dist: Distribution, subject: FeatureOnStack, parts: Sequence[str]) -> Verdict | None:
    """The verdict where records show all of `parts` already, so that no trees have to be made; None where something has to run."""
    stack, feature = subject.stack, subject.feature
    files, evidence = mutants_of(dist, stack, feature), Evidence(dist)
    try:
        record = read_record(dist.root, stack.upstream, stack.name, feature)
    except BadManifest:
        return None
    if subject.dropped or record is None or evidence.tests_stale(record, stack, subject.patch) is not None:
        return None
    stale = evidence.mutants_stale(record, stack, subject.patch) if "mutants" in parts else {}
    if any(stale.values()) or ("mutants" in parts and (not files or record.mutants.keys() - stale.keys())):
        return None
    return Verdict(stack.upstream, stack.name, feature, kept=("tests" in parts) + len(stale))


def unlike(stored: EvidenceRecord | None, ran: Proof) -> Iterator[str]:
    """Yield the tests that did not end as the record says."""
    if stored is None or stored.tests is None:
        yield "no record to compare with"
        return
    for trees, results in ran.results.items():
        said = stored.tests.results.get(trees, {})
        for test in sorted(results.keys() | said.keys()):
            if results.get(test) != said.get(test):
                now, then = results.get(test, "not run"), said.get(test, "nothing")
                yield f"{test} on the {trees} trees: {now}, and the record says {then}"


def changed_since(dist: Distribution, subjects: Sequence[FeatureOnStack], commit: str) -> list[FeatureOnStack]:
    """Return those whose record is another than at a commit of the distribution's git. Raises WrongUse if there is none."""
    hint = "name a commit of a clone of it"
    checkout, here = enclosing(dist.root), ("-C", str(dist.root.absolute()))
    if checkout is None:
        raise WrongUse("the distribution is in no git repository", where=str(dist.root), hint=hint)
    try:
        diff = ["diff", "--name-only", "--relative", "-z", "--end-of-options", commit, "--", "patches"]
        # A record that was written and never added is in no diff.
        added = ["ls-files", "--others", "--exclude-standard", "-z", "--", "patches"]
        out = checkout.git(*here, *diff) + checkout.git(*here, *added)
    except GitFailed as error:
        what = f"git cannot compare the distribution with {quoted(commit)}: {one_line(error.what)}"
        raise WrongUse(what, where=str(dist.root), hint=hint) from error
    changed = {os.fsdecode(path) for path in out.split(b"\0")}
    return [s for s in subjects if f"patches/{s.stack.upstream}/{s.stack.name}/{s.feature}/{RECORD}" in changed]


def lacking(trees: Trees, subject: FeatureOnStack) -> str | None:
    """Why the feature cannot be proven on these trees; None if it can."""
    stack = subject.stack
    found = trees.stacks.get(stack.upstream)
    if found != stack.name:
        return f"the trees hold {found or 'none'} of {stack.upstream}, and not {stack.name}"
    if reason := trees.left_out.get((stack.upstream, subject.feature)):
        return f"left out of the trees: {reason}"
    return None


def subjects_of(dist: Distribution, features: Sequence[str], stack: Stack | None) -> list[FeatureOnStack]:
    """What FEATURE[@UPSTREAM] names, or all with none, on every stack of the release that the run names, or on one, of whatever release, of
    which what it dropped can be named too. Raises WrongUse for what nothing carries."""
    stacks = [s for name in dist.upstreams for (_, _), s in sorted(dist.stacks.items()) if s.upstream == name]
    carried = [
        FeatureOnStack(one, load_patch(file, dist.root))
        for one in stacks
        if one == stack or (stack is None and dist.of_named_release(one))
        for file in dist.patch_files(one)
    ]
    wanted = [parse_feature(name) for name in features]
    if stack is not None and wanted:
        carried += not_carried(dist, stack, (*stack.dropped, *stack.postponed))
    for feature, upstream in wanted:
        if not any(s.feature == feature and upstream in (None, s.stack.upstream) for s in carried):
            where = f" of {upstream}" if upstream else f" of {stack.upstream}/{stack.name}" if stack else ""
            where += f" on {dist.named_release}" if dist.named_release and stack is None else ""
            near = did_you_mean(feature, sorted({s.feature for s in carried}))
            raise WrongUse(f"no feature {quoted(feature)}{where}{near}", hint="`patchctl list patches` names them all")
    return [
        s for s in carried if not wanted or any(s.feature == f and u in (None, s.stack.upstream) for f, u in wanted)
    ]


def not_carried(dist: Distribution, stack: Stack, features: Iterable[str]) -> list[FeatureOnStack]:
    """Features that the stack does not carry, with the patch of the nearest stack before it that does."""
    before = [load_patch(file, dist.root) for one in descent(stack, dist.stacks)[1:] for file in dist.patch_files(one)]
    nearest = {patch.feature: patch for patch in reversed(before)}
    return [FeatureOnStack(stack, nearest[f], dropped=True) for f in features if f in nearest]


@cache
def environment() -> Mapping[str, str]:
    """What the tests run on: this patchctl, the machine, and the packages of the interpreter that probes run under."""
    python = os.environ.get(TORCH_PYTHON) or sys.executable
    done = process_group.ask([python, "-c", _VERSIONS], 120)
    versions = json.loads(done.stdout) if done.returncode == 0 else {}
    return {"patchctl": __version__, "machine": f"{platform.system()} {platform.machine()}", **versions}


def sign_records(root: Path, verdicts: Iterable[Verdict], key: SigningKey) -> None:
    """Sign the record of each verdict, into evidence.json.sig beside it."""
    for one in verdicts:
        file = record_file(root, one.upstream, one.stack, one.feature)
        with file.open("rb") as record:
            digest = hashlib.sha256(record.read()).hexdigest()
            record.seek(0)
            key.sign_beside(file, record, digest, EVIDENCE)
