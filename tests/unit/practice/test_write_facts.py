"""write_facts.py: names, numbers and pairs of a document's sections, without its sentences."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from practice_documents import FACTS

SCRIPT = Path(__file__).with_name("write_facts.py")
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
结语
"""
HEAD = "# What stands where.\ndocuments:\n"
SECTIONS = (("1", "1 长度"), ("2", "2 安静"), ("end", "结语"))


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """The facts of one book, still without words."""
    parts = "".join(f'      "{name}": {{begins: "{begins}", words: "-"}}\n' for name, begins in SECTIONS)
    file = tmp_path / "facts.yaml"
    file.write_text(f'{HEAD}  "007":\n    sha256: "0"\n    sections:\n{parts}')
    return file


def written(facts: Path, text: str, *options: str, number: str = "007") -> subprocess.CompletedProcess[str]:
    book = facts.with_name("book.txt")
    book.write_text(text)
    command = [sys.executable, str(SCRIPT), "--facts", str(facts), *options, f"{number}={book}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_names_numbers_and_pairs_and_no_sentences(facts: Path) -> None:
    assert written(facts, BOOK).returncode == 0
    sections = yaml.safe_load(facts.read_text())["documents"]["007"]["sections"]
    assert sections["1"]["words"].split() == ["1", "2k", "response_length=224"]
    # half * 4 was computed; ${HOME} is nobody's.
    assert "greeter.sizes=[8,16]" in sections["2"]["words"] and "greeter.rate=1e-06" in sections["2"]["words"]
    assert facts.read_text().startswith(HEAD)
    assert not re.search(r"[一-鿿]", "".join(section["words"] for section in sections.values()))
    assert written(facts, BOOK, "--check").returncode == 0


def test_what_changed_and_what_is_not_there(facts: Path) -> None:
    written(facts, BOOK)
    before = facts.read_bytes()
    done = written(facts, BOOK.replace("QUEUE=2", "QUEUE=3"), "--check")
    assert (done.returncode, done.stdout) == (1, "facts.yaml is not as it would be written\n")
    done = written(facts, BOOK.replace("2 安静", "2 静"))
    assert done.returncode == 2 and "007, 2: '2 安静' is not in it, or not in this order" in done.stderr
    assert "there is no document 008; known: 007" in written(facts, BOOK, number="008").stderr
    assert facts.read_bytes() == before


def test_the_file_of_this_repository_is_as_the_script_writes_it(tmp_path: Path) -> None:
    """Its form; the documents are not at hand."""
    copy = tmp_path / "facts.yaml"
    number = "009"
    added = f'  "{number}":\n    sha256: "0"\n    sections:\n      "1":\n        begins: "a"\n        words: >-\n          -\n'
    copy.write_text(FACTS.read_text() + added)
    assert written(copy, "a\n", number=number).returncode == 0
    assert copy.read_text().startswith(FACTS.read_text())
