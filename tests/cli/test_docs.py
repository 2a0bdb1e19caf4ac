"""`patchctl lock --pages`: pages, tables and their check, on a small distribution."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from distribution import CLOCK, GREETER, Made, make_distribution, write_files

TABLE = """\
| feature | number | kind | switch | what |
|---|---|---|---|---|
| [loud](loud.md) | 0003 | feature | `env GREETER_LOUD=3` | hello: repeat a shout |
| [polite](polite.md) | 0002 | feature | `env GREETER_POLITE=1` | hello: add a polite form |
| [typo](typo.md) | 0001 | fix |  | hello: spell the greeting right |
"""
INDEX = """\
| upstream | pin | stack |
|---|---|---|
| greeter | {greeter} | [v1](greeter/v1/README.md) |
| clock | v2.0 | [v2](clock/v2/README.md) |
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_distribution(tmp_path_factory.mktemp("original"))
    made.edit("manifests/stacks/clock/v2.yaml", "pin:\n", "pin:\n  tag: v2.0\n")
    return made


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    return replace(original, root=Path(shutil.copytree(original.root, tmp_path / "distribution")))


def files(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def text(made: Made, path: str) -> str:
    return (made.root / path).read_text()


def test_a_table_a_stack_and_their_index(made: Made) -> None:
    made.good("lock", "--pages")
    commit = text(made, "manifests/stacks/greeter/v1.yaml").partition('commit: "')[2][:12]
    assert text(made, "docs/patches/README.md").endswith(f"# Patches\n\n{INDEX.format(greeter=commit)}")
    table = text(made, "docs/patches/greeter/v1/README.md")
    assert table.endswith(TABLE) and f"# Patches of greeter {commit}\n" in table
    assert "step" not in table and "[step](step.md) | 0001" in text(made, "docs/patches/clock/v2/README.md")


def test_nothing_of_a_readme_is_touched(made: Made) -> None:
    readme = "# Greeters\n\n<!-- patches:begin -->\nold\n<!-- patches:end -->\n"
    write_files(made.root, {"README.md": readme})
    made.good("lock", "--pages")
    assert text(made, "README.md") == readme and not (made.root / "docs/lint-rules.md").exists()


def test_the_table_of_a_stack_that_extends_another_names_it(made: Made) -> None:
    manifest = text(made, "manifests/stacks/clock/v2.yaml")
    pin = manifest.partition("pin:\n")[2].partition("patches:")[0]
    longer = f"schema: 1\nupstream: clock\nname: v3\npin:\n{pin}extends: v2\npatches: []\n"
    write_files(made.root, {"manifests/stacks/clock/v3.yaml": longer})
    made.good("lock", "--pages")
    assert "The patches of [v2](../v2/README.md) come first." in text(made, "docs/patches/clock/v3/README.md")


def test_a_page_says_what_the_header_says(made: Made) -> None:
    test = "patches/greeter/v1/polite/tests/test_polite.py"
    mutant = "patches/greeter/v1/polite/mutants/polite.yaml"
    other = "patches/greeter/v1/loud/tests/test_loud.py"
    write_files(made.root, {test: "", other: "", mutant: ""})
    made.good("lock", "--pages")
    page = text(made, "docs/patches/greeter/v1/polite.md")
    for part in (
        "# polite\n\nhello: add a polite form\n",
        "| Switch | `env GREETER_POLITE=1` |",
        "| Upstream status | Pending |",
        "| Can be dropped when | upstream does it itself |",
        f"| Tests | [`{test}`](../../../../{test}) |",
        f"| Mutations | [`{mutant}`](../../../../{mutant}) |",
        "## Need\n\nPeople ask for polite, and upstream does not have it.\n",
        "## Change\n\nThe code does it now.\n",
        "## Risk\n\nA caller that counts on the old behaviour.\n",
        "| `greeter/hello.py` | 4 | 0 |\n| `greeter/manners.py` (carried, new) | 2 | 0 |\n",
    ):
        assert part in page
    assert "| Requires | `typo@greeter` |" in text(made, "docs/patches/clock/v2/step.md")


def test_every_link_of_the_pages_leads_to_a_file(made: Made) -> None:
    import re

    made.good("lock", "--pages")
    pages = sorted((made.root / "docs").rglob("*.md"))
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    assert len(links) == 10
    assert [str(page) for page, link in links if not (page.parent / link).is_file()] == []


def test_the_same_distribution_gives_the_same_bytes(made: Made, tmp_path: Path) -> None:
    twin = replace(made, root=Path(shutil.copytree(made.root, tmp_path / "twin ü")))
    made.good("lock", "--pages")
    twin.good("lock", "--pages", env={"LC_ALL": "tr_TR.UTF-8", "TZ": "Pacific/Auckland", "PYTHONHASHSEED": "7"})
    assert files(made.root) == files(twin.root)
    assert made.good("lock", "--pages").startswith("checked 4 patches")


def test_check_writes_nothing_and_names_each_page(made: Made) -> None:
    made.good("lock", "--pages")
    assert made.patchctl("lock", "--pages", "--check").returncode == 0
    made.edit(made.patch("typo"), "The code does it now.", "It is spelt right.")
    (made.root / "docs" / "patches" / "greeter" / "v1" / "loud.md").unlink()
    before = files(made.root)
    done = made.patchctl("lock", "--pages", "--check", "--json")
    found = [(f["rule"], f["file"]) for f in json.loads(done.stdout)["findings"]]
    assert done.returncode == 1
    assert found == [
        ("page-stale", "docs/patches/greeter/v1/loud.md"),
        ("page-stale", "docs/patches/greeter/v1/typo.md"),
    ]
    assert files(made.root) == before


def test_a_page_of_a_patch_that_is_gone_is_removed_and_a_page_of_a_person_stays(made: Made) -> None:
    made.good("lock", "--pages")
    made.edit("manifests/stacks/greeter/v1.yaml", "  - 0003-feature-loud.patch\n", "")
    write_files(made.root, {"docs/patches/greeter/v1/notes.md": "mine\n"})
    assert made.patchctl("lock", "--pages", "--check").returncode == 1
    out = made.good("lock", "--pages")
    assert "removed  docs/patches/greeter/v1/loud.md" in out
    assert not (made.root / "docs" / "patches" / "greeter" / "v1" / "loud.md").exists()
    assert text(made, "docs/patches/greeter/v1/notes.md") == "mine\n"


def test_the_schema_of_a_verb_that_is_gone_is_removed(made: Made) -> None:
    (made.root / "docs/schema").mkdir(parents=True)
    assert "docs/schema/apply.json" in made.good("lock", "--pages")
    write_files(made.root, {"docs/schema/gone.json": "{}\n"})
    assert "verb that is not there" in made.patchctl("lock", "--pages", "--check").stdout
    assert "removed  docs/schema/gone.json" in made.good("lock", "--pages")
    assert not (made.root / "docs/schema/gone.json").exists() and (made.root / "docs/schema/apply.json").exists()


def test_nothing_is_written_while_a_patch_cannot_be_read(made: Made) -> None:
    made.edit(made.patch("typo"), "Date: ", "Dote: ")
    before = files(made.root)
    assert made.patchctl("lock", "--pages").returncode == 1
    assert files(made.root) == before


def test_text_of_a_header_cannot_become_markup(tmp_path: Path) -> None:
    hostile = replace(CLOCK.patches[0], subject="tick: <img src=x> | [a](b) __c__ `d|e` *f*", requires="")
    made = make_distribution(tmp_path, [replace(CLOCK, patches=[hostile])])
    made.good("lock", "--pages")
    table = text(made, "docs/patches/clock/v2/README.md")
    assert r"tick: \<img src=x> \| [a\](b) \_\_c\_\_ `d\|e` \*f\*" in table


def test_rules_and_schemas_are_written_where_they_are_kept(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, [GREETER])
    write_files(made.root, {"docs/lint-rules.md": "", "manifests/schema/stack.schema.json": ""})
    made.good("lock", "--pages")
    assert "| `subject-length` |" in text(made, "docs/lint-rules.md")
    assert json.loads(text(made, "manifests/schema/profile.schema.json"))["title"] == "patchctl: profile"
    assert made.patchctl("lock", "--pages", "--check").returncode == 0


COVERAGE = """\
schema: 1
release: "2026.01"
documents:
  "007":
    title: A Guide
    sections:
      voices:
        - names: a shout|a whisper
          here: [file README.md, verb apply]
        - {names: silence, nothing: nobody asked}
"""


def test_the_page_of_coverage_is_made_from_its_file_and_what_is_not_there_is_named(made: Made) -> None:
    page = "# Coverage\n\nBy hand.\n\n<!-- coverage:begin -->\n<!-- coverage:end -->\n"
    write_files(made.root, {"docs/practice/coverage.md": page, "manifests/coverage.yaml": COVERAGE, "README.md": ""})
    made.good("lock", "--pages")
    written = text(made, "docs/practice/coverage.md")
    assert written.startswith("# Coverage\n\nBy hand.\n") and written.endswith("<!-- coverage:end -->\n")
    assert "| voices | a shout\\|a whisper | [README.md](../../README.md); `patchctl apply` |" in written
    assert "|  | silence | nothing: nobody asked |" in written
    made.edit("manifests/coverage.yaml", "file README.md", "rule loud")
    found = json.loads(made.patchctl("verify", "--static", "--json").stdout)["findings"]
    told = [(f["file"], f["line"], f["message"]) for f in found if f["file"] == "manifests/coverage.yaml"]
    assert [(file, line) for file, line, _ in told] == [("manifests/coverage.yaml", 9)] and "rule loud" in told[0][2]
