"""What tools print, read: the forms that are known, and anything else without a traceback."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import df, hccn, ip_addr, npu_smi, pip_list, tcp

from patchctl.training.preflight import machine
from patchctl.training.preflight.checks.network import matching
from patchctl.training.preflight.machine import Machine

GIB = 1 << 30


def test_two_chips_a_card() -> None:
    found = machine.smi(npu_smi())
    assert (found.version, len(found.devices), found.processes) == ("25.3.rc1", 16, ())
    first, second = found.devices[:2]
    assert (first.card, first.chip, first.health) == (0, 0, "OK")
    assert (first.used, first.total) == (3180 << 20, 64 * GIB)
    assert (second.card, second.chip) == (0, 1)


def test_one_chip_a_card_has_no_physical_id() -> None:
    """The A2."""
    found = machine.smi(npu_smi(cards=8, chips=1))
    assert [(d.card, d.chip) for d in found.devices] == [(n, 0) for n in range(8)]


def test_figures_without_a_blank_between_them() -> None:
    """As #12980 has them: 31877/ 65536."""
    text = npu_smi(cards=1, chips=1).replace("2896 / 65536", "31877/ 65536").replace("3180 / 65536", "31877/ 65536")
    assert [d.used >> 20 for d in machine.smi(text).devices] == [31877]


@pytest.mark.parametrize("health", ["Warning", "Alarm", "Critical", "UNKNOWN"])
def test_health(health: str) -> None:
    found = machine.smi(npu_smi(health={(3, 1): health}))
    assert [(d.card, d.chip) for d in found.devices if d.health != "OK"] == [(3, 1)]
    assert len(found.devices) == 16


def test_processes_are_no_devices() -> None:
    found = machine.smi(npu_smi(processes={(0, 0): 632268, (7, 1): 12}))
    assert found.processes == (632268, 12)
    assert len(found.devices) == 16


def test_output_without_tables() -> None:
    assert (
        machine.smi("DrvMngGetConsoleLogLevel failed. (ret=4)\ndcmi module initialize failed. ret is -8005\n").devices
        == ()
    )


def test_open_files() -> None:
    with open("/proc/self/limits", encoding="ascii") as file:
        assert machine.limit(file.read(), "Max open files") == os.sysconf("SC_OPEN_MAX")
    assert (
        machine.limit("Max open files            unlimited            unlimited            files\n", "Max open files")
        == -1
    )
    assert machine.limit("Max processes 3 3 processes\n", "Max open files") is None


def test_memory() -> None:
    with open("/proc/meminfo", encoding="ascii") as file:
        total = machine.memory(file.read())
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert total is not None and total == pytest.approx(pages, rel=0.05)
    assert machine.memory_limit("max\n") is None
    assert machine.memory_limit("9223372036854771712\n") is None
    assert machine.memory_limit("2199023255552\n") == 2 << 40
    assert machine.memory_limit("\u00b2\n") is None  # a digit to str.isdigit, and no number


def test_df_of_this_machine() -> None:
    """The real tool, against what the system says of the same mount."""
    done = subprocess.run(
        ["df", "-P", "-k"], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False
    )
    root = machine.mount_of("/", machine.mounts(done.stdout))
    there = os.statvfs("/")
    assert root is not None and root.total == pytest.approx(there.f_blocks * there.f_frsize, rel=0.01)


def test_the_longest_mount_point_counts() -> None:
    found = machine.mounts(df(_data_big=(10, 5)))
    assert [m.point for m in found if m] == ["/", "/dev/shm", "/data", "/ckpt", "/data/big"]
    for path, point in (("/data/big/x", "/data/big"), ("/data/bigger", "/data"), ("/dev/shm", "/dev/shm"), ("/x", "/")):
        mount = machine.mount_of(path, found)
        assert mount is not None and mount.point == point
    assert machine.mount_of("/x", ()) is None


def test_of_two_mounts_at_one_point_the_later_counts() -> None:
    lines = "Filesystem 1024-blocks Used Available Capacity Mounted on\na 10 5 5 50% /m\nb 20 5 15 25% /m\n"
    mount = machine.mount_of("/m/x", machine.mounts(lines))
    assert mount is not None and mount.free == 15 << 10


def test_sockets() -> None:
    assert machine.listening(tcp(6766, 60000)) == {6766, 60000}


def test_interfaces() -> None:
    lo, eth = machine.interfaces(ip_addr())
    assert (lo.name, lo.up, lo.addresses) == ("lo", True, ("127.0.0.1",))
    assert (eth.name, eth.up, eth.addresses) == ("eth0", True, ("192.0.2.7",))
    assert not machine.interfaces(ip_addr(state="DOWN"))[1].up
    assert machine.interfaces({"no": "list"}) == ()


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth0", ["eth0"]),
        ("=eth", []),
        ("=eth1", ["eth1"]),
        ("^eth0", ["eth1", "bond0"]),
        ("^=eth0,bond0", ["eth1"]),
        ("eth1,bond", ["eth1", "bond0"]),
    ],
)
def test_names_of_interfaces_as_hccl_takes_them(value: str, names: list[str]) -> None:
    known = [machine.Interface(name, True, ()) for name in ("lo", "eth0", "eth1", "bond0")]
    assert [i.name for i in matching(value, known)] == names


def test_packages() -> None:
    assert machine.packages(pip_list())["torch-npu"] == "2.9.0"  # type: ignore[index]
    for text in ("", "[]x", "{}x", '[{"name": 1}]', "[1]", "null", "[" * 100_000):
        assert machine.packages(text) is None
    assert machine.packages("[]") == {}


def test_port_ranges() -> None:
    assert machine.port_ranges("60000-60031,61000\n") == [(60000, 60031), (61000, 61000)]
    assert machine.port_ranges("\n") == []
    for text in ("x", "5-1", "0", "70000", "1-2-3"):
        assert machine.port_ranges(text) is None


def test_devices_of_hccn_tool() -> None:
    found = machine.device_ports(hccn(2, tls_1="no such device\n"))
    assert found == {
        0: machine.DevicePort("10.20.0.1", False, "UP"),
        1: machine.DevicePort("10.20.0.2", None, "UP"),
    }
    assert machine.configured_addresses("address_1=10.0.0.2\n#address_2=1.1.1.1\n") == {1: "10.0.0.2"}


ANY = st.text(max_size=300)
ROWS = st.lists(
    st.sampled_from(
        [*npu_smi(1).splitlines(), *hccn(2).splitlines(), *df().splitlines(), *tcp(1).splitlines(), "|||", "| 1 |"]
    )
)


@given(st.one_of(ANY, ROWS.map("\n".join)))
def test_no_text_ends_in_a_traceback(text: str) -> None:
    for reader in (
        machine.smi,
        lambda text: machine.limit(text, "Max open files"),
        machine.memory,
        machine.memory_limit,
        machine.mounts,
        machine.listening,
        machine.packages,
        machine.python_version,
        machine.port_ranges,
        machine.local_ports,
        machine.device_ports,
        machine.configured_addresses,
        machine.huge_pages,
    ):
        reader(text)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8
    )
)
def test_no_data_ends_in_a_traceback(data: object) -> None:
    machine.interfaces(json.loads(json.dumps(data)))


def test_a_text_that_says_nothing_is_not_said_to_be_missing() -> None:
    said = Machine({"df.txt": "Filesystem\x1b[2J nonsense\n"}, "here", 0.0).why_not("df.txt")
    assert said == "df.txt (df -P -k) does not say it: Filesystem\\x1b[2J nonsense"
    assert "there is no df.txt" in Machine({}, "here", 0.0).why_not("df.txt")
