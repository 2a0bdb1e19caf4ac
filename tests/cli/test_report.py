"""`patchctl report`: what is on the page, that nothing in it is more than text, and what it is written over."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from distribution import REPO, Made, run_patchctl
from pins import newest
from report_pages import ODD, OWNED, PROFILE, SWITCH, drifted, make_odd

from patchctl.report.page_parts import short

TEXT_ALONE = {"style", "script"}


class Read(HTMLParser):
    """A page as a browser takes it apart: its elements with their attributes, and its text."""

    def __init__(self, data: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.raw: dict[str, list[str]] = {"style": [], "script": []}
        self.text = ""
        self._inside = ""
        self.feed(data)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._inside = tag if tag in TEXT_ALONE else ""
        self.text += "" if tag == "wbr" else " "

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside].append(data)
        else:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_odd(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def drift(odd: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drifted(odd, tmp_path_factory.mktemp("drift"))


@pytest.fixture(scope="module")
def page(odd: Made, drift: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("out") / "page.html"
    odd.good("report", "--drift", str(drift), "--out", str(out))
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def read(page: str) -> Read:
    return Read(page)


def report(made: Made, *args: str, code: int = 0) -> str:
    done = made.patchctl("report", *args)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_all_of_the_distribution_is_on_it(read: Read) -> None:
    for word in (
        "full",
        "plain",
        "greeter",
        "clock",
        "typo",
        "polite",
        "loud",
        "step",
        "GREETER_POLITE=1",
        "greeter/hello.py",
        "greeter/manners.py",
        "full/quiet",
        "full/loud",
        "no record",
        "Pending",
        "upstream does it itself",
        "people ask for polite, and upstream does not have it.",
        "v9",
        "conflict",
    ):
        assert word in read.text, word
    assert {"typo", "polite", "loud", "step", "odd"} <= {*read.values("id")}


def test_every_link_leads_somewhere_and_no_id_stands_twice(read: Read) -> None:
    assert {"#polite", "#step"} <= {*read.values("href")}
    leads_somewhere(read)


def leads_somewhere(read: Read) -> None:
    """Every link, from and to an id that stands once."""
    ids = read.values("id")
    assert len(ids) == len({*ids})
    links = [href.removeprefix("#") for href in read.values("href")]
    assert links and {*links} <= {*ids}
    for name in ("aria-labelledby", "aria-describedby", "for"):
        assert {*read.values(name)} <= {*ids}, name


def test_landmarks_heads_and_captions(read: Read) -> None:
    for landmark in ("header", "nav", "main", "footer"):
        assert len(read.all(landmark)) == 1, landmark
    assert len(read.all("h1")) == 1 and all("aria-labelledby" in s for s in read.all("section"))
    assert len(read.all("caption")) == len(read.all("table"))
    assert all(head.get("scope") in ("row", "col") for head in read.all("th"))
    assert all("aria-label" in box for box in read.all("div") if box.get("role") == "region")
    assert read.all("html")[0]["lang"] == "en" and read.all("title")


def test_nothing_but_text_comes_from_what_others_wrote(page: str, read: Read) -> None:
    shown = ODD.replace("\u202e", "\\u202e")
    assert shown in read.text and SWITCH.partition(" ")[2] in read.text and PROFILE in read.text
    assert "\u202e" not in page
    assert OWNED not in page and "<img" not in page and "<svg onload" not in page
    assert not [name for _, attributes in read.elements for name in attributes if name.startswith("on")]
    assert not read.values("src") and not read.values("style") and len(read.all("script")) == 2


def test_the_policy_lets_in_what_is_ours_alone(read: Read) -> None:
    (policy,) = [m["content"] for m in read.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    (style,), (data, script) = read.raw["style"], read.raw["script"]
    for content, rule in ((style, "style-src"), (script, "script-src")):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    assert not re.search(r"https?:|url\(|@import|fetch\(|innerHTML", style + script)
    patches = json.loads(data)
    assert [p["feature"] for p in patches] == ["typo", "polite", "loud", "odd", "step"]
    assert patches[3]["subject"] == ODD and patches[3]["switch"] == SWITCH


def test_the_same_distribution_gives_the_same_bytes(odd: Made, drift: Path, page: str, tmp_path: Path) -> None:
    again = replace(odd, root=Path(shutil.copytree(odd.root, tmp_path / "elsewhere")))
    assert again.good("report", "--drift", str(drift), "--out", "-") == page
    assert str(odd.root.parent) not in page and str(Path.home()) not in page


def test_of_one_profile(odd: Made) -> None:
    read = Read(odd.good("report", "--profile", "plain", "--out", "-"))
    assert "typo" in read.values("id") and "polite" not in read.values("id") and "loud" not in read.values("id")
    assert "There are no recipes here." in read.text and "The profile plain." in read.text
    assert re.search(r"polite\s*,\s*loud", read.text)  # what it leaves out is named, and no link
    assert {h.removeprefix("#") for h in read.values("href")} <= {*read.values("id")}
    assert "did you mean 'plain'?" in report(odd, "--profile", "plan", "--out", "-", code=2)


def test_a_feature_that_upstreams_share_is_one(tmp_path: Path, odd: Made) -> None:
    both = replace(odd, root=Path(shutil.copytree(odd.root, tmp_path / "both")))
    step = both.patch("step")
    folder = step.parent.rename(step.parent.with_name("typo"))
    moved = (folder / step.name).rename(folder / step.name.replace("step", "typo"))
    both.edit(moved, "Feature: step", "Feature: typo")
    both.edit("manifests/stacks/clock/v2.yaml", step.name, moved.name)
    odd_patch = both.patch("odd")
    both.edit(odd_patch, "step@clock", "typo@clock")
    both.edit("manifests/recipes/full/loud.yaml", "needs: [loud, step]", "needs: [loud, typo]")
    read = Read(both.good("report", "--out", "-"))
    assert {"typo", "typo@greeter", "typo@clock"} <= {*read.values("id")} and "step" not in read.values("id")
    assert "#typo@clock" in read.values("href")


def test_what_two_releases_have_is_told_apart(tmp_path: Path) -> None:
    """Of the distribution that this repository has: a feature in two stacks of an upstream, a profile and a recipe on two releases."""
    done = run_patchctl(
        f"--root={REPO}", "report", "--out", str(tmp_path / "page.html"), "--json", home=tmp_path / "home"
    )
    assert done.returncode == 0, done.stderr
    seen, read = json.loads(done.stdout), Read((tmp_path / "page.html").read_text())
    leads_somewhere(read)
    sets = {profile["release"] for profile in seen["profiles"]}
    assert len(sets) > 1
    for row in seen["recipes"]:
        assert f"{row['profile']}/{row['recipe']}@{row['release']}" in read.text
    for profile in seen["profiles"]:
        assert re.search(rf"{profile['name']}\s+on {profile['release']}", read.text)


def test_a_dependency_leads_to_a_patch_that_is_applied_with_this_one(tmp_path: Path) -> None:
    args = ("report", "--out", str(tmp_path / "page.html"), "--json")
    seen = json.loads(run_patchctl(f"--root={REPO}", *args, home=tmp_path / "home").stdout)
    part = (
        (tmp_path / "page.html").read_text().partition('<section id="part-dependencies"')[2].partition("</section>")[0]
    )
    rows = [
        (seen["patches"][int(number)], Read(row))
        for number, row in re.findall(r'data-p="(\d+)">(.*?)</tr>', part, re.S)
    ]
    assert len(rows) > 20
    by_place: dict[str, list[tuple[str, str]]] = {}
    for patch in seen["patches"]:
        pair, name = (patch["upstream"], patch["stack"]), patch["feature"]
        stack = re.sub(r"[^A-Za-z0-9_]", "-", f"{pair[0]}/{pair[1]}")
        for place in (name, f"{name}@{pair[0]}", f"{name}@{stack}"):
            by_place.setdefault(f"#{place}", []).append(pair)
    together = [{*profile["stacks"].items()} for profile in seen["profiles"]]
    own = [row.values("href")[0] for _, row in rows]
    assert len(own) == len({*own}) and "#sam_proposer@vllm-ascend-v0-23-0" in own
    for patch, row in rows:
        pair = (patch["upstream"], patch["stack"])
        for link in row.values("href")[1:]:
            assert any(pair in stacks and {*by_place[link]} & stacks for stacks in together), (patch["feature"], link)


def test_a_page_of_one_release_says_which(tmp_path: Path) -> None:
    args = ("report", "--profile", "qwen3-235b", "--release", newest(), "--out", "-")
    done = run_patchctl(f"--root={REPO}", *args, home=tmp_path / "home")
    assert f"patchctl report, release {newest()}" in Read(done.stdout).text


def test_a_page_of_one_profile_has_the_recipes_of_its_release_alone(tmp_path: Path) -> None:
    args = ("report", "--profile", "qwen3-235b", "--out", str(tmp_path / "page.html"), "--json")
    done = run_patchctl(f"--root={REPO}", *args, home=tmp_path / "home")
    seen = json.loads(done.stdout)
    assert seen["recipes"] and {r["release"] for r in seen["recipes"]} == {p["release"] for p in seen["profiles"]}


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("Backport https://github.com/NVIDIA/Megatron-LM/pull/5154", "Backport Megatron-LM#5154"),
        (f"Backport https://github.com/a/b/commit/{'0123456789' * 4}", "Backport b@012345678901"),
        ("Submitted https://gitcode.com/a/b-c/issues/3 (and 4)", "Submitted b-c#3 (and 4)"),
        ("see https://example.com/a", "see https://example.com/a"),
    ],
)
def test_addresses_are_short_in_a_narrow_column(status: str, shown: str) -> None:
    assert short(status) == shown


DRIFTS: dict[str, Any] = {
    "no-json": "{",
    "not-drift": {"schema": "patchctl.list/1"},
    "a-list": [],
    "number-for-text": {"schema": "patchctl.drift/1", "stacks": [{"upstream": 1, "stack": "v1", "releases": []}]},
    "key-missing": {"schema": "patchctl.drift/1", "stacks": [{"upstream": "greeter", "releases": []}]},
    "stacks-are-none": {"schema": "patchctl.drift/1", "stacks": None},
    "error-of-nothing": {"schema": "patchctl.error/1", "error": None},
}


@pytest.mark.parametrize("case", DRIFTS)
def test_what_drift_did_not_print_is_refused(odd: Made, tmp_path: Path, case: str) -> None:
    file = tmp_path / "drift.json"
    file.write_text(DRIFTS[case] if isinstance(DRIFTS[case], str) else json.dumps(DRIFTS[case]))
    said = report(odd, "--drift", str(file), "--out", str(tmp_path / "page.html"), code=2)
    assert "not what `drift --json` printed" in said and "Traceback" not in said
    assert not (tmp_path / "page.html").exists()


def test_without_a_run_of_drift_the_page_says_so(odd: Made, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert "without a drift matrix" in report(odd, "--out", str(out))
    assert "made without a run of drift" in out.read_text()
    assert "is not there" in report(odd, "--drift", str(tmp_path / "none.json"), code=2)


def test_a_run_of_drift_that_came_to_nothing_is_no_fault_of_the_page(odd: Made, tmp_path: Path) -> None:
    args = ("drift", "greeter", "--mirror", f"greeter={tmp_path / 'nowhere'}", "--against", "v9", "--json")
    done = odd.patchctl(*args)
    assert done.returncode == 3
    (tmp_path / "drift.json").write_text(done.stdout)
    out = tmp_path / "page.html"
    assert "came to nothing" in report(odd, "--drift", str(tmp_path / "drift.json"), "--out", str(out))
    text = Read(out.read_text()).text
    assert "had come to nothing" in text and json.loads(done.stdout)["error"]["what"].partition("\n")[0] in text


def test_keys_that_a_newer_drift_prints_are_passed_over(odd: Made, drift: Path, tmp_path: Path) -> None:
    data = json.loads(drift.read_text())
    data["stacks"][0]["more"] = data["stacks"][0]["releases"][0]["patches"][0]["more"] = {"a": 1}
    (tmp_path / "drift.json").write_text(json.dumps(data))
    out = ("--out", "-")
    assert odd.good("report", "--drift", str(tmp_path / "drift.json"), *out) == odd.good(
        "report", "--drift", str(drift), *out
    )


def test_many_releases_in_a_row_that_fare_alike_are_one_column(odd: Made, drift: Path, tmp_path: Path) -> None:
    data = json.loads(drift.read_text())
    releases = data["stacks"][0]["releases"]
    other = json.loads(json.dumps(releases[0])) | {"release": "v10.0"}
    other["patches"][0]["state"] = "exact"
    releases[:] = [{**releases[0], "release": f"v9.{n}"} for n in range(50)] + [other]
    (tmp_path / "drift.json").write_text(json.dumps(data))
    text = Read(odd.good("report", "--drift", str(tmp_path / "drift.json"), "--out", "-")).text
    assert "on 51 releases" in text and "v9.0 – v9.49 (50)" in text and "v10.0" in text and "v9.7" not in text


def test_no_file_of_the_user_s_is_written_over(odd: Made, tmp_path: Path) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("<!DOCTYPE html>\n<p>mine</p>\n")
    said = report(odd, "--out", str(mine), code=5)
    assert "--force" in said and mine.read_text().endswith("<p>mine</p>\n")
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "nowhere.html")
    report(odd, "--out", str(link), code=5)
    report(odd, "--out", str(mine), "--force")
    report(odd, "--profile", "plain", "--out", str(mine))  # our own page needs no force
    assert "The profile plain." in mine.read_text()
    report(odd, "--out", str(tmp_path), code=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.html", "mine.html"]


def test_json_and_the_page_do_not_mix(odd: Made) -> None:
    assert "standard output" in report(odd, "--out", "-", "--json", code=2)
