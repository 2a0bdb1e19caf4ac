"""Holds the parser and the stack function against `git am`, for many small patches on one tree.

What we accept goes to git in batches: one `git am` takes each patch and, behind it, a mail that takes its change back.
Then every commit is read and has to be ours: tree, author, date and message. A batch in which something else comes out is
cut in halves until the patch is found that is at fault.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from engine_tools import HEAD, Repo, git, reader_tree, run
from fuzz_mails import mutated
from fuzz_readers import Reader, refusal
from fuzz_world import World, made_world

from patchctl.errors import PatchctlError
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import COMMITTER, GITLINK, Files, Person, TreeEntry, object_id, render_commit
from patchctl.patch.names import quote
from patchctl.patch.parse import parse_patch
from patchctl.patch.write import ZERO_ID, _binary
from patchctl.stack.build import Built, StackBuilder, Touched
from patchctl.stack.patches import StackPatch, check_patch

_AM = ("am", "-q", "--keep-cr", "--committer-date-is-author-date", "--no-gpg-sign", "--")


@dataclass(frozen=True)
class Case:
    """A patch that we accept, and what it gives: the commit without its parent. `refused` says why the rules for a
    distribution's patches refuse what the engine takes; "" where they do not."""

    data: bytes
    commit: bytes
    touched: tuple[Touched, ...]
    refused: str


@dataclass
class Compared:
    """The numbers of a comparison, and what is wrong, a line each."""

    both: int = 0
    engine_alone: int = 0
    faults: list[tuple[Case, str]] = field(default_factory=list)


class AgainstGit:
    """`with AgainstGit(folder, world) as against:` the folder is on a file system where many small files cost little."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        self.repo = Repo(folder / "repo")
        self.base = self.repo.history([world.tree])[0]
        self.repo.git("checkout", "-q", "-f", "--detach", self.base)
        self.repo.git("repack", "-q", "-a", "-d")
        self.mails = folder / "mails"
        self.mails.mkdir()

    def __enter__(self) -> AgainstGit:
        self.reader = ObjectReader(self.repo.dir).__enter__()
        self.tree = reader_tree(self.reader, self.base)
        self.files: Files = self.reader.files(self.tree)
        self.contents = dict(self.reader.blobs(self.files, sorted(self.files)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reader.__exit__(kind, error, trace)

    def accept(self, data: bytes) -> Case | PatchctlError:
        """What patchctl makes of one file. Any exception but its own goes through."""
        try:
            patch = parse_patch(data, "case.patch")
            built = StackBuilder(self.reader, self.base, self.tree).build(
                [StackPatch(Path("case.patch"), "case.patch", data, patch, {})]
            )
        except PatchctlError as error:
            return error
        try:
            check_patch(patch)
            refused = ""
        except PatchctlError as error:
            refused = error.what
        return Case(data, _said(_commit(built)), built.steps[0].touched, refused)

    def compare(self, cases: Sequence[Case]) -> Compared:
        """Give all of them to git; of those with refused names, which git mostly refuses as well, every tenth."""
        compared = Compared()
        named = [c for c in cases if c.refused and not c.refused.startswith("mode ")]
        modules = [c for c in cases if c not in named and any(GITLINK in _modes(t) for t in c.touched)]
        self._batch([c for c in cases if c not in named and c not in modules], compared)
        for case in (*modules, *named[::10]):
            self._one(case, compared)
        return compared

    def taken(self, data: bytes) -> bool:
        """Whether git takes a file at all."""
        return self._alone(data) is not None

    def _batch(self, cases: Sequence[Case], compared: Compared) -> None:
        if len(cases) < 2:
            for case in cases:
                self._one(case, compared)
            return
        files: list[str] = []
        for n, case in enumerate(cases):
            for name, data in ((f"{n:05}.patch", case.data), (f"{n:05}.undo", self._undo(case))):
                (self.mails / name).write_bytes(data)
                files.append(str(self.mails / name))
        status, _ = run([*_AM, *files], cwd=self.repo.path)
        commits = self._commits() if status == 0 else []
        self._clean()
        if [_said(c) for c in commits[::2]] == [c.commit for c in cases] and len(commits) == len(files):
            compared.both += len(cases)
            return
        self._batch(cases[: len(cases) // 2], compared)
        self._batch(cases[len(cases) // 2 :], compared)

    def _one(self, case: Case, compared: Compared) -> None:
        commits = self._alone(case.data)
        if commits is None:
            if not case.refused:
                compared.faults.append((case, "accepted by us alone"))
            else:
                compared.engine_alone += 1
        elif [_said(c) for c in commits] != [case.commit]:
            shown = b"\n--\n".join(_said(c) for c in commits)
            compared.faults.append((case, f"git makes another commit\n{shown!r}\nours\n{case.commit!r}"))
        else:
            compared.both += 1

    def _alone(self, data: bytes) -> list[bytes] | None:
        file = self.mails / "alone.patch"
        file.write_bytes(data)
        status, _ = run([*_AM, str(file)], cwd=self.repo.path)
        commits = self._commits() if status == 0 else None
        self._clean()
        return commits

    def _commits(self) -> list[bytes]:
        """The commits on the base, oldest first, as they are in the object store."""
        ids = self.repo.git("rev-list", "--reverse", f"{self.base}..HEAD")
        out = git("cat-file", "--batch", cwd=self.repo.path, stdin=ids)
        commits = []
        while out:
            head, _, out = out.partition(b"\n")
            size = int(head.split()[2])
            commits.append(out[:size])
            out = out[size + 1 :]
        return commits

    def _clean(self) -> None:
        """Back to the base, without the objects that came."""
        shutil.rmtree(self.repo.dir / "rebase-apply", ignore_errors=True)
        (self.repo.dir / "index.lock").unlink(missing_ok=True)
        self.repo.git("reset", "-q", "--hard", self.base)
        self.repo.git("clean", "-ffdxq")
        for folder in (self.repo.dir / "objects").glob("??"):
            shutil.rmtree(folder)
        shutil.rmtree(self.repo.dir / "logs", ignore_errors=True)

    def _undo(self, case: Case) -> bytes:
        """A mail that takes a change back; whole files by their ids, so that it needs to know nothing of the new content."""
        return HEAD + b"".join(self._section(t) for t in sorted(case.touched, key=lambda t: t.after is None))

    def _section(self, touched: Touched) -> bytes:
        old, new = touched.after, touched.before
        if old and new and (old.mode ^ new.mode) & 0o170000:  # another type of file is another file to git
            return self._section(Touched(touched.path, None, old)) + self._section(Touched(touched.path, new, None))
        names = (quote(b"a/" + touched.path), quote(b"b/" + touched.path))
        lines = [b"diff --git %s %s\n" % names]
        if old is None and new is not None:
            lines.append(b"new file mode %06o\n" % new.mode)
        elif new is None and old is not None:
            lines.append(b"deleted file mode %06o\n" % old.mode)
        elif old and new and old.mode != new.mode:
            lines.append(b"old mode %06o\nnew mode %06o\n" % (old.mode, new.mode))
        if _id(old) == _id(new):
            return b"".join(lines)
        data = self.contents[touched.path] if new else b""
        return b"".join(
            [*lines, b"index %s..%s\nGIT binary patch\n" % (_id(old), _id(new)), _binary(data), _binary(b"")]
        )


def _commit(built: Built) -> bytes:
    """The tip's commit object, which has to be the one that its id names."""
    header = built.steps[-1].patch.header
    author, committer = Person(header.name, header.email, header.date), Person(*COMMITTER, header.date)
    data = render_commit(built.tip_tree, [built.base_commit], author, committer, header.message)
    assert object_id("commit", data) == built.tip_commit
    return data


def _said(commit: bytes) -> bytes:
    """A commit without its parent."""
    return re.sub(rb"(?m)^parent .*\n", b"", commit, count=1)


def _id(entry: TreeEntry | None) -> bytes:
    return (entry.id if entry else ZERO_ID).encode()


def _modes(touched: Touched) -> set[int]:
    return {e.mode for e in (touched.before, touched.after) if e}


class PatchReader(Reader):
    """The parser and the stack function. What they take is given to git later; of what they refuse, a sample."""

    name = "patch"
    mirrors: Path | None = None
    batch = 100
    sampled = 400  # git is asked about one in so many that we refuse

    def __init__(self, folder: Path) -> None:
        self.world = made_world(folder, self.mirrors)
        self.against = AgainstGit(folder, self.world).__enter__()
        self.waiting: list[Case] = []
        self.sample: list[bytes] = []
        self.both = self.engine_alone = self.refused = self.asked = self.git_takes = 0

    def case(self, rng: random.Random) -> bytes:
        return mutated(rng, self.world)

    def read(self, data: bytes) -> bool:
        case = self.against.accept(data)
        if isinstance(case, PatchctlError):
            self.refused += 1
            if self.refused % self.sampled == 0:
                self.sample.append(data)
            return refusal(case)
        self.waiting.append(case)
        return not case.refused

    @property
    def due(self) -> bool:
        return len(self.waiting) >= self.batch

    def rest(self) -> list[tuple[bytes, str]]:
        compared = self.against.compare(self.waiting)
        self.both += compared.both
        self.engine_alone += compared.engine_alone
        self.asked += len(self.sample)
        self.git_takes += sum(self.against.taken(data) for data in self.sample)
        self.waiting, self.sample = [], []
        return [(case.data, why) for case, why in compared.faults]

    def said(self) -> str:
        return (
            f"git am made the same commit of {self.both}; {self.engine_alone} with names that only the engine takes; "
            f"git takes {self.git_takes} of {self.asked} that we refuse"
        )

    def close(self) -> None:
        self.against.__exit__(None, None, None)
