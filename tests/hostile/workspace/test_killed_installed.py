"""SIGKILL while a package is patched in site-packages, or given back: the next run leaves it patched with a true RECORD, or
exactly as the installer left it, byte code included."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest
from distribution import GREETER, Made
from on_disk import Workspace, leftovers, snapshot
from test_killed import counted, spread

sys.path.insert(0, str(Path(__file__).parents[2] / "cli"))

from packages import Env, false_lines, make_wheel

pytestmark = pytest.mark.heavy("killed at every operation")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site-packages folder with greeter, as pip leaves it."""
    folder = tmp_path_factory.mktemp("installed")
    inside = {p: t for p, t in GREETER.files.items() if p.startswith("greeter/")}
    env = Env(folder / "env", "pip")
    env.install(str(make_wheel(folder, "greeter", inside)))
    return env.site


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_killed_at_an_installed_package(small: Made, installed: Path, tmp_path: Path, verb: str) -> None:
    place = tmp_path / "place"
    site, ws = place / "site-packages", Workspace(small, place / "ws")
    apply = ("apply", "--profile", "full", "--in-place", f"greeter={site}")
    args = apply if verb == "apply" else ("revert",)
    original = snapshot(installed)

    def fresh() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(installed, site, symlinks=True)
        if verb == "revert":
            ws.good(*apply)

    counter = tmp_path / "count"
    fresh()
    ws.good(*apply)
    patched = snapshot(site)
    fresh()
    assert counted(ws, args, 0, counter) == 0
    for number, at in enumerate(spread(counter, 12)):
        fresh()
        assert counted(ws, args, at, counter) == -signal.SIGKILL, f"event {at} did not come"
        done = ws.run(*(("revert",), apply)[number % 2])
        begun = (ws.folder / ".patchctl/state.json").exists()
        assert done.returncode == (0 if begun else 2), done.stderr
        assert snapshot(site) == (patched if number % 2 else original)
        assert false_lines(site, "greeter") == []
        assert leftovers(ws.folder) == [] and leftovers(site) == []
