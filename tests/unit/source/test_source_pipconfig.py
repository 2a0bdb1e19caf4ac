"""pip's configuration as pip itself tells it, and what is made of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from patchctl.errors import WrongUse
from patchctl.source.package_index import versions
from patchctl.source.places import PYPI, IndexConfig, from_settings, machine_config, read_config


def environment(tmp_path: Path, conf: str, **variables: str) -> dict[str, str]:
    path = tmp_path / "pip.conf"
    path.write_text(conf)
    kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    return {**kept, "PIP_CONFIG_FILE": str(path), **variables}


def test_files_and_variables_are_merged_as_pip_does(tmp_path: Path) -> None:
    conf = (
        "[global]\nindex-url = https://a/simple\nextra-index-url = https://b/simple\n    file:///c/simple\n"
        "find-links = /d\ntrusted-host = a b:81\ntimeout = 7\ncert = /e.pem\nclient-cert = /f.pem\n"
        "proxy = http://g:3128\n[install]\nindex-url = https://h/simple\n[list]\nindex-url = https://wrong/simple\n"
    )
    config = read_config(environment(tmp_path, conf, PIP_FIND_LINKS="/i /j"))
    assert config == IndexConfig(
        index_urls=("https://h/simple", "https://b/simple", "file:///c/simple"),
        find_links=("/i", "/j"),
        cert="/e.pem",
        client_cert="/f.pem",
        trusted_hosts=("a", "b:81"),
        proxy="http://g:3128",
        timeout=7.0,
    )


def test_no_index_leaves_the_links(tmp_path: Path) -> None:
    config = read_config(environment(tmp_path, "[global]\nno-index = true\nfind-links = /d\n"))
    assert (config.index_urls, config.find_links) == ((), ("/d",))


def test_nothing_configured_means_pypi(tmp_path: Path) -> None:
    assert read_config(environment(tmp_path, "")).index_urls == (PYPI,)


def test_empty_values_are_no_values(tmp_path: Path) -> None:
    assert read_config(environment(tmp_path, "", PIP_INDEX_URL="", PIP_EXTRA_INDEX_URL=" ")).index_urls == (PYPI,)


def test_another_environment_is_not_answered_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that set a folder of packages left every later one of its process without an index."""
    for name in ("first", "second"):
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / name))
        assert machine_config().find_links == (str(tmp_path / name),)
    assert machine_config() is machine_config()


def test_the_variables_count_where_no_pip_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    config = read_config({"PATH": str(tmp_path), "PIP_INDEX_URL": "https://a/simple", "PIP_DEFAULT_TIMEOUT": "180"})
    assert (config.index_urls, config.timeout) == (("https://a/simple",), 180.0)


def test_a_file_that_pip_cannot_read_is_told_and_no_reason_to_ask_pypi(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"cannot read its configuration: .*no section headers.*https://b/") as refused:
        read_config(environment(tmp_path, "index-url = https://a:secret@b/simple\n"))
    assert "PIP_CONFIG_FILE=/dev/null" in (refused.value.hint or "") and "secret" not in str(refused.value)
    assert read_config({"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}).index_urls


def test_a_pip_in_the_current_folder_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = tmp_path / "pwned"
    trap = tmp_path / "here" / "pip"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text("")
    (trap / "__main__.py").write_text(f"open({str(witness)!r}, 'w')\n")
    script = tmp_path / "here" / "pip3"
    script.write_text(f"#!/bin/sh\ntouch '{witness}'\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path / "here")
    read_config({**environment(tmp_path, ""), "PATH": f".:{os.environ['PATH']}"})
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    read_config({"PATH": ".", "HOME": str(tmp_path)})
    assert not witness.exists()


def test_a_proxy_may_be_a_host_and_a_port() -> None:
    assert from_settings({"proxy": "proxy.corp:3128"}, {}).proxy == "http://proxy.corp:3128"
    assert from_settings({"proxy": "https://proxy.corp"}, {}).proxy == "https://proxy.corp"
    assert from_settings({"proxy": ""}, {}).proxy is None


def test_a_proxy_that_cannot_be_used_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "nonsense://127.0.0.1:1")
    with pytest.raises(WrongUse, match="cannot use the proxy") as refused:
        versions("greeter", [], IndexConfig(index_urls=(PYPI,)))
    assert "socksio" in str(refused.value.hint)


def test_the_bundle_of_requests_counts_without_a_cert() -> None:
    assert from_settings({}, {"REQUESTS_CA_BUNDLE": "/x.pem"}).cert == "/x.pem"
    assert from_settings({"cert": "/y.pem"}, {"REQUESTS_CA_BUNDLE": "/x.pem"}).cert == "/y.pem"


def test_a_timeout_that_is_no_number_is_pip_s_own() -> None:
    assert from_settings({"timeout": "soon"}, {}).timeout == 15.0
