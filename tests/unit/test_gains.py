"""Every feature with a switch says what it brings (`gains:` of its stack), and the figure's page has that section."""

from __future__ import annotations

from pathlib import Path

from distribution import make_distribution
from markdown_pages import anchors
from pins import distribution

from patchctl.catalog.features import Catalog, gain_of

ROOT = Path(__file__).parents[2]


def test_every_feature_of_ours_says_what_it_brings() -> None:
    rows = [row for row in Catalog(distribution()).patches() if row.kind == "feature"]
    assert len(rows) > 20
    assert [f"{row.upstream}/{row.stack} {row.feature}" for row in rows if row.gain is None] == []


def test_the_figures_are_there() -> None:
    pages = {gain.page for stack in distribution().stacks.values() for gain in stack.gains.values() if gain.page}
    assert pages
    for page in pages:
        file, _, anchor = page.partition("#")
        assert anchor in anchors((ROOT / file).read_text(encoding="utf-8")), page


def test_a_stack_has_the_gains_of_the_one_it_comes_from() -> None:
    dist = distribution()
    derived = [s for s in dist.stacks.values() if s.comes_from and (s.upstream, s.comes_from) in dist.stacks]
    own = [(s, f) for s in derived for f in dist.stacks[s.upstream, s.comes_from or ""].gains if f not in s.gains]
    assert own
    for stack, feature in own:
        assert gain_of(dist, stack, feature) == dist.stacks[stack.upstream, stack.comes_from or ""].gains[feature]


def test_a_gain_of_a_feature_that_is_not_there_is_found(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, lock=True)
    gain = "gains: {%s: {what: half of the time, kind: [measured]}}\n"
    stack = made.root / "manifests/stacks/greeter/v1.yaml"
    text = stack.read_text()
    stack.write_text(text + gain % "polite")
    assert "half of the time (measured)" in made.good("show", "polite")
    stack.write_text(text + gain % "polit")
    done = made.patchctl("verify", "--static")
    assert (
        done.returncode == 1 and "`gains:` names polit, and this stack has no such feature; did you mean" in done.stdout
    )
    stack.write_text(text + gain.replace("measured", "felt") % "polite")
    done = made.patchctl("verify", "--static")
    assert done.returncode == 1 and "gains.polite.kind" in done.stdout + done.stderr
