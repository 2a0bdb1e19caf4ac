"""The user's configuration file: strict, and every fault has file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchctl.errors import BadManifest, WrongUse
from patchctl.source.cache import cache_root
from patchctl.source.config import BundlePolicy, UserConfig, config_path, read_user_config
from patchctl.source.types import ArchiveLimits


def read(tmp_path: Path, text: str) -> UserConfig:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return read_user_config({"PATCHCTL_CONFIG": str(path)})


def test_mirrors_and_cache_are_read(tmp_path: Path) -> None:
    config = read(tmp_path, "cache: ~/c\nmirrors:\n  verl: [https://me:secret@host/x.git, /srv/x.git]\n")
    assert config.cache == str(Path.home() / "c")
    assert config.mirrors == {"verl": ["https://me:secret@host/x.git", "/srv/x.git"]}


def test_without_a_home_there_is_no_configuration_and_a_cache_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a user that /etc/passwd does not have, without HOME: `~` stays what it is."""
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert read_user_config({}) == UserConfig()
    with pytest.raises(WrongUse, match="no home directory") as caught:
        cache_root({})
    assert "PATCHCTL_CACHE" in str(caught.value.hint)
    assert cache_root({"PATCHCTL_CACHE": "/c"}) == Path("/c")


def test_the_policy_of_bundles_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, "cache: /c\n").bundles == BundlePolicy("off", None, None)
    assert read(tmp_path, "bundles:\n  signatures: off\n").bundles.signatures == "off"
    config = read(tmp_path, "bundles:\n  signatures: require\n  allowed_signers: ~/a\n  revoked_keys: /r\n")
    assert config.bundles == BundlePolicy("require", str(Path.home() / "a"), "/r")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("mirors: {}\n", 1, "did you mean 'mirrors'"),
        ("cache: /c\ncache: /d\n", 2, "duplicate key"),
        ("cache: here\n", 1, "absolute"),
        ("cache: 1\n", 1, "quote it"),
        ("mirrors:\n  verl: https://host/x.git\n", 2, "list"),
        ("mirrors:\n  verl:\n    - https://host/x.git\n    - --upload-pack=x\n", 4, "begins with '-'"),
        ("mirrors:\n  verl: [ext::sh]\n", 2, "run commands"),
        ("mirrors:\n  verl: [../x]\n", 2, "absolute"),
        ("mirrors:\n  Verl: [/x]\n", 2, "lower-case"),
        ("mirrors: !!python/object:os.system {}\n", 1, "tag"),
        ("cache: [\n", 2, "YAML"),
        ("bundles:\n  signatures: maybe\n", 2, "'off' or 'warn' or 'require'"),
        ("bundles:\n  signatures: no\n", 2, "'off' or 'warn' or 'require'"),
        ("bundles:\n  signatures: require\n", 2, "needs allowed_signers"),
        ("bundles:\n  signatures: warn\n  allowed_signers: here\n", 3, "absolute"),
        ("bundles:\n  revoked_keys: here\n", 2, "absolute"),
        ("bundles:\n  signature: require\n", 2, "did you mean 'signatures'"),
        ("archives: {unpacked: 1}\n", 1, "did you mean 'unpacked_mib'"),
        ("archives:\n  names: many\n", 2, "an integer"),
        ("archives:\n  names: 10\n  ratio: 0\n", 3, "positive"),
        ("archives:\n  names: true\n", 2, "an integer"),
        ("images:\n  names: 0\n", 2, "positive"),
    ],
)
def test_every_fault_has_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    with pytest.raises(BadManifest, match=said) as caught:
        read(tmp_path, text)
    assert caught.value.code == 2
    assert caught.value.where is not None
    assert (Path(caught.value.where.file).name, caught.value.where.line) == ("config.yaml", line)


def test_limits_of_archives_are_read(tmp_path: Path) -> None:
    limits = read(tmp_path, "archives: {unpacked_mib: 4096, ratio: 500}\n").archives
    assert (limits.unpacked_mib, limits.ratio, limits.names) == (4096, 500, ArchiveLimits().names)


def test_a_secret_in_a_refused_address_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(BadManifest) as caught:
        read(tmp_path, "mirrors:\n  verl: ['ftp://me:hunter2@host/x']\n")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(BadManifest, match="its host or port is invalid") as caught:
        read(tmp_path, "mirrors:\n  verl: ['https://me:hun/ter2@host/x']\n")
    assert "hun" not in str(caught.value)


def test_without_a_file_there_is_nothing_configured(tmp_path: Path) -> None:
    assert read_user_config({}) == UserConfig()
    with pytest.raises(BadManifest, match="does not exist"):
        read_user_config({"PATCHCTL_CONFIG": str(tmp_path / "no.yaml")})


@pytest.mark.parametrize("lost", ["the file", "its folder", "a file for a folder"])
def test_a_file_out_of_reach_is_not_none(lost: str, tmp_path: Path) -> None:
    """It may require signatures."""
    folder = tmp_path / "patchctl"
    if lost == "the file":
        folder.mkdir()
        (folder / "config.yaml").symlink_to(tmp_path / "unmounted/config.yaml")
    elif lost == "its folder":
        folder.symlink_to(tmp_path / "unmounted")
    else:
        folder.touch()
    with pytest.raises(BadManifest, match="the configuration cannot be reached"):
        read_user_config({"XDG_CONFIG_HOME": str(tmp_path)})


def test_where_the_file_is_looked_for(tmp_path: Path) -> None:
    assert config_path({}) == Path.home() / ".config/patchctl/config.yaml"
    assert config_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/patchctl/config.yaml")
    assert config_path({"XDG_CONFIG_HOME": "/x", "PATCHCTL_CONFIG": "/y.yaml"}) == Path("/y.yaml")


def test_where_the_cache_is() -> None:
    assert cache_root({}) == Path.home() / ".cache/patchctl"
    assert cache_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/patchctl")
    assert cache_root({"XDG_CACHE_HOME": "absolute"}) == Path.home() / ".cache/patchctl"
    assert cache_root({"XDG_CACHE_HOME": "/x"}, "/configured") == Path("/configured")
    assert cache_root({"PATCHCTL_CACHE": "/own", "XDG_CACHE_HOME": "/x"}, "/configured") == Path("/own")
