"""The images, built and run for real with buildah on a stand-in base (conftest.py says what it stands for)."""

from __future__ import annotations

import json

import pytest
import yaml
from images import CERTIFICATES, REPO, Image, build, buildah

PROFILE = "qwen3-235b"
DISTRIBUTIONS = {"verl": "verl", "vllm": "vllm", "vllm_ascend": "vllm-ascend", "megatron.core": "megatron-core"}
WHERE = """
import importlib.metadata, importlib.util, json, sys
found = {}
for module, distribution in json.loads(sys.argv[1]).items():
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        continue
    spec = importlib.util.find_spec(module.partition(".")[0])
    found[module] = [version, next(iter(spec.submodule_search_locations))]
print(json.dumps(found))
"""


def locked_trees() -> dict[str, dict[str, str]]:
    """By upstream of the profile: its tip trees by form, as the lock files have them."""
    profile = yaml.safe_load((REPO / f"manifests/profiles/{PROFILE}.yaml").read_text())
    found = {}
    for upstream, stack in profile["stacks"].items():
        lock = json.loads((REPO / f"manifests/locks/{upstream}/{stack}.json").read_text())
        (whole,) = [one for one in lock["results"] if not one["without"]]
        found[upstream] = {form: one["tip_tree"] for form, one in whole["forms"].items() if one != "unknown"}
    return found


def test_labels_say_what_the_image_holds(image: Image) -> None:
    labels = image.config["Labels"]
    assert labels["patchctl.profile"] == PROFILE
    said = image.run("patchctl", "labels", "--json")
    assert said.returncode == 0, said.stderr
    inside = json.loads(said.stdout)["labels"]
    assert inside.items() <= labels.items()
    assert len(labels["patchctl.lock"]) == 64
    locked, skipped = locked_trees(), labels["patchctl.skipped"].split(",")
    assert {name for name in locked if name not in skipped} == {
        name.removeprefix("patchctl.tree.") for name in labels if name.startswith("patchctl.tree.")
    }
    for upstream in locked:
        if upstream not in skipped:
            form, _, tree = labels[f"patchctl.tree.{upstream}"].partition(":")
            assert tree == locked[upstream][form], upstream


def test_healthy_as_built_and_as_another_user(image: Image) -> None:
    for user in ("", "1000:1000"):
        found = image.health(user=user)
        assert (found.returncode, found.stdout) == (0, ""), f"{user}: {found.stdout}{found.stderr}"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("echo '# one line' >> /opt/patched/vllm/vllm/envs.py", "vllm/envs.py"),
        ("rm /opt/patched/verl/verl/protocol.py", "verl/protocol.py"),
    ],
)
def test_a_changed_tree_is_unhealthy(image: Image, changed: str, named: str) -> None:
    found = image.health(changed=changed)
    assert found.returncode == 1
    assert named in found.stdout


def test_health_takes_no_lock(image: Image) -> None:
    """Another run may hold the workspace, for days."""
    lock = "/opt/patched/.patchctl/lock"
    hold = f"import fcntl, time; f = open('{lock}', 'a'); fcntl.flock(f, fcntl.LOCK_EX); time.sleep(600)"
    held = f"import fcntl; fcntl.flock(open('{lock}', 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    script = f"""/usr/bin/python3 -c "{hold}" & sleep 2
/usr/bin/python3 -c "{held}" 2>/dev/null && exit 9
patchctl verify -w /opt/patched --quiet; code=$?; kill %1; exit $code"""
    assert image.run("/bin/sh", "-c", script).returncode == 0


def test_the_environment_imports_the_patched_trees(image: Image) -> None:
    done = image.run("python3", "-c", WHERE, json.dumps(DISTRIBUTIONS))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    versions = {"verl": "0.6.0", "vllm": "0.14.1", "vllm_ascend": "0.14.0rc1", "megatron.core": "0.12.1"}
    for module, (version, folder) in found.items():
        assert version.partition("+")[0] == versions[module], module
        assert folder.startswith("/opt/patched/"), module
    assert set(found) == set(DISTRIBUTIONS)
    agreed = image.run("patchctl", "status", "--python", "python3")
    assert agreed.returncode == 0, agreed.stdout


def test_what_the_practice_needs_is_there(image: Image) -> None:
    done = image.run("/bin/sh", "-c", "command -v ifconfig git && test -e /usr/local/lib/libjemalloc.so.2")
    assert done.returncode == 0, done.stdout


def test_nothing_of_the_build_stays(image: Image) -> None:
    """This machine's certificates were mounted for the build; caches and the index are not for the image."""
    done = image.run("/bin/sh", "-c", "ls -A /root/.cache 2>/dev/null; ls /context 2>/dev/null; true")
    assert "patchctl" not in done.stdout
    if CERTIFICATES.exists():
        inside = image.run("/bin/cat", str(CERTIFICATES)).stdout
        assert inside != CERTIFICATES.read_text()


def test_the_command_runs_without_cann(image: Image) -> None:
    config = image.config
    assert config["Entrypoint"] == ["/opt/patchctl/image/entrypoint.sh"]
    done = image.run(*config["Entrypoint"], "patchctl", "--version")
    assert done.returncode == 0 and "patchctl" in done.stdout


def test_an_image_that_holds_vllm_is_patched_in_place(image_into: Image) -> None:
    labels = image_into.config["Labels"]
    locked = locked_trees()
    for upstream in ("vllm", "vllm-ascend"):
        form, _, tree = labels[f"patchctl.tree.{upstream}"].partition(":")
        assert tree == locked[upstream][form]
    done = image_into.run("python3", "-c", WHERE, json.dumps(DISTRIBUTIONS))
    found = json.loads(done.stdout)
    assert found["vllm"][1] == "/vllm-workspace/vllm/vllm"
    assert found["vllm_ascend"][1] == "/vllm-workspace/vllm-ascend/vllm_ascend"
    assert found["verl"][1].startswith("/opt/patched/")
    assert image_into.health().returncode == 0
    changed = image_into.health(changed="echo '#' >> /vllm-workspace/vllm-ascend/vllm_ascend/envs.py")
    assert changed.returncode == 1 and "vllm_ascend/envs.py" in changed.stdout


def test_a_build_that_fails_leaves_no_image(base: str) -> None:
    name = "localhost/patchctl-test-broken"
    with pytest.raises(AssertionError, match="has the feature"):
        build(name, "--base", base, "--apply", "--skip-unavailable --without no_feature_of_ours")
    assert buildah("inspect", "--type", "image", name, check=False).returncode != 0
