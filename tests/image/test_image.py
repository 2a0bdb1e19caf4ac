"""The images, built and run for real with buildah on stand-in bases (bases.py says what they stand for)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from bases import BARE, COMPILED, SYSTEM, VERL, VLLM_ASCEND, Layout
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from differences import differences
from images import CERTIFICATES, PROFILE, RELEASE, RELEASES_PROFILE, REPO, Image, build, buildah, digest, stack
from pins import distribution, import_name, index_version, stack_of

from patchctl import __version__

DISTRIBUTIONS = {"verl": "verl", "vllm": "vllm", "vllm_ascend": "vllm-ascend", "megatron.core": "megatron-core"}
REFUSED = "localhost/patchctl-test-refused"
PROFILES_TREES = ("verl", "vllm", "vllm-ascend", "megatron-lm", "mindspeed")
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


def locked_tree(upstream: str, form: str, lacking: set[str]) -> str:
    """The tip tree that the lock file promises for a form of a source, less these features."""
    lock = json.loads((REPO / f"manifests/locks/{upstream}/{stack(upstream).name}.json").read_text())
    found = [
        one
        for result in lock["results"]
        if isinstance(one := result["forms"].get(form), dict) and {*result["without"], *one["unavailable"]} == lacking
    ]
    (promised,) = found
    return str(promised["tip_tree"])


def check_labels(image: Image) -> None:
    """They are what `patchctl status --labels` says inside, and each tree is the one that the lock promises."""
    said = image.run("patchctl", "status", "--labels", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["labels"].items() <= image.labels.items()
    status = json.loads(image.run("patchctl", "status", "--json").stdout)
    lacking = {tree["upstream"]: {one["feature"] for one in tree["left_out"]} for tree in status["trees"]}
    trees = {name.removeprefix("patchctl.tree."): value for name, value in image.labels.items() if ".tree." in name}
    skipped = set(filter(None, image.labels["patchctl.skipped"].split(",")))
    assert trees.keys() == lacking.keys() and trees.keys() | skipped == set(PROFILES_TREES)
    for upstream, value in trees.items():
        form, _, tree = value.partition(":")
        assert tree == locked_tree(upstream, form, lacking[upstream]), upstream
    assert image.labels["patchctl.without"] == ",".join(sorted(set().union(*lacking.values())))
    assert image.labels["patchctl.profile"] == PROFILE and len(image.labels["patchctl.lock"]) == 64
    assert (
        image.labels["patchctl.release"] == RELEASES_PROFILE.release
        and f"PATCHCTL_RELEASE={RELEASE or ''}" in image.config["Env"]
    )


def test_labels_say_what_the_image_holds(image: Image) -> None:
    check_labels(image)


def test_labels_say_where_it_came_from(image: Image, image_into: Image) -> None:
    label = "org.opencontainers.image."
    revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    for one, base in ((image, BARE.image), (image_into, VLLM_ASCEND.image)):
        found = {name.removeprefix(label): value for name, value in one.labels.items() if name.startswith(label)}
        assert (found["base.name"], found["base.digest"]) == (base, digest(base))
        assert found["revision"].removesuffix("-dirty") == revision.strip()
        assert found["version"] == __version__ and "source" in found
        assert (datetime.now().astimezone() - datetime.fromisoformat(found["created"])).total_seconds() < 3600


def test_it_holds_its_bill_of_materials_and_how_its_trees_were_made(image: Image, image_into: Image) -> None:
    for one in (image, image_into):
        said = one.run("cat", one.labels["patchctl.sbom"]).stdout
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(said) is None
        statement = one.labels["patchctl.statement"]
        trees = {
            tree["name"]: tree["digest"]["gitTree"] for tree in json.loads(one.run("cat", statement).stdout)["subject"]
        }
        labels = {n.removeprefix("patchctl.tree."): v.split(":")[1] for n, v in one.labels.items() if ".tree." in n}
        assert trees == labels and all(tree in said for tree in trees.values())
        checked = one.run("patchctl", "verify", "--workspace", "/opt/patched", "--statement", statement)
        assert checked.returncode == 0, checked.stdout


def test_its_trees_are_checked_from_outside(image: Image, image_into: Image, tmp_path: Path) -> None:
    """From an OCI archive, without a container, also where the base's trees are patched in place; and a changed file is found."""
    for one in (image, image_into):
        archive = tmp_path / "image.tar"
        buildah("push", one.name, f"oci-archive:{archive}")
        done = verified(archive)
        assert done.returncode == 0, done.stdout + done.stderr
        archive.unlink()
    changed = buildah("from", "--pull-never", image.name).stdout.strip()
    try:
        buildah(
            "run", "--user", "0", changed, "--", "/bin/sh", "-c", "echo '# more' >> /opt/patched/verl/verl/__init__.py"
        )
        buildah("commit", "--quiet", changed, f"oci-archive:{tmp_path}/changed.tar")
    finally:
        buildah("rm", changed)
    done = verified(tmp_path / "changed.tar")
    assert done.returncode == 1 and "/opt/patched/verl/verl/__init__.py" in done.stdout, done.stdout + done.stderr


def verified(archive: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "patchctl", f"--root={REPO}", "image", "verify", str(archive)]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True)


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
    on_index = [upstream for upstream in distribution().upstreams if stack(upstream).pin.sdist]
    versions = {import_name(upstream): index_version(stack(upstream)) for upstream in on_index}
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


def test_the_system_layer_is_small(image: Image) -> None:
    """No compilers without a native build, nothing of a download, and no build output of patchctl's own."""
    distribution = "/opt/patchctl/distribution"
    left = image.run(
        "/bin/sh",
        "-c",
        f"""command -v gcc g++ cc cmake
find /var/lib/apt/lists /var/cache/apt /var/log/apt -type f 2>/dev/null; find {distribution} -name build -o -name '*.egg-info'""",
    )
    assert left.stdout == ""


def test_trees_are_repositories_for_every_user(image: Image, image_into: Image) -> None:
    for one in (image, image_into):
        folders = [tree["folder"] for tree in json.loads(one.run("patchctl", "status", "--json").stdout)["trees"]]
        repositories = [f for f in folders if one.run("test", "-e", f"{f}/.git").returncode == 0]
        assert repositories
        logs = "&&".join(f"git -C {folder} log --oneline -1" for folder in repositories)
        done = one.run("/bin/sh", "-c", logs, user="4321:4321")
        assert done.returncode == 0, done.stderr


def test_no_folder_of_the_build_is_remembered(image: Image) -> None:
    state = image.run("cat", "/opt/patched/.patchctl/state.json").stdout
    assert json.loads(state)["root"] == "/opt/patchctl/distribution"
    assert "/root/" not in state and "/tmp/" not in state
    assert re.search(r'"origin": "bundle /context/[0-9a-f]{64}\.bundle"', state)


@pytest.mark.heavy("builds an image again")
def test_two_builds_differ_in_nothing_but_times(image: Image, image_again: Image) -> None:
    assert differences(image.name, image_again.name) == []
    # A copy from another stage is called by a digest over its times, too.
    steps = [[re.sub(r":[0-9a-f]{64} ", ": ", step) for step in one.history] for one in (image, image_again)]
    assert steps[0] == steps[1]
    assert not list(REPO.glob("*.bundle*"))


@pytest.mark.heavy("builds an image again")
def test_a_tool_that_is_named_by_its_path_does_all_of_it(image_again: Image) -> None:
    calls = image_again.build_log.split()
    assert {"build", "from", "run", "config", "commit", "inspect", "rmi"} <= set(calls)


def imports(image: Image) -> dict[str, str]:
    """By import package: the folder that the image's Python finds it in."""
    done = image.run("python3", "-c", WHERE, json.dumps(DISTRIBUTIONS | {"mindspeed": "mindspeed"}))
    return {module: place for module, (_, place) in json.loads(done.stdout).items()}


def check_patched_in_place(image: Image, layout: Layout) -> None:
    """Its trees are the profile's, where they were, as they were installed, with what was compiled there, and not copied."""
    check_labels(image)
    assert image.health().returncode == 0
    status = json.loads(image.run("patchctl", "status", "--json").stdout)
    into = {tree["upstream"]: tree["folder"] for tree in status["trees"] if tree["kind"] == "into"}
    assert into == dict(layout.folders)
    compiled = f"cd {layout.folders['vllm-ascend']} && sha256sum {' '.join(COMPILED)} vllm_ascend/_build_info.py"
    site = f"ls -A {SYSTEM.site} | grep '^__editable___.*_finder.py'"
    owner = f"stat -c %u:%g {' '.join(f'{folder}/README.md' for folder in into.values())}"
    for question in (compiled, site, owner):
        now, before = (one.run("/bin/sh", "-c", question) for one in (image, Image(layout.image)))
        said = f"{now.stderr}{before.stderr}"
        assert (now.returncode, now.stdout) == (0, before.stdout) and before.returncode == 0, said


def test_a_base_like_vllm_ascends_is_patched_in_place(image_into: Image) -> None:
    check_patched_in_place(image_into, VLLM_ASCEND)
    found = imports(image_into)
    assert found["vllm"] == "/vllm-workspace/vllm/vllm"
    assert found["vllm_ascend"] == "/vllm-workspace/vllm-ascend/vllm_ascend"
    assert found["verl"].startswith("/opt/patched/")
    changed = image_into.health(changed="echo '#' >> /vllm-workspace/vllm-ascend/vllm_ascend/envs.py")
    assert changed.returncode == 1 and "vllm_ascend/envs.py" in changed.stdout


def test_a_base_like_verls_has_all_trees_patched_in_place(image_verl: Image) -> None:
    check_patched_in_place(image_verl, VERL)
    assert image_verl.labels["patchctl.skipped"] == ""
    assert {f"{key}={value}" for key, value in VERL.environment.items()} <= set(image_verl.config["Env"])
    changed = image_verl.health(changed="echo '#' >> /Megatron-LM/megatron/core/packed_seq_params.py")
    assert changed.returncode == 1 and "packed_seq_params.py" in changed.stdout


def test_a_tree_of_another_revision_stops_the_build(image_into: Image) -> None:
    find = ("/opt/patchctl/venv/bin/python", "/opt/patchctl/image/find_trees.py", PROFILE, "python3")
    changed = "echo '#' >> /vllm-workspace/vllm/vllm/envs.py"
    refused = image_into.run(*find, changed=changed)
    assert refused.returncode == 3
    assert (
        f"/vllm-workspace/vllm, which is not the profile's {stack('vllm').name}" in refused.stderr
        and "vllm/envs.py" in refused.stderr
    )
    left_alone = image_into.run(*find, "vllm=", changed=changed)
    assert left_alone.returncode == 0, left_alone.stderr
    assert "vllm-ascend=/vllm-workspace/vllm-ascend" in left_alone.stdout.splitlines()
    assert "vllm=" not in left_alone.stdout.splitlines()


def test_a_base_that_is_no_pin_is_patched_where_no_patch_meets_the_difference(image_into: Image) -> None:
    """As verl's own images clone heads of maintenance branches: asked for, told in the state and the labels, and in order."""
    name, base = "localhost/patchctl-test-on-this-base", "localhost/patchctl-test-no-pin"
    container = buildah("from", "--pull-never", VLLM_ASCEND.image).stdout.strip()
    buildah("run", container, "--", "/bin/sh", "-c", "echo '#' >> /vllm-workspace/vllm/vllm/logger.py")
    buildah("commit", "-q", "--format", "docker", "--rm", container, base)
    try:
        image = build(
            name, "--in-place", "--base", base, "--apply", "--skip-unavailable --on-this-base", "--no-runtime"
        )
        assert image.health().returncode == 0
        status = json.loads(image.run("patchctl", "status", "--json").stdout)
        differing = {tree["upstream"]: tree["differing"] for tree in status["trees"] if tree["kind"] == "into"}
        assert differing == {"vllm": ["vllm/logger.py"], "vllm-ascend": []}
        assert {label for label in image.labels if label.startswith("patchctl.base.")} == {"patchctl.base.vllm"}
        assert image.labels["patchctl.tree.vllm"] != image_into.labels["patchctl.tree.vllm"]
    finally:
        buildah("rmi", "-f", name, base, check=False)


OTHERS = next(one for one in distribution().variants[PROFILE] if one.release != RELEASES_PROFILE.release)


def test_a_base_of_another_release_stops_the_build(image_into: Image) -> None:
    """Its trees are named, and its Python is, which a base that brings its own runtime may have."""
    with pytest.raises(AssertionError) as refused:
        build(REFUSED, "--in-place", "--base", VLLM_ASCEND.image, "--no-runtime", release=OTHERS.release)
    said, pin = str(refused.value), stack_of("vllm", PROFILE, OTHERS.release).name
    assert f"{PROFILE} wants {OTHERS.runtime['python']} on release {OTHERS.release}" in said
    assert f"/vllm-workspace/vllm, which is not the profile's {pin}" in said
    assert buildah("inspect", "--type", "image", REFUSED, check=False).returncode != 0


def test_a_python_that_the_lock_is_not_for_stops_the_build(base: str) -> None:
    """Before anything is fetched."""
    with pytest.raises(AssertionError) as refused:
        build(REFUSED, "--base", base, release=OTHERS.release)
    said = str(refused.value)
    assert f"is Python {SYSTEM.python}." in said and f"{PROFILE} wants {OTHERS.runtime['python']}" in said
    assert "applied" not in said and "install.sh" not in said


@pytest.mark.slow
def test_every_wheel_of_the_lock_is_installed(base: str, bundle: Path) -> None:
    """But those that another index has, as torch's CPU builds: they are left out by name, and the image says so."""
    elsewhere = REPO / "manifests/requirements" / str(RELEASES_PROFILE.requirements) / "x86_64-elsewhere.txt"
    name, left_out = "localhost/patchctl-test-wheels", re.findall(r"(?m)^([a-z0-9-]+)==", elsewhere.read_text())
    options = [word for one in left_out for word in ("--leave-out", one)]
    image = build(name, "--base", base, "--bundle", str(bundle), "--apply", "--skip-unavailable", *options)
    try:
        assert all(f"left out, as LEAVE_OUT asks: {one}==" in image.build_log for one in left_out)
        assert image.labels["patchctl.left_out"] == " ".join(left_out)
        lock = image.run("patchctl", "requirements", "--profile", PROFILE, "--platform", "x86_64").stdout
        wanted = dict(re.findall(r"(?m)^([a-z0-9-]+)==(\S+)", lock))
        assert len(wanted) > 200 and not wanted.keys() & set(left_out)
        installed = json.loads(image.run("python3", "-m", "pip", "list", "--format", "json").stdout)
        have = {re.sub(r"[-_.]+", "-", one["name"]).lower(): one["version"] for one in installed}
        assert {one: have.get(one) for one in wanted} == wanted
        assert image.health().returncode == 0
    finally:
        buildah("rmi", "-f", name, check=False)


@pytest.mark.heavy("a minute of a build")
def test_a_build_that_fails_leaves_no_image(base: str) -> None:
    name = "localhost/patchctl-test-broken"
    with pytest.raises(AssertionError, match="has no feature"):
        build(name, "--base", base, "--no-runtime", "--apply", "--skip-unavailable --without no_feature_of_ours")
    assert buildah("inspect", "--type", "image", name, check=False).returncode != 0
