"""What the verbs print against their JSON Schemas: every key is documented with its type, and none is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from distribution import CLOCK, GREETER, REPO, Made, Patch, git, make_distribution, write_files
from json_schema import faults
from recipes import with_recipes

from patchctl.cli.generated_pages import FOLDER, PAGE, outputs

SCHEMAS = {f"patchctl.{f.stem}/1": json.loads(f.read_bytes()) for f in sorted((REPO / FOLDER).glob("*.json"))}


def check_output(found: Any, name: str) -> None:
    """Raise AssertionError where what a verb printed is not of the schema `name`, or has a key that is not in it."""
    assert [*faults(SCHEMAS[name], found, name)] == []


def checked(made: Made, verb: str, *args: str, code: int = 0) -> dict[str, Any]:
    """Run a verb and hold what it prints against its schema; an error's against that of errors."""
    done = made.patchctl(*verb.split("."), "--json", *args)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    check_output(found, "patchctl.error/1" if "error" in found else f"patchctl.{verb}/1")
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    more = {f"greeter/part{i}.py": f"PART = {i}\n" for i in range(4)}
    greeter = replace(GREETER, files={**GREETER.files, **more})
    calls = {"clock/chime.py": "from greeter.hello import hello\n\n\ndef chime():\n    return hello('you')\n"}
    chime = Patch("chime", {"clock/__init__.py": "CHIMES = True\n"}, "clock: chime", carries=calls)
    clock = replace(CLOCK, patches=(*CLOCK.patches, chime))
    return make_distribution(tmp_path_factory.mktemp("json"), (greeter, clock), lock=True)


def test_every_verb_with_json_has_a_schema() -> None:
    from patchctl.cli import cli

    printed = dict(outputs(cli))
    assert SCHEMAS.keys() == {f"patchctl.{verb}/1" for verb in ("error", *printed)}
    # Every word after the first two is the script's; the last prints formats of others.
    hands_on = {"script", "train", "sbom", "init"}
    assert {*cli.list_commands(click.Context(cli))} - hands_on == {verb.partition(".")[0] for verb in printed}


def test_pages_of_json_where_they_are_kept(made: Made, tmp_path: Path) -> None:
    kept = replace(made, root=Path(shutil.copytree(made.root, tmp_path / "distribution")))
    (kept.root / FOLDER).mkdir(parents=True)
    (kept.root / PAGE).write_text("# Ours\n")
    stale = [f["file"] for f in checked(kept, "lock", "--pages", "--check", code=1)["findings"]]
    assert PAGE in stale and f"{FOLDER}/status.json" in stale
    checked(kept, "lock", "--pages")
    mark = "<!-- generated"
    assert (kept.root / PAGE).read_text() == f"# Ours\n{mark}" + (REPO / PAGE).read_text().partition(mark)[2]
    assert PAGE not in {f["file"] for f in checked(kept, "lock", "--pages", "--check")["findings"]}


def test_drift(made: Made, tmp_path: Path) -> None:
    pin = git(made.origins / "greeter", "rev-parse", "HEAD").strip()
    found = checked(made, "bisect", "--profile", "full", "--", "grep", "-q", "Helo", "greeter/greeter/hello.py")
    assert found["broken"] == [["typo@greeter"]]
    last = tmp_path / "last.json"
    last.write_text(made.good("drift", "greeter", "--against", pin, "--json"))
    repo = Path(shutil.copytree(made.origins / "greeter", tmp_path / "greeter"))
    write_files(repo, {"greeter/hello.py": "def hello():\n    return 1\n"})
    git(repo, "commit", "--quiet", "-am", "anew")
    git(repo, "tag", "v9")
    args = ("greeter", "--mirror", f"greeter={repo}", "--against", "v9", "--baseline", str(last))
    found = checked(made, "drift", *args, code=1)
    assert found["broke"] and found["stacks"][0]["releases"][0]["patches"][0]["files"][0]["hunks"]
    assert found["stacks"][0]["releases"][0]["callers"][0]["names"]
    last.write_text(json.dumps(found))
    drawn = checked(made, "report", "--drift", str(last), "--out", str(tmp_path / "report.html"))
    assert drawn["patches"][0]["requires"] == [] and drawn["stacks"][0]["locked"]


def test_the_verbs_of_a_workspace(made: Made, tmp_path: Path) -> None:
    workspace = ("--workspace", str(tmp_path / "ws"))
    assert checked(made, "fetch", "--profile", "full")["sources"]
    assert checked(made, "apply", "--profile", "full", *workspace, "--dry-run")["trees"]
    checked(made, "apply", "--profile", "full", *workspace, "--without", "polite")
    assert checked(made, "status", *workspace, "--labels")["labels"]["patchctl.lock"]
    (tmp_path / "ws" / "greeter" / "README.md").write_text("mine\n")
    found = checked(made, "status", *workspace, "--python", shutil.which("python3") or "python3", code=1)
    greeter = found["trees"][1]
    assert greeter["edits"] and greeter["imports"] and greeter["left_out"]
    checked(made, "verify", *workspace, code=1)
    edited = checked(made, "drift", *workspace, code=1)["trees"]
    assert [f["hunks"][0]["owners"] for t in edited for f in t["files"]] == [["upstream"]]
    assert checked(made, "blame", f"{tmp_path}/ws/greeter/greeter/hello.py:1")["lines"]
    found = checked(made, "identify", str(tmp_path / "ws" / "greeter"), code=1)["trees"][0]
    assert found["differing"] and found["patches"]
    assert checked(made, "apply", "--profile", "plain", *workspace, "--stash")["stashed"]
    assert checked(made, "repair", *workspace)["healthy"]
    (tmp_path / "ws/.patchctl/journal.json").write_text("{")
    assert checked(made, "repair", *workspace, "--dry-run")["found"]
    assert checked(made, "repair", *workspace)["trees"]
    checked(made, "identify", str(tmp_path / "ws" / "greeter"))
    checked(made, "revert", *workspace)


def test_the_verbs_of_a_distribution(made: Made, tmp_path: Path) -> None:
    checked(made, "list")
    checked(made, "list", "stacks")
    checked(made, "show", "polite", "--diff")
    checked(made, "show", "step")
    checked(made, "doctor")
    assert checked(made, "lock", "--check")["stacks"]
    checked(made, "verify")
    checked(made, "edit", "greeter", "--dir", str(tmp_path / "edit"))
    checked(made, "new", "warm", "--stack", "greeter", "--dir", str(tmp_path / "new"))
    checked(made, "export", "greeter", "--check", "--dir", str(tmp_path / "edit"))
    assert checked(made, "export", "greeter", "--mbox", str(tmp_path / "mails"))["files"]
    found = checked(made, "import", str(tmp_path / "mails"), "--stack", "greeter/mine", "--dry-run")
    assert found["patches"] and found["candidates"]
    checked(made, "lock", "--pages")
    git(made.origins / "greeter", "commit", "--quiet", "--allow-empty", "-m", "the next one")
    git(made.origins / "greeter", "tag", "v9")
    assert checked(made, "pin", "greeter", "v9")["stack"] == "v9"
    hello = made.origins / "greeter/greeter/hello.py"
    hello.write_text(hello.read_text().replace('"Helo, "', '"Hallo, "'))
    git(made.origins / "greeter", "commit", "--quiet", "-a", "-m", "and another")
    assert checked(made, "rebase", "greeter/v1", "--to", "main", code=4)["stopped_at"]
    assert checked(made, "rebase", "--abort")["status"] == "aborted"
    assert checked(made, "rebase", "greeter/v1", "--to", "v9")["files"]


def test_the_verbs_of_recipes(tmp_path: Path) -> None:
    made = with_recipes(make_distribution(tmp_path))
    assert checked(made, "recipe.list")["recipes"]
    shown = checked(made, "recipe.show", "full/loud")
    assert shown["overrides"] and shown["environment"] and shown["paths"] and shown["data"]
    assert checked(made, "recipe.show", "full/loud", "--nodes", "3", code=1)["broken"]
    assert checked(made, "recipe.command", "full/loud")["overrides"]
    assert checked(made, "recipe.diff", "full/quiet", "full/loud")["differences"]
    assert checked(made, "recipe.env", "full/loud")["environment"]
    assert checked(made, "report", "--out", str(tmp_path / "report.html"))["recipes"]
    checked(made, "recipe.env", "full/laud", code=2)


def test_bundles(made: Made, tmp_path: Path) -> None:
    file = str(tmp_path / "full.tar")
    assert checked(made, "bundle.create", "--profile", "full", "--out", file)["sources"]
    checked(made, "bundle.verify", file)
    if shutil.which("ssh-keygen"):
        key = tmp_path / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        assert checked(made, "bundle.create", "--profile", "full", "--out", file, "--sign", str(key))["signature"]
        (tmp_path / "allowed").write_text(f"me@example.com {key.with_suffix('.pub').read_text()}")
        allowed = ("--allowed-signers", str(tmp_path / "allowed"))
        assert checked(made, "bundle.verify", file, *allowed)["signature"]["signers"]
    assert checked(made, "bundle.show", file, "--members")["members"]
    checked(made, "bundle.unpack", file, "--to", str(tmp_path / "unpacked"))
    assert checked(made, "fetch", "--bundle", file, "--profile", "full")["root"]
    (tmp_path / "full.tar").write_bytes(Path(file).read_bytes() + b"more")
    assert checked(made, "bundle.verify", file, code=3)["error"]["kind"] == "source-mismatch"


def test_what_could_not_be_had(tmp_path: Path) -> None:
    made = make_distribution(tmp_path)
    shutil.rmtree(made.origins / "clock")
    assert checked(made, "fetch", "--profile", "full", "--skip-unavailable")["skipped"]
    workspace = ("--workspace", str(tmp_path / "ws"))
    assert checked(made, "apply", "--profile", "full", *workspace, "--skip-unavailable")["skipped"]
    assert checked(made, "status", *workspace)["skipped"]
    line = ("bundle.create", "--profile", "full", "--out", str(tmp_path / "full.tar"), "--skip-unavailable")
    assert checked(made, *line)["missing"] and checked(made, *line)["skipped"]
    assert checked(made, "bundle.show", str(tmp_path / "full.tar"))["missing"]
    assert checked(made, "lock", code=3)["stacks"][0]["unavailable"]  # not written: the other one was
    assert checked(made, "verify", code=1)["not_checked"]
    assert any(f["tried"] for f in checked(made, "doctor", code=1)["findings"])
    assert checked(made, "apply", "--profile", "full", *workspace, code=3)["error"]["tried"]
    shutil.rmtree(made.cache)
    shutil.rmtree(made.origins)
    assert checked(made, "apply", "--profile", "full", *workspace, "--skip-unavailable")["kept"]
    fresh = ("--workspace", str(tmp_path / "fresh"))
    tried = checked(made, "apply", "--profile", "full", *fresh, "--skip-unavailable", code=3)["error"]["tried"]
    assert {place["upstream"] for place in tried} == {"greeter", "clock"}


def test_errors(tmp_path: Path) -> None:
    made = make_distribution(tmp_path)
    assert checked(made, "show", "polit", code=2)["error"]["hint"]
    workspace = ("--workspace", str(tmp_path / "ws"))
    checked(made, "apply", "--profile", "full", *workspace)
    (tmp_path / "ws" / "greeter" / "greeter" / "hello.py").write_text("# mine\n")
    assert checked(made, "revert", *workspace, code=5)["error"]["files"]
    made.edit("manifests/profiles/full.yaml", "summary:", "sumary:")
    assert checked(made, "list", code=2)["error"]["problems"]
