"""Commit ids equal to those of `git am`, and header lines read as git's own `mailinfo` and `mailsplit` read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from engine_tools import CommitText, Repo, build, git, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchctl.errors import BadPatch
from patchctl.patch.header import splits_mails
from patchctl.patch.parse import parse_patch

pytestmark = pytest.mark.heavy("thousands of patches beside git")

QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
DIFF = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    return Repo(tmp_path_factory.mktemp("am") / "repo")


def histories_agree(repo: Repo, texts: list[CommitText], folder: Path) -> int:
    """Make the commits, format them, and compare `git am` with the engine; returns how many the engine took.

    Patches that the parser refuses are left out of both.
    """
    trees = [{b"f": (0o100644, b"%d\n" % i)} for i in range(len(texts) + 1)]
    commits = repo.history(trees, [CommitText(), *texts])
    repo.git("format-patch", "-q", "--full-index", "--no-renames", "-o", str(folder), f"{commits[0]}..{commits[-1]}")
    files = sorted(folder.iterdir())
    taken = [f for f in files if readable(f)]
    # The content of `f` counts up: without all patches before it, a patch would not apply. So each stands alone.
    for number, file in enumerate(files):
        if file in taken:
            data = file.read_bytes()
            assert repo.am(commits[number], [file])[-1] == build(repo.dir, commits[number], [data]).tip_commit, data
    if len(taken) == len(files):
        assert repo.am(commits[0], files)[-1] == build(repo.dir, commits[0], [f.read_bytes() for f in files]).tip_commit
    return len(taken)


def readable(file: Path) -> bool:
    try:
        parse_patch(file.read_bytes(), file.name)
    except BadPatch:
        return False
    return True


AUTHORS = [
    "Ann Author <ann@example.com>", "Émile Zöla <emile@example.com>", "王小明 <wang@example.com>", 'The "Quoted" Name <q@example.com>',
    "Name \"Nick\" Last <n@example.com>", "Dr. J. R. Dots <d@example.com>", "Paren (of a sort) Thesis <p@example.com>",
    "Back\\slash Name <b@example.com>", "Comma, Name <c@example.com>", "a <a@b>", "robot[bot] <1+robot[bot]@users.example.com>",
    "O'Neil Brian <o@example.com>", "Éva (Budapest) <eva@example.com>", "no at sign <root>", "x=?y <x@example.com>",
    "Ünï cödé with a name that is rather long, yet <u@example.com>", "N\u00a0B SP <nbsp@example.com>", "Semi; Colon: X <s@example.com>",
]  # fmt: skip
SUBJECTS = [
    "plain", "[tag] bracketed", "[a][b] two", "fix: double  space", "Re: an answer", "re:re: twice", ": colon", "[unclosed bracket",
    "area: 修复 unicode", "é" * 200, "long " * 40 + "end", "\u00a0no-break space first", "\u3000ideographic space", "tab\there",
    "ends with dots...", "a =?UTF-8?q?b?= c", "=?x", "[PATCH] [PATCH 1/2] doubled", "form\x0cfeed", "R e", "日本語" * 40 + " x " * 30,
    "emoji 🚀 [skip ci]", "quote \" and ' and \\", "percent %s %d", "re: ", "-- ", "From me", "tail [x] y",
]  # fmt: skip
BODIES = [
    "", "body", "two\n\n\n\nparagraphs   \n", "trailers\n\nSigned-off-by: A <a@example.com>\nChange-Id: I1234", "  indented\n\ttab",
    "> quoted\n>> twice", "Date is a word, and From as well", "é 漢字 🚀", "\n\nleading blank lines", "a\x0cform feed\x0c",
    "line with trailing tab\t\n \n.\nend", "* list\n* of\n* things", "--\nsignature-like", "----not a break",
    "+++ b/f", "@@ -1 +1 @@", "\u00a0\nno-break", "http://example.com/?a=b&c=d", "From the start of a line",
]  # fmt: skip
ZONES = ["+0000", "-0800", "+0530", "+1400", "-1200", "+0845", "-0330"]


def commit_text(author: str, subject: str, body: str, zone: str = "+0000", at: int = 1795219200) -> CommitText:
    message = f"{subject}\n\n{body}\n" if body else f"{subject}\n"
    return CommitText(f"{author} {at} {zone}".encode(), message.encode())


def test_commit_ids_for_every_kind_of_author(repo: Repo, tmp_path: Path) -> None:
    assert histories_agree(
        repo, [commit_text(a, "change", "", z) for a, z in zip(AUTHORS, ZONES * 3, strict=False)], tmp_path
    ) == len(AUTHORS)


def test_commit_ids_for_every_kind_of_subject(repo: Repo, tmp_path: Path) -> None:
    assert histories_agree(repo, [commit_text(AUTHORS[0], s, "") for s in SUBJECTS], tmp_path) == len(SUBJECTS)


def test_commit_ids_for_every_kind_of_body(repo: Repo, tmp_path: Path) -> None:
    assert histories_agree(repo, [commit_text(AUTHORS[1], "s", b) for b in BODIES], tmp_path) == len(BODIES)


@pytest.mark.parametrize(
    ("author", "why"),
    [
        ("Ends with Dot. <a@example.com>", "starts or ends with punctuation"),
        ("'Quoted' <a@example.com>", "starts or ends with punctuation"),
        ("me@home <a@example.com>", "contains @"),
        ("x" * 61 + " <a@example.com>", "longer than 60 bytes"),
        ("é" * 31 + " <a@example.com>", "longer than 60 bytes"),
        (" <a@example.com>", "name is empty"),
        ("A <>", "address is empty"),
        ("A <a,b@example.com>", "address is empty or has"),
    ],
)
def test_authors_that_git_changes_are_refused(repo: Repo, tmp_path: Path, author: str, why: str) -> None:
    """git drops the punctuation (which differs by version), or puts the address where the name was. No id would be sure."""
    (tmp_path / "m").write_bytes(
        f"From: {author}\nDate: Sat, 21 Nov 2026 00:00:00 +0000\nSubject: s\n\n---\n".encode() + DIFF
    )
    with pytest.raises(BadPatch, match=why) as refused:
        parse_patch((tmp_path / "m").read_bytes(), "m")
    assert str(refused.value.where) == "m:1"


@pytest.mark.parametrize("zone", ZONES)
def test_commit_ids_at_the_ends_of_time(repo: Repo, tmp_path: Path, zone: str) -> None:
    days = [86400, 951782400, 1709164800, 4102300000]  # 1970-01-02, two 29ths of February, 2099-12-30
    assert histories_agree(repo, [commit_text(AUTHORS[0], "s", "", zone, at) for at in days], tmp_path) == len(days)


@QUICK
@given(
    texts=st.lists(
        st.builds(
            commit_text,
            st.sampled_from(AUTHORS),
            st.sampled_from(SUBJECTS)
            | st.text('ab é\u00a0[]:=?_"R\t.', min_size=1, max_size=120).filter(lambda s: s.strip(" \t\n:[]\u00a0.")),
            st.sampled_from(BODIES) | st.text("ab \n\t-=:é\x0c>", max_size=60),
            st.sampled_from(ZONES),
            st.integers(86400, 4102400000),
        ),
        min_size=1,
        max_size=2,
    )
)
def test_commit_ids_of_generated_histories(
    repo: Repo, texts: list[CommitText], tmp_path_factory: pytest.TempPathFactory
) -> None:
    histories_agree(repo, texts, tmp_path_factory.mktemp("patches"))


def mailinfo(mail: bytes, folder: Path) -> tuple[dict[bytes, bytes], bytes]:
    """What git's own reader makes of a mail: Author, Email, Subject, Date; and the message."""
    said = git("mailinfo", "--encoding=UTF-8", "msg", "patch", cwd=folder, stdin=mail)
    fields: dict[bytes, bytes] = {}
    for line in said.split(b"\n"):
        key, _, value = line.partition(b": ")
        fields[key] = value
    return fields, (folder / "msg").read_bytes()


WORDS = st.sampled_from([
    "Ann", "é", " ", "  ", "\t", '"', "\\", "(", ")", "=?UTF-8?q?", "=C3=A9", "?=", "=?utf-8?B?w6k=?=", "=?UTF-8?Q?a_b=20?=", "_", "x",
    "=?ISO-8859-1?q?=E9?=", "[", "]", "Re:", ":", "[PATCH]", "\u00a0", "\n ", "@", ",", "=?UTF-8?q?=0A?=", "=?UTF-8?q?=FF?=", "<", ">", "\x0c",
])  # fmt: skip


@settings(QUICK, max_examples=200)
@given(name=st.lists(WORDS, max_size=6).map("".join), subject=st.lists(WORDS, max_size=8).map("".join))
def test_what_is_accepted_reads_as_mailinfo_reads_it(tmp_path: Path, name: str, subject: str) -> None:
    head = (
        f"From: {name} <a.b+c@example.com>\nDate: Sat, 21 Nov 2026 00:00:00 +0000\nSubject: {subject}\n\nBody.\n---\n"
    )
    mail = head.encode() + DIFF
    try:
        header = parse_patch(mail, "p").header
    except BadPatch:
        return
    fields, body = mailinfo(mail, tmp_path)
    assert (header.name.encode(), header.email.encode()) == (fields[b"Author"], fields[b"Email"])
    assert header.subject.encode() == fields[b"Subject"]
    assert body == b"Body.\n"


@settings(QUICK, max_examples=100)
@given(lines=st.lists(st.sampled_from([
    "From: X <x@example.com>", "Subject: other", "[PATCH] other", "[PATCH]", ">From 1234 Mon Sep 17 00:00:00 2001", "---", "--- ", "--- a", "---x",
    "", " ", "text", "Date: now", "from: lower", "Index: x", "diff - x", "diff -u", "-- ",
    "From x Mon Sep 17 00:00:00 2001", "\x0c", "--- \x0c", "---\t",
    " continued", "-- >8 --", "cc: x",
]), max_size=5))  # fmt: skip
def test_the_message_ends_and_begins_where_mailinfo_says(tmp_path: Path, lines: list[str]) -> None:
    mail = (
        "\n".join(
            ["From: A <a@example.com>", "Date: Sat, 21 Nov 2026 00:00:00 +0000", "Subject: s", "", *lines, "---", ""]
        ).encode()
        + DIFF
    )
    try:
        header = parse_patch(mail, "p").header
    except BadPatch:
        return
    fields, body = mailinfo(mail, tmp_path)
    stripped = git("stripspace", cwd=tmp_path, stdin=fields[b"Subject"] + b"\n\n" + body)
    assert header.message.encode() == stripped


@settings(QUICK, max_examples=150)
@given(
    line=st.from_regex(r"From [a-z:0-9 ]{0,12}\d{1,2}.\d\d:\d\d *\d{1,4}[ a:1]{0,3}\Z").map(
        lambda s: s.replace("\n", " ")
    )
)
def test_lines_that_begin_another_mail_are_those_of_mailsplit(tmp_path: Path, line: str) -> None:
    first = b"From 0000 Mon Sep 17 00:00:00 2001\n"
    mail = first + b"From: A <a@example.com>\n\ntext\n" + line.encode() + b"\nmore\n"
    shutil.rmtree(tmp_path / "split", ignore_errors=True)
    (tmp_path / "split").mkdir()
    count = int(git("mailsplit", "-osplit", cwd=tmp_path, stdin=mail))
    assert splits_mails(line.encode()) == (count == 2)


@pytest.mark.parametrize(
    ("zone", "kept"),
    [("-0000", "+0000"), ("+0000", "+0000"), ("-0100", "-0100"), ("+1345", "+1345"), ("+2359", "+2359")],
)
def test_dates_become_what_git_makes_of_them(repo: Repo, tmp_path: Path, zone: str, kept: str) -> None:
    (commit,) = repo.history([{b"f": (0o100644, b"a\n")}])
    mail = (
        b"From: A <a@example.com>\nDate: Tue, 29 Feb 2028 23:59:59 " + zone.encode() + b"\nSubject: s\n\n---\n" + DIFF
    )
    (tmp_path / "m").write_bytes(mail)
    assert build(repo.dir, commit, [mail]).tip_commit == repo.am(commit, [tmp_path / "m"])[0]
    assert parse_patch(mail, "p").header.date.endswith(kept)


def test_git_am_itself_is_what_these_tests_compare_with(tmp_path: Path) -> None:
    status, said = run(["am", "-h"], cwd=tmp_path)
    assert status == 129 and b"--committer-date-is-author-date" in said
