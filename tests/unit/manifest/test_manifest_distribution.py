"""Finding a distribution, and what it answers once it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchctl.errors import WrongUse
from patchctl.manifest.distribution import VARIABLE, Distribution, find_root


@pytest.fixture(autouse=True)
def no_root_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_root_is_the_nearest_folder_upward(root: Path) -> None:
    deep = root / "a" / "b c"
    deep.mkdir(parents=True)
    assert find_root(None, deep) == root.resolve()
    assert find_root(None, root) == root.resolve()


def test_a_root_that_is_not_there_is_no_missing_file(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"--root names .*/gone, which is no folder$"):
        find_root(tmp_path / "gone", tmp_path)
    with pytest.raises(WrongUse, match=r"--root names .*, which has no manifests/upstreams.yaml$"):
        find_root(tmp_path, tmp_path)


def test_another_projects_manifests_folder_is_passed_over(root: Path) -> None:
    deep = root / "deploy" / "manifests"
    deep.mkdir(parents=True)
    assert find_root(None, deep) == root.resolve()


def test_the_option_goes_before_the_variable_and_both_before_the_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("by_option", "by_variable"):
        (tmp_path / name / "manifests").mkdir(parents=True)
        (tmp_path / name / "manifests/upstreams.yaml").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "by_variable"))
    assert find_root(tmp_path / "by_option", root) == (tmp_path / "by_option").resolve()
    assert find_root(None, root) == (tmp_path / "by_variable").resolve()
    monkeypatch.setenv(VARIABLE, "")
    assert find_root(None, root) == root.resolve()


def test_no_root_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"found no manifests/upstreams\.yaml in .* or any folder above") as caught:
        find_root(None, tmp_path)
    assert caught.value.code == 2
    assert "--root DIR or PATCHCTL_ROOT=DIR" in str(caught.value.hint)


def test_no_root_names_a_manifests_folder_without_upstreams(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    with pytest.raises(WrongUse, match=f"{tmp_path}/manifests exists but has no upstreams.yaml"):
        find_root(None, tmp_path)


def test_a_wrong_option_or_variable_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongUse, match=r"--root names .*/manifests, which has no") as caught:
        find_root(root / "manifests", root)
    assert caught.value.hint == "name the folder that contains manifests/, not manifests/ itself"
    monkeypatch.setenv(VARIABLE, str(root / "nowhere"))
    with pytest.raises(WrongUse, match="PATCHCTL_ROOT names"):
        find_root(None, root)


def names(paths: list[Path], root: Path) -> list[str]:
    return [str(p.relative_to(root)) for p in paths]


def test_patch_files_of_a_plain_stack(root: Path) -> None:
    dist = Distribution.load(root)
    assert names(dist.patch_files(dist.stack("greeter", "v1")), root) == [
        "patches/greeter/v1/polite/0001-feature-polite.patch",
        "patches/greeter/v1/typo/0002-bugfix-typo.patch",
        "patches/greeter/v1/loud/0005-feature-loud.patch",
    ]


def test_patch_files_of_a_stack_that_extends_and_replaces(root: Path) -> None:
    dist = Distribution.load(root)
    files = dist.patch_files(dist.stack("greeter", "v1-site"))
    assert names(files, root) == [
        "patches/greeter/v1/polite/0001-feature-polite.patch",
        "patches/greeter/v1-site/typo/0001-bugfix-typo.patch",
        "patches/greeter/v1/loud/0005-feature-loud.patch",
        "patches/greeter/v1-site/site/0002-feature-site.patch",
    ]
    assert all(f.is_file() for f in files)


def test_a_replacement_may_be_replaced_further_down(root: Path) -> None:
    site = (root / "manifests/stacks/greeter/v1-site.yaml").read_text()
    third = site.replace("name: v1-site", "name: third").replace("extends: v1", "extends: v1-site")
    third = third.replace("0002-bugfix-typo.patch: 0001-bugfix-typo", "0001-bugfix-typo.patch: 0007-bugfix-typo")
    third = third.replace("patches:\n  - 0002-feature-site.patch\n", "")
    (root / "manifests/stacks/greeter/third.yaml").write_text(third)
    (root / "patches/greeter/third/typo").mkdir(parents=True)
    (root / "patches/greeter/third/typo/0007-bugfix-typo.patch").write_text("")
    dist = Distribution.load(root)
    assert [f"{p.stack}/{p.file}" for p in dist.patches(dist.stack("greeter", "third"))] == [
        "v1/0001-feature-polite.patch",
        "third/0007-bugfix-typo.patch",
        "v1/0005-feature-loud.patch",
        "v1-site/0002-feature-site.patch",
    ]


def test_stacks_of_a_profile_come_in_the_order_of_upstreams(root: Path) -> None:
    dist = Distribution.load(root)
    stacks = dist.stacks_of(dist.profile("site"))
    assert [(u, s.name) for u, s in stacks.items()] == [("greeter", "v1-site"), ("clock", "v2")]


def test_unknown_names_say_the_nearest(root: Path) -> None:
    dist = Distribution.load(root)
    with pytest.raises(WrongUse, match="no profile 'sit'; did you mean 'site'"):
        dist.profile("sit")
    with pytest.raises(WrongUse, match="no stack 'v1-sight' of greeter; did you mean 'v1-site'"):
        dist.stack("greeter", "v1-sight")
    with pytest.raises(WrongUse, match="no upstream 'greter'; did you mean 'greeter'"):
        dist.stack("greter", "v1")
    with pytest.raises(WrongUse, match="no profile 'zzz'; known: plain, site"):
        dist.profile("zzz")


def test_an_unknown_name_with_escapes_is_shown_safely(root: Path) -> None:
    with pytest.raises(WrongUse) as caught:
        Distribution.load(root).profile("pl\x1b]0;x\x07ain")
    assert str(caught.value).isprintable()


def test_unlisted_files(root: Path) -> None:
    dist = Distribution.load(root)
    assert dist.unlisted_files() == []
    extra = [
        "greeter/v1/forgotten/0009-feature-forgotten.patch",
        "greeter/v1/loud/0009-feature-loud.patch",
        "greeter/v1/0001-feature-polite.patch",
        "greeter/v0/old/0001-bugfix-old.patch",
        "greeter/shared/README",
        "greeter/shared/loud/0009-feature-loud.patch",
        "greeter/shared/gone/files/greeter/new.py",
        "greeter/shared/gone/mutants/gone.yaml",
        "other/v1/x.patch",
        "README",
    ]
    listed = [
        "loud/files/greeter/new.py",
        "loud/tests/test_loud.py",
        "loud/mutants/loud.yaml",
        "gone/tests/probe_gone.py",
    ]
    for name in [
        *extra,
        *(f"greeter/shared/{one}" for one in listed),
        "greeter/v1/loud/files/greeter/new.py",
        "greeter/v1/.hidden",
    ]:
        path = root / "patches" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert names(dist.unlisted_files(), root / "patches") == [
        "README",
        "greeter/shared/README",
        "greeter/shared/gone/files",
        "greeter/shared/gone/mutants",
        "greeter/shared/loud/0009-feature-loud.patch",
        "greeter/v0",
        "greeter/v1/0001-feature-polite.patch",
        "greeter/v1/forgotten",
        "greeter/v1/loud/0009-feature-loud.patch",
        "other",
    ]


def test_where_gives_the_line_of_a_key(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = Distribution.load(root)
    stack = dist.stack("greeter", "v1")
    monkeypatch.chdir(root)
    assert str(dist.where(dist.stack_file(stack), "patches", 1)) == "manifests/stacks/greeter/v1.yaml:12"
    assert str(dist.where(dist.stack_file(stack), "pin", "sdist", "sha256")) == "manifests/stacks/greeter/v1.yaml:9"
    assert str(dist.where(dist.profile_file(dist.profile("site")), "without", 0)) == "manifests/profiles/site.yaml:8"
    monkeypatch.chdir(root / "patches")
    assert str(dist.where(dist.stack_file(stack), "name")) == f"{root}/manifests/stacks/greeter/v1.yaml:3"
