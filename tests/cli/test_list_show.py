"""`patchctl list` and `patchctl show` on a distribution made by git."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, REPO, Made, make_distribution, run_patchctl, write_files


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_distribution(tmp_path_factory.mktemp("list"), (GREETER, CLOCK))
    upstreams = made.root / "manifests" / "upstreams.yaml"
    upstreams.write_text(
        upstreams.read_text()
        + "requirements:\n  torch:\n    summary: PyTorch.\n    kind: python\n    distribution: torch\n"
        "  driver:\n    summary: The driver.\n    kind: system\n"
    )
    made.edit("manifests/profiles/full.yaml", "stacks:", 'runtime:\n  torch: "2.9.0"\nstacks:')
    write_files(
        made.root,
        {
            "patches/greeter/v1/polite/tests/test_polite.py": "",
            "patches/greeter/v1/polite/tests/probe_polite.py": "",
            "patches/greeter/v1/loud/tests/test_loud.py": "",
            "patches/greeter/v1/polite/mutants/polite.yaml": "",
            "patches/greeter/v1/polite/mutants/polite.order.yaml": "",
            "patches/greeter/v1/loud/mutants/loud.yaml": "",
        },
    )
    return made


def listed(made: Made, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.good("list", *args, "--json"))
    assert found["schema"] == "patchctl.list/1"
    return found


def shown(made: Made, *args: str) -> list[dict[str, Any]]:
    found = json.loads(made.good("show", *args, "--json"))
    assert found["schema"] == "patchctl.show/1"
    patches: list[dict[str, Any]] = found["patches"]
    return patches


def test_the_overview_has_everything(made: Made) -> None:
    found = listed(made)
    assert found["what"] == "overview"
    assert [(p["name"], p["patches"], p["without"]) for p in found["profiles"]] == [
        ("full", 4, []),
        ("plain", 2, ["polite", "loud"]),
    ]
    assert [(s["upstream"], s["stack"], s["patches"]) for s in found["stacks"]] == [
        ("greeter", "v1", 3),
        ("clock", "v2", 1),
    ]
    assert [p["feature"] for p in found["patches"]] == ["typo", "polite", "loud", "step"]
    assert [(r["name"], r["kind"], r["versions"]) for r in found["requirements"]] == [
        ("torch", "python", {"full": "2.9.0"}),
        ("driver", "system", {}),
    ]
    assert "polite" not in made.good("list")
    text = made.good("list", "-v")
    for word in (
        "profiles",
        "stacks",
        "patches",
        "requirements",
        "full",
        "greeter",
        "polite",
        "env GREETER_POLITE=1",
        "torch",
    ):
        assert word in text


@pytest.mark.parametrize("what", ["profiles", "stacks", "patches", "requirements"])
def test_one_kind_alone(made: Made, what: str) -> None:
    found = listed(made, what)
    assert {*found} == {"schema", "what", what} and found["what"] == what
    assert found[what] == listed(made)[what]
    assert made.good("list", what).strip()


def test_a_patch_row_says_who_applies_it(made: Made) -> None:
    rows = {p["feature"]: p for p in listed(made, "patches")["patches"]}
    assert rows["typo"]["profiles"] == ["full", "plain"] and rows["polite"]["profiles"] == ["full"]
    assert (rows["typo"]["kind"], rows["typo"]["switch"], rows["typo"]["number"]) == ("bugfix", "none", 1)
    assert (rows["loud"]["kind"], rows["loud"]["switch"], rows["loud"]["file"]) == (
        "feature",
        "env GREETER_LOUD=3",
        "0003-feature-loud.patch",
    )


def test_filters(made: Made) -> None:
    assert [p["feature"] for p in listed(made, "patches", "--profile", "plain")["patches"]] == ["typo", "step"]
    found = listed(made, "--upstream", "clock", "--profile", "full")
    assert [p["feature"] for p in found["patches"]] == ["step"]
    assert [s["upstream"] for s in found["stacks"]] == ["clock"]
    assert [p["name"] for p in found["profiles"]] == ["full"]
    assert [r["name"] for r in found["requirements"]] == ["torch"]


@pytest.mark.parametrize(
    ("args", "near"),
    [
        (("--profile", "ful"), "'full'"),
        (("--upstream", "clok"), "'clock'"),
        (("profiles", "--upstream", "greter"), "'greeter'"),
    ],
)
def test_unknown_names_say_the_nearest(made: Made, args: tuple[str, ...], near: str) -> None:
    done = made.patchctl("list", *args)
    assert done.returncode == 2 and f"did you mean {near}" in done.stderr


def test_an_unknown_kind_is_wrong_use(made: Made) -> None:
    assert made.patchctl("list", "patchs").returncode == 2


def test_show_tells_all_about_a_patch(made: Made) -> None:
    (found,) = shown(made, "polite")
    assert found["file"] == "patches/greeter/v1/polite/0002-feature-polite.patch"
    assert (found["switch"], found["upstream_status"]) == ("env GREETER_POLITE=1", "Pending")
    assert found["drop_when"] == "upstream does it itself"
    assert found["need"] == "people ask for polite, and upstream does not have it."
    assert (found["change"], found["risk"]) == ("The code does it now.", "a caller that counts on the old behaviour.")
    assert found["files"] == [
        {"path": "greeter/hello.py", "change": "modify", "added": 4, "removed": 0},
        {"path": "greeter/manners.py", "change": "carried", "added": 2, "removed": 0},
    ]
    assert found["profiles"] == ["full"]
    assert found["tests"] == ["patches/greeter/v1/polite/tests/test_polite.py"]
    assert found["mutants"] == [f"patches/greeter/v1/polite/mutants/{name}.yaml" for name in ("polite.order", "polite")]
    assert "diff" not in found
    text = made.good("show", "polite")
    for word in ("GREETER_POLITE=1", "test_polite.py", "+4", "greeter/manners.py", "carried", "people ask for polite"):
        assert word in text


def test_show_names_both_sides_of_a_requirement(made: Made) -> None:
    (step,) = shown(made, "step@clock")
    assert step["requires"] == ["typo@greeter"]
    (typo,) = shown(made, "typo")
    assert typo["required_by"] == ["loud@greeter", "step@clock"]
    assert [(s["stack"], len(s["commit"])) for s in typo["stacks"]] == [("v1", 40)]


def test_required_is_what_is_applied_with_it(tmp_path: Path) -> None:
    """Of the distribution that this repository has: MindSpeed's patch requires Megatron-LM's on the newer release alone."""
    done = run_patchctl(f"--root={REPO}", "show", "optimizer_none_state", "--json", home=tmp_path)
    found = {detail["stacks"][0]["stack"]: detail["required_by"] for detail in json.loads(done.stdout)["patches"]}
    assert found == {"core_v0.12.1": [], "core_v0.16.0": ["swap_optimizer_state@mindspeed"]}


@pytest.mark.parametrize(
    "target", ["0003-feature-loud.patch", "patches/greeter/v1/loud/0003-feature-loud.patch", "{root}"]
)
def test_show_takes_a_patch_file(made: Made, target: str) -> None:
    (found,) = shown(made, target.format(root=made.patch("loud")))
    assert found["feature"] == "loud" and found["row"]["number"] == 3


def test_show_takes_a_file_that_no_stack_lists(made: Made, tmp_path: Path) -> None:
    (found,) = shown(made, str(shutil.copy(made.patch("typo"), tmp_path / "0001-bugfix-typo.patch")))
    assert (found["feature"], found["row"], found["stacks"]) == ("typo", None, [])
    assert "none lists this file" in made.good("show", str(tmp_path / "0001-bugfix-typo.patch"))


def test_show_prints_the_diff_when_asked(made: Made) -> None:
    text = made.good("show", "typo", "--diff")
    assert '-    text = "Helo, " + name' in text and '+    text = "Hello, " + name' in text
    (found,) = shown(made, "typo", "--diff")
    assert found["diff"].startswith("diff --git a/greeter/hello.py b/greeter/hello.py\n")
    assert made.patch("typo").read_text().endswith(found["diff"])


def test_a_feature_that_spans_upstreams_is_shown_twice(tmp_path: Path) -> None:
    made = make_distribution(tmp_path)
    old = made.patch("step")
    text = old.read_text().replace("Feature: step", "Feature: typo")
    old.unlink()
    write_files(old.parents[1], {"typo/0001-feature-typo.patch": text})
    made.edit("manifests/stacks/clock/v2.yaml", "0001-feature-step.patch", "0001-feature-typo.patch")
    assert [p["row"]["upstream"] for p in shown(made, "typo")] == ["greeter", "clock"]
    assert [p["row"]["upstream"] for p in shown(made, "typo@clock")] == ["clock"]


@pytest.mark.parametrize(
    ("target", "near"),
    [
        ("polit", "did you mean 'polite'"),
        ("step@greeter", "known: loud, polite, typo"),
        ("step@clok", "did you mean 'clock'"),
        ("0002-feature-polit.patch", "did you mean patches/greeter/v1/polite/0002-feature-polite.patch"),
        ("zzz/q.patch", "patchctl list"),
    ],
)
def test_unknown_targets_say_the_nearest(made: Made, target: str, near: str) -> None:
    done = made.patchctl("show", target)
    assert done.returncode == 2 and near in done.stderr, done.stderr


def test_a_patch_of_an_extended_stack_is_one_patch(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, (GREETER,))
    stack = (made.root / "manifests/stacks/greeter/v1.yaml").read_text()
    head = stack[: stack.index("patches:")].replace("name: v1", "name: more")
    write_files(made.root, {"manifests/stacks/greeter/more.yaml": head + "extends: v1\npatches: []\n"})
    (found,) = shown(made, "loud")
    assert [s["stack"] for s in found["stacks"]] == ["more", "v1"]
    assert [s["extends"] for s in listed(made, "stacks")["stacks"]] == ["v1", None]


def test_escape_sequences_of_a_patch_do_not_reach_the_terminal(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, (GREETER,))
    made.edit(made.patch("typo"), "The code does it now.", "The code \x1b[31mdoes\x1b[0m it now.")
    assert "\x1b" not in made.good("show", "typo", "--diff") and "\\x1b[31m" in made.good("show", "typo")


def test_a_damaged_patch_is_named_with_its_line(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, (GREETER,))
    made.edit(made.patch("typo"), "Date: Sat, 21 Nov 2026 00:00:00 +0000\n", "")
    done = made.patchctl("list", "patches")
    assert done.returncode == 2 and "0001-bugfix-typo.patch:1" in done.stderr
