"""Which distribution a run takes where none is named or around, and how to get a clone of a read-only one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from patchctl.errors import WrongUse
from patchctl.manifest import default_roots
from patchctl.manifest.default_roots import data_folder, files_of, how_to_clone, is_read_only, place_of, used
from patchctl.manifest.distribution import VARIABLE, find_root

COMMIT = "1" * 40
RECORD = {"schema": 1, "address": "https://host/team.git", "revision": "v1", "commit": COMMIT, "tree": "2" * 40}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own home, and nothing named from outside."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def data(home: Path) -> Path:
    """The data folder, with a distribution that `use` fetched and chose."""
    data = data_folder()
    assert data == home / "data" / "patchctl"
    files = files_of(data, COMMIT)
    (files / "manifests").mkdir(parents=True)
    (files / "manifests/upstreams.yaml").write_text("")
    (place_of(data, COMMIT) / "use.json").write_text(json.dumps(RECORD))
    (data / "default").write_text(COMMIT)
    return data


@pytest.fixture
def own(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The distribution of a wheel."""
    own = home / "site-packages/patchctl/_distribution"
    (own / "manifests").mkdir(parents=True)
    (own / "manifests/upstreams.yaml").write_text("")
    monkeypatch.setattr(default_roots, "_OWN", own)
    return own


def said_by_pip(monkeypatch: pytest.MonkeyPatch, said: dict[str, object]) -> None:
    monkeypatch.setattr(default_roots, "direct_url", lambda: said)


def test_the_folder_goes_before_what_was_chosen_and_that_before_the_wheels_own(
    root: Path, own: Path, data: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert find_root(None, root) == root.resolve()
    assert find_root(None, empty) == files_of(data, COMMIT)
    (data / "default").unlink()
    assert find_root(None, empty) == own
    shutil.rmtree(own)
    with pytest.raises(WrongUse, match="no distribution: found no") as caught:
        find_root(None, empty)
    assert "`patchctl use URL` fetches one" in str(caught.value.hint)


def test_the_option_and_the_variable_go_before_what_was_chosen(
    root: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_root(root, tmp_path) == root.resolve()
    monkeypatch.setenv(VARIABLE, str(root))
    assert find_root(None, tmp_path) == root.resolve()


def test_what_was_chosen_and_is_gone_is_named(own: Path, data: Path, tmp_path: Path) -> None:
    """Not the wheel's own in its place: other patches would be applied, and nobody would know."""
    shutil.rmtree(place_of(data, COMMIT))
    with pytest.raises(WrongUse, match=r"`patchctl use` chose is gone: .*/1{40}/files") as caught:
        find_root(None, tmp_path)
    assert "`patchctl use --none`" in str(caught.value.hint)


def test_installed_and_fetched_ones_are_read_only(root: Path, own: Path, data: Path) -> None:
    assert is_read_only(own) and is_read_only(files_of(data, COMMIT))
    assert not is_read_only(root)


def test_a_clone_of_a_fetched_one_is_of_its_repository(own: Path, data: Path) -> None:
    hint = how_to_clone(files_of(data, COMMIT))
    assert hint == "git clone --branch v1 https://host/team.git patchctl, and run the same in patchctl/"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ({}, "clone its repository (ask the person who gave you this patchctl for the address)"),
        ({"url": "file:///dist/p.whl", "archive_info": {}}, "clone its repository (ask the person"),
        ({"url": "https://host/p.git", "vcs_info": {"vcs": "git"}}, "git clone https://host/p.git patchctl,"),
        (
            {"url": "https://host/p.git", "vcs_info": {"vcs": "git", "requested_revision": "v2"}},
            "git clone --branch v2 https://host/p.git patchctl,",
        ),
        (
            {"url": "https://host/p.git", "vcs_info": {"vcs": "git", "requested_revision": "a" * 40}},
            "git clone https://host/p.git patchctl,",
        ),
    ],
)
def test_a_clone_of_the_installed_one(
    own: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, object], hint: str
) -> None:
    """No address is invented: it is the one that pip installed from, or is asked for."""
    said_by_pip(monkeypatch, said)
    assert how_to_clone(own).startswith(hint)


def test_a_clone_that_was_installed_from_is_named(own: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said_by_pip(monkeypatch, {"url": root.as_uri(), "dir_info": {}})
    assert how_to_clone(own) == f"run the same in {root}, which it was installed from"


def test_a_record_that_cannot_be_read_is_passed_over(data: Path) -> None:
    assert used(data)[COMMIT].address == "https://host/team.git"
    (place_of(data, COMMIT) / "use.json").write_text("{}")
    assert used(data) == {}


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder({"XDG_DATA_HOME": "relative"}) == Path.home() / ".local/share/patchctl"
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert data_folder({}) is None
