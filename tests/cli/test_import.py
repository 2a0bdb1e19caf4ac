"""`patchctl import`: foreign patches into a stack, in every form that people send them; the tree is that of `git am`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import pytest
from distribution import Made, git, make_distribution
from foreign import POND, ZOO, Repository
from on_disk import snapshot

from patchctl.__main__ import run
from patchctl.manifest.series import SeriesPatch

Change = Callable[[bytes], bytes]


class Import:
    """A distribution of two upstreams, in a process that stays: each test has its own copy."""

    def __init__(self, made: Made) -> None:
        self.made = made

    def __call__(self, *args: str | Path, code: int = 0, verb: str = "import") -> str:
        """What a run prints, on both outputs, when it ends with `code`; with another one nothing may be written."""
        before = snapshot(self.made.root)
        out, err = io.StringIO(), io.StringIO()
        line = [f"--root={self.made.root}", f"--cache={self.made.cache}", verb, *map(str, args)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = run(line)
        said = out.getvalue() + err.getvalue()
        assert ended == code, said
        assert "Traceback" not in said
        if code:
            assert snapshot(self.made.root) == before
        return said

    def json(self, *args: str | Path) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self(*args, "--json"))
        return data

    def patches(self, stack: str = "zoo/v1") -> list[Path]:
        return sorted((self.made.root / "patches" / stack).glob("*/*.patch"), key=lambda file: file.name)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_distribution(tmp_path_factory.mktemp("import"), (ZOO, POND))
    shutil.rmtree(made.root / "manifests/profiles")
    Import(made)(verb="lock")
    return made


@pytest.fixture
def bring(origin: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    root = tmp_path / "distribution"
    shutil.copytree(origin.root, root)
    return Import(Made(root, origin.origins, origin.cache))


@pytest.fixture
def repo(origin: Made, tmp_path: Path) -> Repository:
    return Repository(origin.origins / "zoo", tmp_path / "clone")


def one_change(repo: Repository) -> None:
    repo.replace("zoo/ape.py", "value + 7\n", "value + 70\n")
    repo.commit("ape: add seventy", "The old sum is too small.")


# What `git am` takes as it is, with the options that it needs, and what we call them: each is taken without a repair.
TAKEN: dict[str, tuple[Change, list[str], list[str]]] = {
    "plain": (lambda m: m, [], []),
    "base64": (foreign.encoded("base64"), [], []),
    "quoted-printable": (foreign.encoded("quoted-printable"), [], []),
    "multipart": (foreign.multipart, [], []),
    "gbk": (foreign.in_charset("gbk", "\u8bf4\u660e"), [], []),
    "latin1": (foreign.in_charset("iso-8859-1", "caf\u00e9"), [], []),
    "in-body-from": (foreign.in_body_from, [], []),
    "footer-of-a-list": (foreign.with_footer, [], []),
    "flowed": (foreign.flowed, [], []),
    "scissors": (lambda m: m.replace(b"\n\n", b"\n\nSay hello.\n\n-- >8 --\n", 1), ["--scissors"], ["--scissors"]),
    "no-first-line": (lambda m: m.split(b"\n", 1)[1], [], []),
    "stgit": (foreign.stgit, [], []),
    "mercurial": (foreign.mercurial, [], []),
    "series-number": (lambda m: m.replace(b"[PATCH]", b"[PATCH RFC v3 07/12]"), [], []),
    "encoded-subject": (lambda m: m.replace(b"[PATCH] ape:", b"=?gb2312?B?W1BBVENIXSCyudih?= ape:"), [], []),
}
FORMATS: dict[str, tuple[list[str], list[str]]] = {
    "mnemonic": (["--src-prefix=i/", "--dst-prefix=w/"], []),
    "commit-to-object": (["--src-prefix=c/", "--dst-prefix=o/"], []),
    "no-prefix": (["--no-prefix"], ["-p0"]),
    "three-folders": (["--src-prefix=a/x/y/z/", "--dst-prefix=b/x/y/z/"], ["-p4"]),
    "short-ids": (["--abbrev=7"], []),
    "full-ids": (["--full-index"], []),
    "base-footer": (["--base=HEAD~1"], []),
    "attached": (["--attach"], []),
    "inline": (["--inline"], []),
    "more-context": (["-U9"], []),
}


@pytest.mark.parametrize("form", TAKEN)
def test_what_git_am_takes_is_taken_without_a_repair(
    bring: Import, repo: Repository, tmp_path: Path, form: str
) -> None:
    change, am_options, own = TAKEN[form]
    one_change(repo)
    mail = change(repo.mail())
    folder = foreign.write_all(tmp_path / "mails", {"some mail.patch": mail})
    data = bring.json(folder, *own)
    assert (data["upstream"], data["stack"], data["written"]) == ("zoo", "v1", True)
    assert data["tip_tree"] == repo.tree == repo.am([mail], *am_options)
    [patch] = data["patches"]
    assert patch["author"] == "patchctl <patchctl@localhost>"
    words = {"gbk": "\u8bf4\u660e", "latin1": "caf\u00e9", "base64": "The old sum", "multipart": "The old sum"}
    text = bring.patches()[0].read_text()
    assert words.get(form, "") in text and ("Say hello" in text) == (form == "no-scissors")


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_of_the_diff_is_taken_and_its_prefix_found(
    bring: Import, repo: Repository, tmp_path: Path, form: str
) -> None:
    args, am_options = FORMATS[form]
    one_change(repo)
    repo.git("mv", "zoo/bear.py", "zoo/grizzly.py")
    repo.commit("bear: call it grizzly")
    (repo.folder / "zoo/new one.py").write_text("X = 1\n")
    repo.commit("zoo: add a file")
    base = ["--base=HEAD~3"] if form == "base-footer" else args
    mails = repo.git("format-patch", "--stdout", "-M", *base, "HEAD~3")
    if form == "three-folders":  # as a repository has it that holds the tree three folders down
        mails = re.sub(rb"(?m)^(rename \w+) ", rb"\1 x/y/z/", mails)
    (tmp_path / "series.mbox").write_bytes(mails)
    data = bring.json(tmp_path / "series.mbox")
    assert data["tip_tree"] == repo.tree == repo.am([mails], *am_options)
    assert [p["source"].rpartition("/")[2] for p in data["patches"]] == [f"series.mbox#{n}" for n in (1, 2, 3)]
    assert data["candidates"][0]["named_as_base"] == (form == "base-footer")
    noted = [note for p in data["patches"] for note in p["notes"]]
    assert any("'x/y/z/' taken off" in note for note in noted) == (form == "three-folders"), noted


# What has to be asked for: the fault without, and with it the tree that `git am` makes of the same mail or of the sound one.
MENDED: dict[str, tuple[Change, str, list[str]]] = {
    "crlf": (foreign.crlf, "lines end with CRLF", ["--repair-only", "line-ends"]),
    "crlf-in-base64": (
        lambda m: foreign.encoded("base64")(m.replace(b"\n", b"\r\n").replace(b"\r\n\r\n", b"\n\n", 1)),
        "CRLF",
        ["--repair"],
    ),
    "byte-order-mark": (lambda m: b"\xef\xbb\xbf" + m, "byte order mark", ["--repair"]),
    "no-blank-line": (foreign.no_blank_line, "without a blank line", ["--repair-only", "blank-line"]),
    "no-author": (foreign.without("From"), "names no author", ["--author", "patchctl <patchctl@localhost>"]),
    "no-date": (foreign.without("Date"), "has no date", ["--date", "2026-11-21 10:00:00 +0800"]),
    "no-subject": (foreign.without("Subject"), "has no subject", ["--repair-only", "subject"]),
    "no-index": (foreign.no_index, "has no `index` line", ["--repair-only", "ids"]),
    "false-index": (foreign.false_index, "promises dddd", ["--repair-only", "ids"]),
    "gnu-diff": (foreign.gnu, "has no `index` line", ["--repair"]),
    "raw-gbk": (foreign.in_charset("gbk", "\u8bf4\u660e", named=False), "not UTF-8", ["--charset", "GBK"]),
}


@pytest.mark.parametrize("fault", MENDED)
def test_each_fault_is_named_and_mended_on_request(bring: Import, repo: Repository, tmp_path: Path, fault: str) -> None:
    change, said, repair = MENDED[fault]
    one_change(repo)
    sound = repo.mail("HEAD", "--full-index")
    file = foreign.write_all(tmp_path / "mails", {"0001-add-seventy.patch": change(sound)}) / "0001-add-seventy.patch"
    assert said in bring(file, code=2)
    data = bring.json(file, *repair)
    assert data["tip_tree"] == repo.tree == repo.am([sound])
    assert data["patches"][0]["notes"], "what was mended is said for the file"
    assert "TODO" in bring.patches()[0].read_text()


def edit(repo: Repository, number: int) -> None:
    """A small change of its own for each number, spread over the files and down their lines."""
    name = ("ape", "bear", "cat", "dog", "elk")[number % 5]
    repo.replace(f"zoo/{name}.py", f"value + {number // 5 + 2}\n", f"value + {number // 5 + 2} * {number}\n")


def paths_below(prefix: str) -> Change:
    """As from a repository that holds the tree in a folder."""

    def change(mail: bytes) -> bytes:
        mail = re.sub(rb"(?m)^(diff --git a/)(\S+ b/)", rb"\g<1>%s\g<2>%s" % (prefix.encode(), prefix.encode()), mail)
        mail = re.sub(rb"(?m)^(--- a/|\+\+\+ b/)", rb"\g<1>" + prefix.encode(), mail)
        return re.sub(rb"(?m)^(rename \w+ )", rb"\g<1>" + prefix.encode(), mail)

    return change


def other_names(old: str, new: str) -> Change:
    return lambda mail: mail.replace(b" a/", b" " + old.encode()).replace(b" b/", b" " + new.encode())


def both(*changes: Change) -> Change:
    def change(mail: bytes) -> bytes:
        for one in changes:
            mail = one(mail)
        return mail

    return change


SERIES: list[tuple[str, Change]] = [
    ("01-plain.patch", lambda m: m),
    ("02-crlf.patch", foreign.crlf),
    ("03 no blank line.patch", foreign.no_blank_line),
    ("04-no-author.patch", foreign.without("From")),
    ("05-no-date.patch", foreign.without("Date")),
    ("06-no-subject.patch", foreign.without("Subject")),
    ("07-three-folders.patch", paths_below("x/y/z/")),
    ("08-mnemonic.patch", other_names("i/", "w/")),
    ("09-commit-object.diff", other_names("c/", "o/")),
    ("10-base64.eml", foreign.encoded("base64")),
    ("11-quoted.eml", foreign.encoded("quoted-printable")),
    ("12-attached.eml", foreign.multipart),
    ("13-gbk.patch", foreign.in_charset("gbk", "\u4fee\u590d")),
    ("14-latin.patch", foreign.in_charset("iso-8859-1", "caf\u00e9")),
    ("15-in-body-from.patch", foreign.in_body_from),
    ("16-footer.patch", foreign.with_footer),
    ("17-flowed.patch", foreign.flowed),
    ("18-no-index.patch", foreign.no_index),
    ("19-false-index.patch", foreign.false_index),
    ("20-gnu.diff", foreign.gnu),
    ("21-stgit.patch", foreign.stgit),
    ("22-hg.patch", foreign.mercurial),
    ("23-\u4e2d\u6587.patch", lambda m: m),
    ("24-byte-order-mark.patch", lambda m: b"\xef\xbb\xbf" + m),
    ("25-crlf-no-blank-line-prefix.patch", both(paths_below("x/y/z/"), foreign.no_blank_line, foreign.crlf)),
    ("26-rename-below.patch", paths_below("x/y/z/")),
    ("27-new-file-below.patch", paths_below("x/y/z/")),
    ("28-binary.patch", lambda m: m),
    ("29-mode.patch", lambda m: m),
    ("30-delete.patch", lambda m: m),
]


def make_series(repo: Repository) -> list[bytes]:
    """A mail for each entry of SERIES, sound, one commit on the other."""
    mails = []
    for number, (name, _) in enumerate(SERIES):
        if "rename" in name:
            repo.git("mv", "zoo/bear.py", "zoo/grizzly.py")
            repo.replace("zoo/grizzly.py", "value + 20\n", "value + 21 - 1\n")
        elif "new-file" in name:
            (repo.folder / "zoo/fox.py").write_text("FOX = 1\n")
        elif "binary" in name:
            (repo.folder / "zoo/pic.bin").write_bytes(bytes(range(256)) * 40)
        elif "mode" in name:
            (repo.folder / "run.sh").chmod(0o755 if not os.access(repo.folder / "run.sh", os.X_OK) else 0o644)
        elif "delete" in name:
            (repo.folder / "old.txt").unlink()
        else:
            edit(repo, number)
        repo.commit(f"zoo: make change {number + 1}", "It is wanted.", 1700000000 + number)
        mails.append(repo.mail("HEAD", "--binary", "-M"))
    return mails


def test_thirty_files_with_every_fault_become_the_stack_that_git_am_makes(
    bring: Import, repo: Repository, tmp_path: Path
) -> None:
    sound = make_series(repo)
    folder = tmp_path / "their patches"
    foreign.write_all(folder, {name: change(mail) for (name, change), mail in zip(SERIES, sound, strict=True)})
    (folder / "README.md").write_text("Apply them all.\n")
    cover = repo.git("format-patch", "-1", "--stdout", "--cover-letter", "HEAD").split(b"\nFrom ")[0]
    (folder / "00-cover.patch").write_bytes(cover.replace(b"[PATCH 0/1]", b"[PATCH 00/30]") + b"\n")
    refused = bring(folder, code=2)
    for number, said in [
        ("02", "CRLF"),
        ("03", "blank line"),
        ("04", "no author"),
        ("05", "no date"),
        ("06", "no subject"),
        ("18", "`index`"),
        ("19", "promises"),
        ("20", "`index`"),
        ("24", "byte order mark"),
        ("25", "CRLF"),
        ("25", "blank line"),
    ]:
        assert any(f"/{number}" in line and said in line for line in refused.splitlines()), (number, said, refused)
    assert "11 faults in 10 files" in refused, refused
    options = ("--repair", "--author", "patchctl <patchctl@localhost>", "--date", "2026-11-21 10:00:00 +0800")
    dry = snapshot(bring.made.root)
    planned = bring.json(folder, *options, "--dry-run")
    assert snapshot(bring.made.root) == dry and not planned["written"]
    data = bring.json(folder, *options)
    assert data == {**planned, "written": True}
    assert data["tip_tree"] == repo.am(sound) == repo.tree
    assert len(bring.patches()) == len(data["patches"]) == 30
    assert {Path(p["file"]).name: p["why"].split(":")[0] for p in data["passed_over"]} == {
        "README.md": "no name of a mail or a patch",
        "00-cover.patch": "a cover letter",
    }
    bring(verb="lock")
    lock = json.loads((bring.made.root / "manifests/locks/zoo/v1.json").read_text())
    assert lock["results"][0]["forms"]["git"]["tip_tree"] == repo.tree
    rules = re.findall(r"\[([a-z-]+)\]", bring("--static", verb="verify", code=1))
    assert rules.count("filled-in") == 28 * 5 + 2 * 4  # two have two paragraphs, and need no third
    assert set(rules) == {"filled-in", "switch-form", "status-form", "subject-form"}


def test_what_waits_is_filled_in_with_git_and_then_the_lint_is_content(
    bring: Import, repo: Repository, tmp_path: Path
) -> None:
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail())
    bring(tmp_path / "a.patch")
    assert [p.name for p in bring.patches()] == ["0001-feature-ape_add_seventy.patch"]
    tree = tmp_path / "tree"
    bring("zoo", "--dir", tree, verb="edit")
    words = {
        "Need": "the sum is small.",
        "Risk": "a caller that adds.",
        "Switch": "none",
        "Upstream-Status": "Pending",
        "Drop-When": "never",
    }
    message = repo.git("-C", str(tree), "log", "-1", "--format=%B").decode()
    for key, value in words.items():
        message = re.sub(rf"(?m)^{key}: TODO.*$", f"{key}: {value}", message)
    repo.git("-C", str(tree), "commit", "--quiet", "--amend", "-m", message)
    bring("zoo", "--dir", tree, verb="export")
    assert [p.name for p in bring.patches()] == ["0001-bugfix-ape_add_seventy.patch"]
    bring(verb="lock")
    bring("--static", verb="verify")


def test_a_new_stack_gets_the_pin_that_the_blobs_name(bring: Import, repo: Repository, tmp_path: Path) -> None:
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail())
    data = bring.json(tmp_path / "a.patch", "--stack", "zoo/mine")
    assert (data["stack"], data["new_stack"], data["extends"], data["tip_tree"]) == ("mine", True, None, repo.tree)
    bring(verb="lock")
    repo.replace("zoo/ape.py", "value + 70\n", "value + 71\n")
    repo.commit("ape: add seventy-one")
    (tmp_path / "b.patch").write_bytes(repo.mail())
    data = bring.json(tmp_path / "b.patch", "--stack", "zoo/more")  # made on what `mine` gives
    assert (data["extends"], data["new_stack"], data["tip_tree"]) == ("mine", True, repo.tree)
    bring(verb="lock")
    assert data["patches"][0]["file"].startswith("0002-")  # as `export` goes on to name them
    assert "nothing differs" in bring("zoo/more", "--check", verb="export")
    data = bring.json(tmp_path / "b.patch", "--dry-run")  # without a name it belongs behind the last patch of `mine`
    assert (data["stack"], data["new_stack"], data["tip_tree"]) == ("mine", False, repo.tree)
    assert data["patches"][0]["file"].startswith("0002-")
    assert "no name of a stack" in bring(tmp_path / "b.patch", "--stack", "zoo/UP", code=2)
    assert "no upstream" in bring(tmp_path / "b.patch", "--stack", "zo/x", code=2)


def test_a_map_puts_paths_elsewhere(bring: Import, repo: Repository, tmp_path: Path) -> None:
    one_change(repo)
    mail = repo.mail().replace(b"zoo/ape.py", b"lib/animals/ape.py")
    (tmp_path / "a.patch").write_bytes(mail)
    assert "no stack has a file" in bring(tmp_path / "a.patch", code=4)
    assert bring.json(tmp_path / "a.patch", "--map", "lib/animals=zoo")["tip_tree"] == repo.tree


def test_the_numbers_of_a_series_order_it(bring: Import, repo: Repository, tmp_path: Path) -> None:
    for number in (0, 5):
        edit(repo, number)
        repo.commit(f"ape: make change {number}")
    repo.git("format-patch", "-o", str(tmp_path / "m"), "HEAD~2")
    first, second = sorted((tmp_path / "m").iterdir())
    data = bring.json(second, first)
    assert data["tip_tree"] == repo.tree and "not that of the files" in data["said"][0]
    assert [p["subject"] for p in data["patches"]] == ["ape: make change 0", "ape: make change 5"]


def binary_without_content(mail: bytes) -> bytes:
    return re.sub(rb"GIT binary patch\n(.|\n)*?\n\n(.|\n)*?\n\n", b"Binary files a/p and b/p differ\n", mail)


REFUSED: dict[str, tuple[Change, int, str]] = {
    "path-escape": (lambda m: m.replace(b"zoo/ape.py", b"../ape.py"), 2, "leaves the tree"),
    "inside-git": (lambda m: m.replace(b"zoo/ape.py", b".git/hooks"), 2, "inside .git"),
    "not-utf-8-name": (lambda m: re.sub(rb"([ab])/zoo/ape.py", rb'"\1/zoo/\\377.py"', m), 2, "not UTF-8"),
    "shifted": (lambda m: m.replace(b"@@ -27,", b"@@ -31,").replace(b"+27,", b"+31,"), 4, "are at line 27"),
    "another-context": (lambda m: m.replace(b" def ape_8(value):", b" def ape_8(values):"), 4, "line"),
    "another-blob": (lambda m: re.sub(rb"(?m)^index [0-9a-f]{7}", b"index 1234567", m), 4, "the patch is for 1234567"),
    "too-few-counted": (lambda m: m.replace(b"\n-- \n", b"\n+    pass\n-- \n"), 2, "counts fewer lines"),
    "too-many-counted": (lambda m: m.replace(b",7 +", b",9 +"), 2, "announces"),
    "no-diff": (lambda m: m[: m.index(b"diff --git")], 2, "holds no diff"),
    "damaged-hunk": (lambda m: m.replace(b"@@ -27,7", b"@@ -2 7,7"), 2, "no header of a hunk"),
    "names-in-two-ways": (lambda m: m.replace(b"+++ b/zoo/ape.py", b"+++ b/zoo/bear.py"), 2, "names cannot be read"),
    "half-a-git-diff": (lambda m: m + foreign.gnu(m[m.index(b"diff --git") :]), 2, "without `diff --git`"),
    "merge": (lambda m: m.replace(b"diff --git a/zoo/ape.py b/zoo/ape.py", b"diff --cc zoo/ape.py"), 2, "merge"),
    "empty": (lambda m: b"", 2, "is empty"),
    "utf-16": (lambda m: m.decode().encode("utf-16"), 2, "UTF-16"),
    "half-an-author": (lambda m: re.sub(rb"From: .*", b"From: <>", m, count=1), 2, "names no author"),
    "no-such-date": (lambda m: re.sub(rb"Date: .*", b"Date: yesterday", m, count=1), 2, "date"),
    "no-such-charset": (foreign.in_charset("gbk", "\u8bf4\u660e", named=False), 2, "--charset"),
    "unknown-charset": (
        lambda m: foreign.in_charset("gbk", "\u8bf4\u660e")(m).replace(b"gbk", b"klingon"),
        2,
        "cannot read it",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_be_taken_is_refused_with_a_reason(
    bring: Import, repo: Repository, tmp_path: Path, fault: str
) -> None:
    change, code, said = REFUSED[fault]
    one_change(repo)
    (tmp_path / "bad.patch").write_bytes(change(repo.mail()))
    shown = bring(tmp_path / "bad.patch", "--repair-only", "line-ends", "--stack", "zoo", code=code)
    assert said in shown and "bad.patch" in shown, shown


@pytest.mark.parametrize("kind", ["link", "submodule", "binary", "start-up"])
def test_what_no_stack_may_hold_is_refused(bring: Import, repo: Repository, tmp_path: Path, kind: str) -> None:
    folder = repo.folder
    if kind == "link":
        (folder / "zoo/link").symlink_to("ape.py")
    elif kind == "submodule":
        repo.git("update-index", "--add", "--cacheinfo", f"160000,{repo.base},zoo/sub")
        (folder / "zoo/sub").mkdir()
    elif kind == "start-up":
        (folder / "zoo/x.pth").write_text("import os\n")
    else:
        (folder / "zoo/pic.bin").write_bytes(bytes(range(256)))
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(binary_without_content(repo.mail("HEAD", "--binary")))
    said = {
        "link": "mode 120000 is refused",
        "submodule": "mode 160000",
        "binary": "lacks this binary file's content",
        "start-up": "Python would run it",
    }[kind]
    assert said in bring(tmp_path / "a.patch", code=2)


def test_all_faults_of_all_files_are_named_at_once(bring: Import, repo: Repository, tmp_path: Path) -> None:
    """Two that conflict, one that is there twice, one without a diff, one with two faults: five files, each named."""
    edit(repo, 0)
    repo.commit("ape: go one way")
    one = repo.mail()
    repo.git("reset", "--quiet", "--hard", repo.base)
    repo.replace("zoo/ape.py", "value + 2\n", "value + 222\n")
    repo.commit("ape: go another way")
    other = repo.mail()
    mails = {
        "1.patch": one,
        "2.patch": other,
        "3.patch": one,
        "4.patch": one[: one.index(b"diff --git")],
        "5.patch": foreign.without("Date")(foreign.without("From")(one.replace(b"one way", b"a third way"))),
    }
    said = bring(foreign.write_all(tmp_path / "m", mails), code=2)
    assert re.search(r"/2.patch:\d+: zoo/ape.py is blob \w+ here, as \S+/1.patch leaves it", said), said
    assert re.search(r"/3.patch:1: is the same patch as \S+/1.patch", said)
    assert re.search(r"/4.patch:1: holds no diff", said)
    assert "5.patch:1: names no author" in said and "5.patch:1: has no date" in said
    assert "git am -3" in said
    problems = json.loads(bring(tmp_path / "m", "--json", code=2).partition("\npatchctl:")[0])["error"]["problems"]
    assert [p["file"][-7:] for p in problems] == ["2.patch", "3.patch", "4.patch", "5.patch", "5.patch"]


def test_a_patch_that_is_there_already_says_so(bring: Import, repo: Repository, tmp_path: Path) -> None:
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail())
    bring(tmp_path / "a.patch")
    bring(verb="lock")
    said = bring(tmp_path / "a.patch", code=4)
    assert "is already as this patch leaves it" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone makes files for others")
def test_what_root_imports_is_the_owners_of_the_folder(bring: Import, repo: Repository, tmp_path: Path) -> None:
    for path in (bring.made.root, *bring.made.root.rglob("*")):
        os.lchown(path, 1234, 2345)
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail())
    bring(tmp_path / "a.patch")
    owned = {
        path: path.lstat().st_uid for name in ("patches", "manifests") for path in (bring.made.root / name).rglob("*")
    }
    assert {path for path, owner in owned.items() if owner != 1234} == set()


def test_a_file_that_goes_and_comes_back_is_not_carried_twice(bring: Import, repo: Repository, tmp_path: Path) -> None:
    for text in ("A = 1\n", None, "B = 2\n"):
        (repo.folder / "zoo/gnu.py").unlink() if text is None else (repo.folder / "zoo/gnu.py").write_text(text)
        edit(repo, 0 if text == "A = 1\n" else 5 if text is None else 10)
        repo.commit(f"gnu: say {text!r}"[:40].replace("\\n", ""))
    (tmp_path / "s.mbox").write_bytes(repo.git("format-patch", "--stdout", "HEAD~3"))
    assert bring.json(tmp_path / "s.mbox")["tip_tree"] == repo.tree
    bring(verb="lock")
    (carried,) = (bring.made.root / "patches/zoo/v1").glob("*/files/zoo/gnu.py")
    assert carried.read_text() == "A = 1\n"


def test_files_in_the_way_are_kept(bring: Import, repo: Repository, tmp_path: Path) -> None:
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail())
    mine = bring.made.root / "patches/zoo/v1/ape_add_seventy/0001-feature-ape_add_seventy.patch"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine\n")
    assert "in the way" in bring(tmp_path / "a.patch", code=5)
    assert mine.read_text() == "mine\n"


def test_an_empty_file_that_goes(bring: Import, repo: Repository, tmp_path: Path) -> None:
    """Its section has no hunk; one that changes nothing could not be read again."""
    (repo.folder / "zoo/__init__.py").unlink()
    (repo.folder / "zoo/new.bin").write_text("")
    repo.commit("zoo: drop the package's mark")
    (tmp_path / "a.patch").write_bytes(repo.mail())
    assert bring.json(tmp_path / "a.patch")["tip_tree"] == repo.tree
    assert "@@" not in bring.patches()[0].read_text()


def killed_at(bring: Import, event: int, line: list[str]) -> bool:
    """Run an import in a process of its own that gets SIGKILL right before its n-th change of a file of the distribution;
    whether it was killed."""
    child = os.fork()
    if child == 0:
        seen = 0
        root = str(bring.made.root)

        def hook(name: str, args: tuple[Any, ...]) -> None:
            nonlocal seen
            writes = name in ("os.rename", "os.remove", "os.rmdir", "os.mkdir") or (
                name == "open" and isinstance(args[1], str) and args[1][:1] in "wx"
            )
            if writes and any(
                isinstance(a, (str, bytes, os.PathLike)) and os.fsdecode(a).startswith(root) for a in args[:2]
            ):
                seen += 1
                if seen == event:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            os._exit(run([f"--root={root}", f"--cache={bring.made.cache}", "import", *line]))
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.heavy("kills a run at each of its calls")
@pytest.mark.parametrize("stack", ["zoo/v1", "zoo/mine"])
def test_a_killed_import_leaves_all_or_nothing_and_the_next_one_ends_right(
    bring: Import, repo: Repository, tmp_path: Path, stack: str
) -> None:
    one_change(repo)
    (repo.folder / "zoo/fox.py").write_text("FOX = 1\n")
    edit(repo, 6)
    repo.commit("fox: come in")
    (tmp_path / "s.mbox").write_bytes(repo.git("format-patch", "--stdout", "HEAD~2"))
    pristine = tmp_path / "pristine"
    shutil.copytree(bring.made.root, pristine)
    line = [str(tmp_path / "s.mbox"), "--stack", stack]
    bring(*line)
    wanted = snapshot(bring.made.root)
    manifest = bring.made.root / f"manifests/stacks/{stack}.yaml"
    event, killed = 0, True
    while killed:
        event += 1
        shutil.rmtree(bring.made.root)
        shutil.copytree(pristine, bring.made.root)
        killed = killed_at(bring, event, line)
        named = re.findall(r"- (0.*)", manifest.read_text()) if manifest.exists() else []
        assert len(named) in (0, 2)
        assert all((bring.made.root / SeriesPatch(*stack.split("/"), name).path).is_file() for name in named)
        if not named:
            bring(*line)
        found = snapshot(bring.made.root)
        assert {p: s for p, s in found.items() if ".patchctl-import-" not in p} == wanted, event
        if not named:
            assert found == wanted, event
    assert event > 10


def test_a_disk_that_is_full_leaves_nothing(
    bring: Import, repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest cannot be written, when all patches are at their place already: they go again, folders too."""
    from patchctl.importing import import_patches

    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail())

    def full(file: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(import_patches, "replace_file", full)
    assert "No space left" in bring(tmp_path / "a.patch", code=7)
    assert "No space left" in bring(tmp_path / "a.patch", "--stack", "zoo/mine", code=7)
    assert not (bring.made.root / "patches/zoo").exists()


def test_a_maildir_an_mboxrd_and_a_feature_of_ours(bring: Import, repo: Repository, tmp_path: Path) -> None:
    one_change(repo)
    maildir = tmp_path / "maildir"
    for folder in ("cur", "new", "tmp"):
        (maildir / folder).mkdir(parents=True)
    (maildir / "cur/1700000000.M1.host:2,S").write_bytes(repo.mail())
    assert bring.json(maildir, "--dry-run")["tip_tree"] == repo.tree
    quoted = repo.mail().replace(b"The old sum", b">From here on the old sum")
    (tmp_path / "a.mbox").write_bytes(quoted)
    assert (
        bring.json(tmp_path / "a.mbox", "--mboxrd")["tip_tree"]
        == repo.tree
        == repo.am([quoted], "--patch-format=mboxrd")
    )
    assert "\nFrom here on the old sum" in bring.patches()[0].read_text()
    bring(verb="lock")
    repo.replace("zoo/ape.py", "value + 70\n", "value + 71\n")
    repo.commit("ape: add seventy-one", "More.\n\nFeature: ape_add_seventy\nSwitch: none")
    (tmp_path / "b.patch").write_bytes(repo.mail())
    assert "has a feature ape_add_seventy already" in bring(tmp_path / "b.patch", code=2)
    repo.git(
        "commit", "--quiet", "--amend", "-m", "ape: add seventy"
    )  # the name from the subject is taken: another one
    (tmp_path / "b.patch").write_bytes(repo.mail())
    assert bring.json(tmp_path / "b.patch")["patches"][0]["feature"] == "ape_add_seventy_2"


def test_a_new_stack_takes_nothing_over_that_another_says_of_its_patches(
    bring: Import, repo: Repository, tmp_path: Path
) -> None:
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail())
    manifest = bring.made.root / "manifests/stacks/zoo/v1.yaml"
    (manifest.parent / "v0.yaml").write_text(manifest.read_text().replace("name: v1", "name: v0"))
    manifest.write_text(
        manifest.read_text() + "comes_from: v0\ndropped: {bins: nobody needs it}\npostponed: {tins: later}\n"
    )
    bring(tmp_path / "a.patch", "--stack", "zoo/mine")
    written = (manifest.parent / "mine.yaml").read_text()
    assert not [key for key in ("comes_from", "dropped", "postponed") if key in written], written


def test_of_two_pins_with_the_same_files_the_one_that_a_mail_names_is_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = make_distribution(tmp_path / "own", (ZOO, POND))
    shutil.rmtree(made.root / "manifests/profiles")
    git(made.origins / "zoo", "commit", "--quiet", "--allow-empty", "-m", "nothing")
    git(made.origins / "zoo", "tag", "v2")
    bring, repo = Import(made), Repository(made.origins / "zoo", tmp_path / "clone")
    bring("zoo", "v2", verb="pin")
    bring(verb="lock")
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail("HEAD", "--base=HEAD~1"))
    (tmp_path / "b.patch").write_bytes(repo.mail())
    assert bring.json(tmp_path / "a.patch", "--dry-run")["stack"] == "v2"
    said = bring(tmp_path / "b.patch", "--stack", "zoo/mine", code=4)
    assert f"`patchctl --root {made.root} pin zoo REVISION --name NAME`" in said


def test_what_does_not_say_where_it_belongs(bring: Import, repo: Repository, tmp_path: Path) -> None:
    """Two stacks of one pin; a patch that only adds; a strip that leaves nothing."""
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail())
    text = (bring.made.root / "manifests/stacks/zoo/v1.yaml").read_text()
    (bring.made.root / "manifests/stacks/zoo/v2.yaml").write_text(text.replace("name: v1", "name: v2"))
    said = bring(tmp_path / "a.patch", code=4)
    assert "several stacks" in said and "zoo/v1: 1 of 1" in said and "zoo/v2: 1 of 1" in said
    assert bring.json(tmp_path / "a.patch", "--stack", "zoo/v2", "--dry-run")["tip_tree"] == repo.tree
    assert "2 stacks" in bring(tmp_path / "a.patch", "--stack", "zoo", code=2)
    assert "cannot be read with 3" in bring(tmp_path / "a.patch", "--stack", "zoo/v1", "--strip", "3", code=2)
    (repo.folder / "zoo/fox.py").write_text("FOX = 1\n")
    repo.commit("fox: come in")
    (tmp_path / "b.patch").write_bytes(repo.mail())
    assert "--stack UPSTREAM/STACK" in bring(tmp_path / "b.patch", code=4)
    assert (
        bring.json(tmp_path / "b.patch", "--stack", "zoo/v2")["patches"][0]["file"] == "0001-feature-fox_come_in.patch"
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--author", "nobody"], "--author"),
        (["--date", "yesterday-ish"], "--date"),
        (["--charset", "klingon"], "--charset"),
        (["--map", "a"], "--map takes NAME=VALUE"),
        (["--strip", "-1"], "--strip"),
        (["--repair-only", "all"], "--repair-only"),
        (["--stack", "zo"], "no upstream"),
    ],
)
def test_wrong_use_is_refused_before_a_mail_is_read(bring: Import, tmp_path: Path, args: list[str], said: str) -> None:
    (tmp_path / "a.patch").write_text("\n")
    assert said in bring(tmp_path / "a.patch", *args, code=2)


def test_control_characters_of_a_mail_reach_no_terminal(bring: Import, repo: Repository, tmp_path: Path) -> None:
    one_change(repo)
    mail = repo.mail().replace(b"add seventy", b"add \x1b[31mseventy")
    (tmp_path / "a.patch").write_bytes(mail)
    said = bring(tmp_path / "a.patch", "--dry-run")
    assert "\x1b" not in said and "seventy" in said


def test_an_sdist_that_lacks_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache has the sdist alone, git is asked for what it lacks; where git cannot be had, a way is named."""
    held = [name for name in ZOO.files if name != "docs/zoo.txt"]
    made = make_distribution(tmp_path / "made", (dataclasses.replace(ZOO, sdist=held),))
    shutil.rmtree(made.root / "manifests/profiles")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.index))
    bring = Import(made)
    repo = Repository(made.origins / "zoo", tmp_path / "clone")
    (repo.folder / "docs/zoo.txt").write_text("summary\n")
    repo.commit("docs: write plainly")
    (tmp_path / "a.patch").write_bytes(repo.mail())
    away = made.origins / "away"
    (made.origins / "zoo").rename(away)
    said = bring(tmp_path / "a.patch", "--stack", "zoo", code=4)
    assert "is not in the tree of the sdist" in said and "--mirror" in said
    assert bring.json(tmp_path / "a.patch", "--dry-run", "--stack", "zoo", "--mirror", f"zoo={away}")["form"] == "git"
    shutil.rmtree(made.cache / "git", ignore_errors=True)
    away.rename(made.origins / "zoo")
    assert bring.json(tmp_path / "a.patch", "--stack", "zoo")["tip_tree"] == repo.tree


# What is printed behind "try:" works for the file that it is printed for


def shifted(repo: Repository) -> None:
    """A change of other lines than the base has there: no exact fit, and one that git merges."""
    repo.replace("zoo/ape.py", "def ape_0(value):\n", "# above\n\n\ndef ape_0(value):\n")
    repo.commit("above")
    one_change(repo)


def follow(bring: Import, said: str, repo: Repository) -> None:
    """Run what the hint says, in the work tree that it says."""
    stack, command = re.findall(r"try: `patchctl edit (\S+)`, `(git [^`]+)`", said)[0]
    bring(stack, "--dir", str(repo.folder.parent / "edit"), verb="edit")
    tree = repo.folder.parent / "edit"
    done = subprocess.run(
        [*shlex.split(command)], cwd=tree, env={**foreign.GIT_ENV, **foreign.AUTHOR}, capture_output=True, check=False
    )
    assert done.returncode == 0, (command, done.stderr)
    assert b"value + 70" in (tree / "zoo/ape.py").read_bytes()


@pytest.mark.parametrize("form", ["mail", "git diff", "diff without ids", "stgit"])
def test_the_way_out_of_a_patch_that_does_not_apply_is_one_for_its_form(
    bring: Import, repo: Repository, tmp_path: Path, form: str
) -> None:
    shifted(repo)
    data = {
        "mail": repo.mail(),
        "git diff": repo.git("diff", "--full-index", "HEAD~1", "HEAD"),
        "diff without ids": re.sub(rb"(?m)^index .*\n", b"", repo.git("diff", "HEAD~1", "HEAD")),
        "stgit": foreign.stgit(repo.mail()),
    }[form]
    (tmp_path / "a b.patch").write_bytes(data)
    options = (
        ()
        if form in ("mail", "stgit")
        else ("--author", "A B <a@b.c>", "--date", "2026-01-01 00:00:00 +0000", "--repair")
    )
    follow(bring, bring(tmp_path / "a b.patch", "--stack", "zoo/v1", *options, code=4), repo)


def test_line_ends_that_the_patch_lost_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    files = {**foreign.FILES, "zoo/ape.py": foreign.module("ape").replace("\n", "\r\n")}
    made = make_distribution(tmp_path / "made", (dataclasses.replace(ZOO, files=files),))
    shutil.rmtree(made.root / "manifests/profiles")
    repo = Repository(made.origins / "zoo", tmp_path / "clone")
    path = repo.folder / "zoo/ape.py"
    path.write_bytes(path.read_bytes().replace(b"value + 7\r\n", b"value + 70\r\n"))
    repo.commit("ape: add seventy")
    (tmp_path / "a.patch").write_bytes(repo.mail().replace(b"\r\n", b"\n"))
    bring = Import(made)
    said = bring(tmp_path / "a.patch", "--stack", "zoo/v1", code=4)
    assert "the file has CRLF line ends, and the patch lost them" in said and "--ignore-whitespace" in said
    follow(bring, said, repo)


def test_a_patch_made_inside_a_folder_is_told_where_it_belongs(bring: Import, repo: Repository, tmp_path: Path) -> None:
    one_change(repo)
    mail = repo.mail("HEAD", "--relative=zoo")
    (tmp_path / "a.patch").write_bytes(mail)
    said = bring(tmp_path / "a.patch", "--stack", "zoo/v1", code=4)
    options = shlex.split(re.findall(r"try: (--map [^:]+): the patch was made in zoo/", said)[0])
    bring(tmp_path / "a.patch", "--stack", "zoo/v1", *options)
    assert "+    return value + 70" in bring.patches()[-1].read_text()


def test_a_folder_of_quilt_is_taken_in_the_order_of_its_series(bring: Import, repo: Repository, tmp_path: Path) -> None:
    folder = tmp_path / "patches"
    folder.mkdir()
    one_change(repo)
    (folder / "z-first.patch").write_bytes(repo.mail())
    repo.replace("zoo/ape.py", "value + 70\n", "value + 700\n")
    repo.commit("ape: add seven hundred")
    for name in ("a-second.patch", "b-off.patch", "c-unnamed.patch"):
        (folder / name).write_bytes(repo.mail())
    (folder / "series").write_text("# ours\nz-first.patch\na-second.patch -p1 # after it\n\n# b-off.patch\n")
    said = bring(folder, "--stack", "zoo/v1")
    assert [p.name[5:] for p in bring.patches()] == [
        "feature-ape_add_seventy.patch",
        "feature-ape_add_seven_hundred.patch",
    ]
    assert "b-off.patch: commented out in series" in said and "c-unnamed.patch: not named in series" in said
    (folder / "series").write_text("z-first.patch\nlost.patch\na-second.patch -R\n")
    said = bring(folder, "--stack", "zoo/v1", code=2)
    assert "series:2: lost.patch is not there" in said and "series:3: a-second.patch is to be taken back" in said


def test_a_patch_that_is_in_is_not_to_be_taken_by_hand(bring: Import, repo: Repository, tmp_path: Path) -> None:
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail())
    bring(tmp_path / "a.patch", "--stack", "zoo/v1")
    said = bring(tmp_path / "a.patch", "--stack", "zoo/v1", code=4)
    assert "is already as this patch leaves it" in said and "try: leave it out: the stack has it" in said


@pytest.mark.parametrize("name", ["zlib_codec", "rot13", "no-such", "undefined", "a\0b"])
def test_what_is_no_character_set_is_wrong_use(bring: Import, repo: Repository, tmp_path: Path, name: str) -> None:
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail().replace(b"too small", b"t\xf6o small"))
    assert "try: for example --charset GBK" in bring(tmp_path / "a.patch", "--charset", name, code=2)


def test_an_mbox_of_many_empty_mails_makes_no_files(bring: Import, tmp_path: Path) -> None:
    (tmp_path / "a.mbox").write_bytes(b"From me Thu Jan  1 00:00:00 2026\n\n" * 6000)
    assert "holds 6000 mails, and 5000 at most are taken" in bring(tmp_path / "a.mbox", "--stack", "zoo/v1", code=2)


SAYS = ("--author", "patchctl <patchctl@localhost>", "--date", "2026-11-21 10:00:00 +0800", "--repair")
NOT_HELD = {
    "binary": "Binary files a/zoo/ape.bin and b/zoo/ape.bin differ",
    "one-side": "Only in b/zoo: new.py",
    "svn-binary": "Cannot display: file marked as a binary type.",
    "svn-mode": "Added: svn:executable",
    "kind": "File a/zoo/ape.py is a regular file while file b/zoo/ape.py is a symbolic link",
}


@pytest.mark.parametrize("kind", NOT_HELD)
def test_what_a_foreign_diff_only_mentions_is_a_fault(
    bring: Import, repo: Repository, tmp_path: Path, kind: str
) -> None:
    """`git apply` passes over it, and the change is lost."""
    one_change(repo)
    plain = foreign.gnu(repo.mail())
    (tmp_path / "a.diff").write_bytes(plain + NOT_HELD[kind].encode() + b"\n")
    said = bring(tmp_path / "a.diff", "--stack", "zoo/v1", *SAYS, code=2)
    assert f"the diff does not hold this change: {NOT_HELD[kind]}" in said


def gnu_diff(repo: Repository, tmp_path: Path) -> Path:
    """What GNU diff prints of the work tree against the pin."""
    repo.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "a"), repo.base)
    shutil.copytree(repo.folder, tmp_path / "b", symlinks=True)
    command = ["diff", "-ruN", "--exclude=.git", "a", "b"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 1
    (tmp_path / "x.diff").write_bytes(done.stdout)
    return tmp_path / "x.diff"


def test_names_and_bytes_of_gnu_diffs(bring: Import, repo: Repository, tmp_path: Path) -> None:
    """Names with blanks and beyond ASCII are quoted, with a time behind; bytes that are no UTF-8 stay; an empty file is filled."""
    (repo.folder / "zoo/a b.py").write_text("x = 1\n")
    (repo.folder / "zoo/gr\u00fc\u00dfe.py").write_text("x = 2\n")
    (repo.folder / "zoo/latin.txt").write_bytes(b"caf\xe9\n")
    (repo.folder / "zoo/__init__.py").write_text("y = 1\n")
    (repo.folder / "old.txt").unlink()
    repo.commit("names")
    data = bring.json(gnu_diff(repo, tmp_path), "--stack", "zoo/v1", *SAYS)
    assert data["tip_tree"] == repo.tree


def test_a_file_that_goes_in_a_diff_of_svn(bring: Import, repo: Repository, tmp_path: Path) -> None:
    (repo.folder / "old.txt").unlink()
    repo.commit("old goes")
    text = "--- old.txt\t(revision 5)\n+++ old.txt\t(nonexistent)\n@@ -1 +0,0 @@\n-old\n"
    (tmp_path / "svn.diff").write_text(text)
    assert bring.json(tmp_path / "svn.diff", "--stack", "zoo/v1", *SAYS)["tip_tree"] == repo.tree


def test_an_empty_commit_and_names_that_change_places(bring: Import, repo: Repository, tmp_path: Path) -> None:
    one, other = repo.folder / "old.txt", repo.folder / "zoo/ape.py"
    old, ape = one.read_text(), other.read_text()
    one.write_text(ape)
    other.write_text(old)
    repo.commit("change places")
    mail = repo.mail("HEAD", "-B", "-M")
    assert b"rename from" in mail
    folder = foreign.write_all(tmp_path / "mails", {"0001-places.patch": mail, "0002-empty.patch": b""})
    data = bring.json(folder)
    assert data["tip_tree"] == repo.tree == repo.am([mail])
    assert [one["why"] for one in data["passed_over"]] == ["empty"]


def test_hints_lead_into_the_tree(bring: Import, repo: Repository, tmp_path: Path) -> None:
    """A patch for other contents, below a folder: git is told how many parts to take off, and not to merge what it has no blobs for."""
    edit(repo, 0)
    repo.commit("ape: go one way")
    repo.replace("zoo/ape.py", "value + 2 * 0\n", "value + 222\n")
    repo.commit("ape: go another way")
    mail = paths_below("x/y/")(repo.mail())
    (tmp_path / "a.patch").write_bytes(mail)
    said = bring(tmp_path / "a.patch", code=4)
    assert "git am --reject -p3 " in said and "with the trailers of docs/writing-patches.md" in said
    repo.git("reset", "--quiet", "--hard", repo.base)
    repo.replace("zoo/ape.py", "value + 29\n", "value + 2929\n")
    repo.commit("ape: end differently")
    edit(repo, 0)
    repo.commit("ape: begin differently")
    (tmp_path / "b.patch").write_bytes(repo.mail())
    assert "its lines apply exactly all the same: --repair" in bring(tmp_path / "b.patch", code=4)
    bring(tmp_path / "b.patch", "--repair-only", "ids")


def test_export_takes_no_work_tree_with_files_that_no_commit_has(
    bring: Import, repo: Repository, tmp_path: Path
) -> None:
    one_change(repo)
    (tmp_path / "a.patch").write_bytes(repo.mail())
    bring(tmp_path / "a.patch")
    bring(verb="lock")
    bring("zoo", "--dir", tmp_path / "edit", verb="edit")
    (tmp_path / "edit/zoo/new.py").write_text("new\n")
    assert "zoo/new.py" in bring("zoo/v1", "--dir", tmp_path / "edit", code=5, verb="export")


def test_a_patch_of_two_upstreams_is_to_be_split(bring: Import, repo: Repository, origin: Made, tmp_path: Path) -> None:
    edit(repo, 0)
    repo.commit("ape: go one way")
    pond = Repository(origin.origins / "pond", tmp_path / "pond")
    pond.replace("pond/frog.py", "value + 2\n", "value + 22\n")
    pond.commit("frog: jump")
    (tmp_path / "both.patch").write_bytes(repo.mail() + foreign.split(pond.mail())[2])
    assert "split what changes several upstreams" in bring(tmp_path / "both.patch", code=4)
