"""manifests/facts.yaml: sources, switches and items are held against the words of the documents' sections."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from distribution import CLOCK, GREETER, Made, make_distribution, write_files
from recipes import with_recipes

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "scripts" / "practice_facts.py"
FACTS = "manifests/facts.yaml"
BOOK = """\
问候之书
1 长度
response_length=224，最长 2K
2 安静
half=4
export GREETING='it is ${HOME}'
export QUEUE=2
greeter.text="hello, it's me" greeter.rate=1e-6 \\
greeter.sizes=[8,$((half * 4))]
3 大声：GREETER_LOUD 与 QUEUE
4 tokens
结语
"""
HEAD = "# What stands where.\nschema: 1\n\ndocuments:\n"
SECTIONS = (("1", "1 长度"), ("2", "2 安静"), ("3", "3 大声"), ("4", "4 tokens"), ("end", "结语"))


def facts() -> str:
    parts = "".join(f'      "{name}": {{begins: "{begins}", words: "-"}}\n' for name, begins in SECTIONS)
    return f'{HEAD}  "007":\n    sha256: "0"\n    sections:\n{parts}'


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = with_recipes(make_distribution(tmp_path_factory.mktemp("original"), (GREETER, CLOCK)))
    # What the book has, by the names that the book has.
    made.edit("manifests/recipes/full/quiet.yaml", '"it\'s ${HOME}", why:', '"it is ${HOME}", source: "007, 2", why:')
    made.edit("manifests/recipes/shared/base.yaml", 'source: "007, 1"', 'source: "007, 1 (response_length)"')
    for file, summary in (("shared/base", "A part."), ("full/loud", "Says it aloud.")):
        made.edit(f"manifests/recipes/{file}.yaml", summary, f"{summary}\nsource: another book")
    write_files(made.root, {FACTS: facts(), "book.txt": BOOK})
    done = written(made)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    return replace(original, root=Path(shutil.copytree(original.root, tmp_path / "distribution")))


def written(made: Made, *options: str, document: str = "007") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--root", str(made.root), *options, f"{document}={made.root / 'book.txt'}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def findings(made: Made, rule: str = "source-words") -> Iterator[tuple[str, str]]:
    for found in json.loads(made.patchctl("verify", "--static", "--json").stdout)["findings"]:
        if found["rule"] == rule:
            yield f"{Path(found['file']).name}:{found['line'] or ''}", found["message"]


def test_the_script_writes_names_numbers_and_pairs_and_no_sentences(made: Made) -> None:
    text = (made.root / FACTS).read_text()
    sections = yaml.safe_load(text)["documents"]["007"]["sections"]
    assert sections["1"]["words"].split() == ["1", "2k", "response_length=224"]
    # half * 4 was computed; ${HOME} is nobody's.
    assert "greeter.sizes=[8,16]" in sections["2"]["words"] and "greeter.rate=1e-06" in sections["2"]["words"]
    assert text.startswith(HEAD.partition("schema")[0])
    assert not re.search(r"[一-鿿]", "".join(section["words"] for section in sections.values()))
    assert written(made, "--check").returncode == 0


def test_the_script_says_what_changed_and_what_it_cannot_find(made: Made) -> None:
    (made.root / "book.txt").write_text(BOOK.replace("QUEUE=2", "QUEUE=3"))
    done = written(made, "--check")
    assert (done.returncode, done.stdout) == (1, "facts.yaml is not as it would be written\n")
    (made.root / "book.txt").write_text(BOOK.replace("2 安静", "2 静"))
    before = (made.root / FACTS).read_bytes()
    done = written(made)
    assert done.returncode == 2 and "007, 2: '2 安静' is not in it, or not in this order" in done.stderr
    assert "has no document 008" in written(made, document="008").stderr
    assert (made.root / FACTS).read_bytes() == before


def test_sources_that_are_right_have_no_findings(made: Made) -> None:
    assert list(findings(made)) == []


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("  QUEUE: 2", "  QUEUE: 3", "quiet.yaml:7", "QUEUE=3: 007, 2 does not give it"),
        ("greeter.rate: 1e-6", "greeter.rate: 2e-6", "quiet.yaml:11", "greeter.rate=2e-6: 007, 2 does not give it"),
        ("source: 007, 2", "source: 007, 9", "quiet.yaml:7", "007 has no section '9'; manifests/facts.yaml has 1, 2, 3, 4"),
        ("source: 007, 2", "source: 008, 2", "quiet.yaml:7", "there is no document 008 in facts.yaml"),
        ("source: 007, 2", "source: 007, 2 (QUEUE=2, 99)", "quiet.yaml:7", "007, 2 does not have 99;"),
        ("source: 007, 2", "source: 007, 1 and 2", "quiet.yaml:7", "QUEUE=2: 007, 1 does not give it"),
    ],
)  # fmt: skip
def test_a_value_that_its_source_does_not_give(made: Made, old: str, new: str, where: str, what: str) -> None:
    made.edit("manifests/recipes/full/quiet.yaml", old, new)
    assert any(place == where and what in message for place, message in findings(made)), list(findings(made))


@pytest.mark.parametrize("source", ["007, 2 (QUEUE)", "007 (QUEUE)", "a book of ours", "007, 2"])
def test_what_stands_in_brackets_counts(made: Made, source: str) -> None:
    made.edit("manifests/recipes/full/loud.yaml", "  QUEUE: 1", f'  QUEUE: {{value: 1, source: "{source}"}}')
    found = [message for place, message in findings(made) if place.startswith("loud.yaml")]
    assert bool(found) is (source == "007, 2"), found


def test_a_value_of_nobody(made: Made) -> None:
    made.edit("manifests/recipes/shared/base.yaml", "source: another book\n", "")
    found = dict(findings(made))
    assert found["base.yaml:8"] == "devices_per_node=8 names no document, and does not say `ours:`"
    assert "base.yaml:17" not in found  # trainer.nodes says `ours:`


def test_a_rule_and_a_switch_that_their_document_does_not_have(made: Made) -> None:
    made.edit("manifests/rules.yaml", "source: 007, 3", "source: 007, 1")
    write_files(made.root, {"manifests/practice.yaml": 'schema: 1\nswitches:\n  MANNERS=1:\n    seeds: ["007"]\n'})
    found = dict(findings(made))
    assert found["rules.yaml:6"].startswith("rule loud-queue: 007, 1 does not give it")
    assert found["practice.yaml:"].startswith("MANNERS=1: 007 does not give it")


def test_a_file_that_no_pinned_source_has(made: Made) -> None:
    write_files(made.root, {"manifests/trees/greeter/v1.tsv": "# greeter v1\n100644\t0\tgreeter/hello.py\n"})
    for source, count in (("greeter v1, hello.py", 0), ("greeter v1, greeter/hello.py", 0), ("greeter v1, bye.py", 1)):
        made.edit("manifests/rules.yaml", "source: 007, 4", f"source: {source}")
        assert len([m for _, m in findings(made) if "no such file at its pin" in m]) == count
        made.edit("manifests/rules.yaml", f"source: {source}", "source: 007, 4")


COVERAGE = """\
schema: 1
documents:
  "007":
    title: A book
    sections:
      "2":
        - {what: "QUEUE=2 and `sizes` of 8 and 16", recipes: full/quiet}
        - {what: half a book, recipes: full/loud}
        - {what: QUEUE=2, pages: "docs/guide.md#queue", nothing: nobody waits}
"""
GUIDE = "# Guide\n\n## Queue\n\nQUEUE, which is 2.\n\n### More\n\nand more\n\n## Other\n\nNothing.\n"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("", "", None),
        ("QUEUE=2 and", "QUEUE=2, SHOUT and", "007, 2 does not have shout"),
        ("recipes: full/quiet", "recipes: shared/base", "does not stand where it points: there is no "),
        ("#queue", "#other", "docs/guide.md#other has nothing of 'QUEUE=2'"),
        ("#queue", "#more", "docs/guide.md#more has nothing of 'QUEUE=2'"),
        ('"docs/guide.md#queue"', "docs/guide.md", None),
    ],
)
def test_items_are_held_against_their_document_and_their_places(
    made: Made, old: str, new: str, what: str | None
) -> None:
    write_files(made.root, {"manifests/coverage.yaml": COVERAGE.replace(old, new, 1), "docs/guide.md": GUIDE})
    found = [message for _, message in findings(made, "coverage-words")]
    if what is None:
        assert found == []
    else:
        assert any(what in message for message in found), found


def test_without_facts_nothing_is_held_against_documents(made: Made) -> None:
    (made.root / FACTS).unlink()
    made.edit("manifests/recipes/full/quiet.yaml", "source: 007, 2", "source: 007, 9")
    assert list(findings(made)) == []
