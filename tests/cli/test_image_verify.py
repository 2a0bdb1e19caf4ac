"""`patchctl image verify`: images in the three forms that engines write, the layers' rules, and archives that mean harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, REPO, Made, make_distribution

HELLO = "opt/patched/greeter/greeter/hello.py"


@dataclass(frozen=True)
class Applied:
    """A distribution, and the layer of an image with its profile applied at /opt/patched."""

    made: Made
    layer: bytes
    labels: dict[str, str]


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Applied:
    made = make_distribution(tmp_path_factory.mktemp("image"), (GREETER, CLOCK), lock=True)
    workspace = tmp_path_factory.mktemp("root") / "opt/patched"
    made.good("apply", "--profile", "full", "--workspace", str(workspace))
    text = made.good("status", "--labels", "--json", "--workspace", str(workspace))
    return Applied(made, tar_of(workspace, "opt/patched"), json.loads(text)["labels"])


def tar_of(folder: Path, name: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as layer:
        layer.add(folder, name)
    return out.getvalue()


def layer(*entries: tuple[str, bytes | tarfile.TarInfo]) -> bytes:
    """A layer of files by their bytes, and of entries of any kind."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, what in entries:
            info = what if isinstance(what, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            info.size = len(what) if isinstance(what, bytes) else 0
            made.addfile(info, io.BytesIO(what) if isinstance(what, bytes) else None)
    return out.getvalue()


def entry(kind: bytes, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, to
    return info


def packed(files: Mapping[str, bytes | tarfile.TarInfo], to: Path) -> Path:
    to.write_bytes(layer(*files.items()))
    return to


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def config_of(labels: Mapping[str, str], layers: Sequence[bytes], workspace: str = "/opt/patched") -> bytes:
    inner = {"Labels": labels, "Env": [f"PATCHCTL_WORKSPACE={workspace}"]}
    return json.dumps({"config": inner, "rootfs": {"diff_ids": [f"sha256:{sha256(one)}" for one in layers]}}).encode()


def oci(to: Path, layers: Sequence[bytes], labels: Mapping[str, str] | None = None, **instead: bytes) -> Path:
    """An OCI archive with gzipped layers; `instead`: what lies there in place of the bytes that the manifest names."""
    blobs = [gzip.compress(one) for one in layers]
    config = config_of(labels or {}, layers)

    def described(data: bytes) -> dict[str, Any]:
        return {"digest": f"sha256:{sha256(data)}", "size": len(data)}

    manifest = json.dumps({"config": described(config), "layers": [described(one) for one in blobs]}).encode()
    attestation = {**described(b"{}"), "platform": {"os": "unknown"}}
    tagged = {**described(manifest), "platform": {"os": "linux"}}  # one for each tag, as `docker save` writes it
    index = {"manifests": [tagged, {**tagged, "annotations": {"org.opencontainers.image.ref.name": "b"}}, attestation]}
    held = {sha256(one): one for one in (config, manifest, *blobs)}
    held |= {
        sha256({"config": config, "manifest": manifest, "layer": blobs[0]}[name]): data
        for name, data in instead.items()
    }
    files = {"oci-layout": b"{}", "index.json": json.dumps(index).encode()}
    return packed(files | {f"blobs/sha256/{name}": data for name, data in held.items()}, to)


def docker(
    to: Path, layers: Sequence[bytes], labels: Mapping[str, str] | None = None, workspace: str = "/opt/patched"
) -> Path:
    named: dict[str, bytes | tarfile.TarInfo] = {}
    for number, one in enumerate(layers):
        first = layers.index(one)  # what is there already is a link to it, before docker 25
        named[f"{number}/layer.tar"] = one if first == number else entry(tarfile.SYMTYPE, f"../{first}/layer.tar")
    manifest = json.dumps([{"Config": "config.json", "RepoTags": ["it:1"], "Layers": [*named]}]).encode()
    config = config_of(labels or {}, layers, workspace)
    return packed({"manifest.json": manifest, "config.json": config, **named}, to)


def exported(to: Path, layers: Sequence[bytes], labels: Mapping[str, str] | None = None) -> Path:
    """`docker export` of a container: its files alone."""
    to.write_bytes(layers[0])
    return to


def found(applied: Applied, image: Path, code: int, *args: str) -> dict[str, str]:
    """Of each finding its file, or its rule where it is the image's; after the exit code."""
    done = applied.made.patchctl("image", "verify", str(image), *args, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    data = json.loads(done.stdout)
    return {one["file"]: one["rule"] for one in data["findings"]} if code < 2 else {"": data["error"]["what"]}


FORMS: list[Callable[..., Path]] = [oci, docker, exported]


@pytest.mark.parametrize("form", FORMS, ids=["oci archive", "docker save", "docker export"])
def test_an_image_is_read_in_each_form(applied: Applied, form: Callable[..., Path], tmp_path: Path) -> None:
    empty = layer(("opt", entry(tarfile.DIRTYPE)))
    image = form(tmp_path / "image.tar", [applied.layer, empty, empty], applied.labels)
    done = applied.made.patchctl("image", "verify", str(image))
    assert done.returncode == 0 and "2 trees" in done.stdout, done.stdout + done.stderr


def test_it_is_read_from_standard_input(applied: Applied, tmp_path: Path) -> None:
    image = oci(tmp_path / "image.tar", [applied.layer], applied.labels)
    line = [sys.executable, "-m", "patchctl", f"--root={applied.made.root}", "image", "verify", "-"]
    with image.open("rb") as piped:
        done = subprocess.run(
            line,
            stdin=piped,
            env={"HOME": str(tmp_path), "PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0 and "2 trees" in done.stdout, done.stderr


@pytest.mark.parametrize("form", FORMS[:2], ids=["oci archive", "docker save"])
def test_a_file_that_a_layer_changes_is_found(applied: Applied, form: Callable[..., Path], tmp_path: Path) -> None:
    image = form(tmp_path / "image.tar", [applied.layer, layer((HELLO, b"import os\n"))], applied.labels)
    assert found(applied, image, 1) == {f"/{HELLO}": "file-changed"}


@pytest.mark.parametrize(
    ("upper", "files"),
    [
        ((("opt/patched/greeter/greeter/.wh.hello.py", b""),), {f"/{HELLO}": "file-changed"}),
        ((("opt/patched/greeter/.wh.greeter", b""),), None),
        ((("opt/patched/greeter/greeter/.wh..wh..opq", b""),), None),
        ((("opt/patched/.wh.greeter", b""),), {"/opt/patched/greeter": "tree-missing"}),
        (((HELLO, entry(tarfile.SYMTYPE, "manners.py")),), {f"/{HELLO}": "file-changed"}),
        (((HELLO, entry(tarfile.SYMTYPE, "/etc/hostname")),), {f"/{HELLO}": "file-changed"}),
        (((HELLO, entry(tarfile.DIRTYPE)),), {f"/{HELLO}": "file-changed"}),
        (((HELLO, entry(tarfile.FIFOTYPE)),), {f"/{HELLO}": "file-changed"}),
        (((HELLO, entry(tarfile.LNKTYPE, "opt/patched/greeter/README.md")),), {f"/{HELLO}": "file-changed"}),
        ((("opt/patched/greeter/torch.py", b""),), {"/opt/patched/greeter/torch.py": "untracked-file"}),
        ((("usr/lib/.wh.python3", b""), ("usr/lib/python3", b"")), {}),
    ],
    ids=[
        "gone",
        "folder gone",
        "opaque",
        "tree gone",
        "link",
        "link out",
        "folder",
        "pipe",
        "hard link",
        "module",
        "elsewhere",
    ],
)
def test_layers_go_over_each_other(
    applied: Applied, upper: tuple[Any, ...], files: dict[str, str] | None, tmp_path: Path
) -> None:
    image = oci(tmp_path / "image.tar", [applied.layer, layer(*upper)], applied.labels)
    seen = found(applied, image, 0 if files == {} else 1)
    if files is not None:
        assert seen == files
    else:
        assert set(seen.values()) == {"file-changed"} and f"/{HELLO}" in seen and len(seen) > 2


@pytest.mark.parametrize(
    ("name", "to", "rule"),
    [
        ("greeter/hello", "/opt/evil", "untracked-file"),
        ("greeter/hello", "../../../evil", "untracked-file"),
        ("greeter/hello", "../../../../../../evil", "untracked-file"),
        ("greeter/hello", "greeter/../evil", "untracked-file"),
        ("greeter/hello", "/opt", "untracked-file"),
        ("greeter/hello", "../../../..", "untracked-file"),
        ("greeter/hello", "/" + "a" * 3500, "untracked-file"),
        ("json.py", "/opt/evil/__init__.py", "untracked-file"),
        ("yaml", "/opt/evil", "untracked-file"),
        ("greeter/__pycache__", "/opt/evil", "byte-code"),
        ("greeter/__pycache__/hello.cpython-39.pyc", "/opt/evil/x.pyc", "byte-code"),
        ("greeter/hello.so", "/opt/patched/greeter/README.md", "untracked-file"),
    ],
    ids=[
        "absolute",
        "up",
        "over the root",
        "up in its middle",
        "above",
        "root",
        "long",
        "module",
        "top",
        "cache",
        "byte code",
        "inside",
    ],
)
def test_a_link_that_python_follows_is_found(applied: Applied, name: str, to: str, rule: str, tmp_path: Path) -> None:
    """The folder that it leads to is in the image, but in no tree: what is there is not unpacked."""
    path = f"opt/patched/greeter/{name}"
    evil = layer(("opt/evil/__init__.py", b"print('evil')\n"), (path, entry(tarfile.SYMTYPE, to)))
    image = docker(tmp_path / "image.tar", [applied.layer, evil], applied.labels)
    assert found(applied, image, 1) == {f"/{path}": rule}


def test_a_link_to_another_file_of_its_tree_is_no_finding(applied: Applied, tmp_path: Path) -> None:
    link = entry(tarfile.SYMTYPE, "/opt/patched/greeter/README.md")
    image = oci(tmp_path / "image.tar", [applied.layer, layer(("opt/patched/greeter/notes.txt", link))], applied.labels)
    assert set(found(applied, image, 0).values()) == {"untracked-file"}  # a note, as on disk


@pytest.mark.parametrize("first", [False, True], ids=["behind", "before"])
@pytest.mark.parametrize("gone", ["opt/patched/greeter/greeter/.wh.hello.py", "opt/patched/.wh.greeter", ".wh.opt"])
def test_what_a_layer_takes_away_and_brings_is_refused(
    applied: Applied, gone: str, first: bool, tmp_path: Path
) -> None:
    """podman of overlay keeps what was in the folder, of vfs it takes away what the layer brings."""
    upper = [(HELLO, b"import os\n"), (gone, b"")]
    image = oci(tmp_path / "image.tar", [applied.layer, layer(*upper[:: -1 if first else 1])], applied.labels)
    assert "takes it away" in found(applied, image, 2)[""]


@pytest.mark.parametrize("upper", [("greeter", entry(tarfile.DIRTYPE)), ("greeter/.wh.x", b"")], ids=["folder", "both"])
def test_a_folder_that_a_layer_takes_away_and_names_is_refused(
    applied: Applied, upper: tuple[str, Any], tmp_path: Path
) -> None:
    both = layer(("opt/patched/.wh.greeter", b""), (f"opt/patched/{upper[0]}", upper[1]))
    assert "takes it away" in found(applied, oci(tmp_path / "image.tar", [applied.layer, both]), 2)[""]


def test_a_folder_that_a_layer_makes_anew_is_the_layers(applied: Applied, tmp_path: Path) -> None:
    """Of an opaque folder the order within the layer says nothing."""
    again = io.BytesIO(applied.layer)
    with tarfile.open(fileobj=again, mode="a") as made:
        made.addfile(tarfile.TarInfo("opt/patched/.wh..wh..opq"))  # behind what the same layer brings
    old = layer((HELLO, b"old\n"), ("opt/patched/greeter/left", b""))
    assert found(applied, oci(tmp_path / "image.tar", [old, again.getvalue()], applied.labels), 0) == {}


def test_labels_have_to_name_what_the_image_holds(applied: Applied, tmp_path: Path) -> None:
    wrong = applied.labels | {"patchctl.tree.greeter": f"git:{'0' * 40}"}
    image = oci(tmp_path / "image.tar", [applied.layer], wrong)
    assert found(applied, image, 1) == {str(image): "label"}
    del wrong["patchctl.tree.greeter"]
    assert found(applied, oci(image, [applied.layer], wrong), 1) == {str(image): "label"}
    assert found(applied, oci(image, [applied.layer], {}), 1) == {str(image): "label"}


@pytest.mark.parametrize(
    ("label", "value", "code"),
    [
        ("patchctl.profile", "half", 1),
        ("patchctl.release", "2000.01", 1),
        ("patchctl.without", "loud", 1),
        ("patchctl.skipped", "clock", 1),
        ("patchctl.lock", "f" * 64, 1),
        ("patchctl.tree.other", f"git:{'0' * 40}", 1),
        ("patchctl.base.greeter", "0" * 40, 1),
        ("patchctl.version", "1.0", 0),
    ],
)
def test_each_label_is_compared(applied: Applied, label: str, value: str, code: int, tmp_path: Path) -> None:
    """But for the version, which is that of the patchctl in the image, and may be older than this."""
    image = docker(tmp_path / "image.tar", [applied.layer], applied.labels | {label: value})
    assert found(applied, image, code) == ({str(image): "label"} if code else {})


def test_what_was_verified_is_said(applied: Applied, tmp_path: Path) -> None:
    """The image chooses its workspace, and its own environment is no word that another place has nothing."""
    image = docker(tmp_path / "image.tar", [applied.layer], applied.labels)
    said = applied.made.good("image", "verify", str(image))
    assert said.startswith("the workspace /opt/patched, profile full\n") and "note" not in said
    assert applied.made.good("image", "verify", "--quiet", str(image)) == ""
    with tarfile.open(fileobj=io.BytesIO(applied.layer)) as old, tarfile.open(tmp_path / "moved", "w") as moved:
        for one in old:
            file = old.extractfile(one)
            one.name = one.name.replace("opt/patched", "srv/other")
            moved.addfile(one, file)
    layers = [(tmp_path / "moved").read_bytes(), layer((HELLO, b"import os\n"))]
    image = docker(image, layers, applied.labels, workspace="/srv/other")
    said = applied.made.good("image", "verify", str(image))
    assert said.startswith("the workspace /srv/other, profile full\n")
    assert "the image's own PATCHCTL_WORKSPACE names /srv/other" in said
    assert "note" not in applied.made.good("image", "verify", str(image), "--workspace", "/srv/other")


@pytest.mark.parametrize("form", [docker, exported], ids=["docker save", "docker export"])
def test_an_image_of_reverted_trees_is_no_pass(applied: Applied, form: Callable[..., Path], tmp_path: Path) -> None:
    workspace = tmp_path / "opt/patched"
    applied.made.good("apply", "--profile", "full", "--workspace", str(workspace))
    applied.made.good("revert", "--workspace", str(workspace))
    image = form(tmp_path / "image.tar", [tar_of(workspace, "opt/patched")])
    assert found(applied, image, 1) == {"/opt/patched": "tree-missing"}


def test_a_signed_statement_is_of_its_trees(applied: Applied, tmp_path: Path) -> None:
    made, workspace, stated = applied.made, tmp_path / "ws", tmp_path / "trees.json"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    signers = tmp_path / "signers"
    signers.write_text(f"patchctl@localhost {(tmp_path / 'key.pub').read_text()}")
    made.good("apply", "--profile", "full", "--workspace", str(workspace))
    sbom = ("sbom", "--profile", "full", "--format", "in-toto", "--workspace", str(workspace), "--out", str(stated))
    made.good(*sbom, "--sign", str(tmp_path / "key"))
    image = oci(tmp_path / "image.tar", [applied.layer], applied.labels)
    named = ("--statement", str(stated), "--statement-signers", str(signers))
    assert found(applied, image, 0, *named) == {}
    said = stated.read_text()
    tip = json.loads(said)["subject"][0]["digest"]["gitTree"]
    stated.write_text(said.replace(tip, "0" * 40))
    assert found(applied, image, 1, *named[:2]) == {str(stated): "statement"}
    assert "no trusted signature" in found(applied, image, 3, *named)[""]
    assert "--statement-signers is for a statement" in found(applied, image, 2, *named[2:])[""]


@pytest.mark.parametrize("part", ["config", "manifest", "layer"])
def test_a_part_that_is_not_its_digests_is_refused(applied: Applied, part: str, tmp_path: Path) -> None:
    other = gzip.compress(applied.layer, mtime=1) if part == "layer" else b'{"config": {}}'
    image = oci(tmp_path / "image.tar", [applied.layer], applied.labels, **{part: other})
    assert "is not what the image's manifest names" in found(applied, image, 3)[""]


def members(image: Path) -> dict[str, bytes | tarfile.TarInfo]:
    with tarfile.open(image) as held:
        return {one.name: file.read() if (file := held.extractfile(one)) else one for one in held}


@pytest.mark.parametrize("other", ["layer", "config"])
def test_two_images_in_one_archive_are_refused(applied: Applied, other: str, tmp_path: Path) -> None:
    """docker before 25 reads manifest.json, later ones index.json, as long as it is there."""
    layers = [applied.layer, *([layer((HELLO, b"import os\n"))] if other == "layer" else [])]
    labels = applied.labels | ({"patchctl.profile": "half"} if other == "config" else {})
    image = oci(tmp_path / "image.tar", [applied.layer], applied.labels)
    both = members(docker(tmp_path / "docker.tar", layers, labels)) | members(image)
    assert "is not what index.json names" in found(applied, packed(both, image), 3)[""]


def test_one_image_of_two_manifests_is_read(applied: Applied, tmp_path: Path) -> None:
    """As docker 25 writes it."""
    files = members(oci(tmp_path / "image.tar", [applied.layer], applied.labels))
    index = json.loads(files["index.json"])  # type: ignore[arg-type]
    name = index["manifests"][0]["digest"].replace("sha256:", "blobs/sha256/")
    manifest = json.loads(files[name])  # type: ignore[arg-type]
    named = [one["digest"].replace("sha256:", "blobs/sha256/") for one in (manifest["config"], *manifest["layers"])]
    files["manifest.json"] = json.dumps([{"Config": named[0], "Layers": named[1:]}]).encode()
    assert found(applied, packed(files, tmp_path / "image.tar"), 0) == {}


@pytest.mark.parametrize("config", [f"{'0' * 64}.json", f"blobs/sha256/{'0' * 64}", ""])
def test_a_name_that_says_another_digest_is_refused(applied: Applied, config: str, tmp_path: Path) -> None:
    held = config_of(applied.labels, [applied.layer])
    first = f"blobs/sha256/{'1' * 64}" if not config else "0/layer.tar"
    config = config or f"{sha256(held)}.json"
    manifest = json.dumps([{"Config": config, "Layers": [first]}]).encode()
    image = packed({"manifest.json": manifest, config: held, first: applied.layer}, tmp_path / "image.tar")
    assert "is not what the image's manifest names" in found(applied, image, 3)[""]


@pytest.mark.parametrize("name", ["manifest.json", "index.json"])
def test_the_files_of_a_container_that_seem_an_image_are_refused(applied: Applied, name: str, tmp_path: Path) -> None:
    image = packed({name: b"{}", "etc/hostname": b""}, tmp_path / "image.tar")
    done = applied.made.patchctl("image", "verify", str(image))
    assert done.returncode == 2 and f"it holds /{name}, as a saved image does, and /etc/hostname" in done.stderr
    assert "name the container" in done.stderr


def test_trees_that_were_patched_in_place_are_read_where_they_are(applied: Applied, tmp_path: Path) -> None:
    """As an image made by Dockerfile.into has them: the state names absolute folders, which are those of the image."""
    made, root = applied.made, tmp_path / "root"
    base = root / "srv/greeter"
    made.good("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"))
    made.good("revert", "--workspace", str(tmp_path / "ws"))
    (tmp_path / "ws/greeter").rename(base) if base.parent.mkdir(parents=True) is None else None
    (root / "opt").mkdir()
    made.good("apply", "--profile", "full", "--workspace", str(root / "opt/patched"), "--in-place", f"greeter={base}")
    text = made.good("status", "--labels", "--json", "--workspace", str(root / "opt/patched"))
    labels = json.loads(text)["labels"]
    state = root / "opt/patched/.patchctl/state.json"
    state.write_text(state.read_text().replace(str(root), ""))
    layers = [tar_of(root / "srv", "srv"), tar_of(root / "opt", "opt")]
    image = oci(tmp_path / "image.tar", layers, labels)
    assert found(applied, image, 0) == {}
    image = oci(image, [*layers, layer(("srv/greeter/greeter/hello.py", b""))], labels)
    assert found(applied, image, 1) == {"/srv/greeter/greeter/hello.py": "file-changed"}


@pytest.mark.parametrize(
    ("upper", "what"),
    [
        ((("../outside", b""),), "it has a member"),
        ((("opt/patched/../../outside", b""),), "it has a member"),
        ((("opt", entry(tarfile.SYMTYPE, "/tmp")),), "/opt is no folder"),
        (((HELLO, entry(tarfile.LNKTYPE, "etc/shadow")),), "is a hard link to a file elsewhere"),
    ],
    ids=["outside", "outside by a folder", "link above", "hard link out"],
)
def test_what_leads_out_of_the_image_is_refused(
    applied: Applied, upper: tuple[Any, ...], what: str, tmp_path: Path
) -> None:
    image = oci(tmp_path / "image.tar", [applied.layer, layer(*upper)], applied.labels)
    assert what in found(applied, image, 2)[""]
    assert not (tmp_path / "outside").exists()


def test_no_link_leads_to_this_machine(applied: Applied, tmp_path: Path) -> None:
    """A workspace here, which is in order, is not taken for the image's: not by one link, and not by two of which each seems to stay."""
    here = tmp_path / "here"
    applied.made.good("apply", "--profile", "full", "--workspace", str(here))
    deep = "/".join([".."] * 12)
    for links in (
        (("opt/patched", entry(tarfile.SYMTYPE, str(here))),),
        (
            ("opt/patched/a", entry(tarfile.SYMTYPE, ".")),
            ("opt/patched/.patchctl", entry(tarfile.SYMTYPE, f"a/{deep}{here}/.patchctl")),
        ),
        (("opt/patched/.patchctl", entry(tarfile.SYMTYPE, f"{deep}{here}/.patchctl")),),
    ):
        image = oci(tmp_path / "image.tar", [layer(*links)])
        assert "nothing was applied to /opt/patched in this image" in found(applied, image, 2)[""]


def test_an_images_own_workspace_is_not_this_machines(applied: Applied, tmp_path: Path) -> None:
    """A workspace here, which is in order, is not taken for that of an image whose environment leads up to it."""
    here = tmp_path / "here"
    applied.made.good("apply", "--profile", "full", "--workspace", str(here))
    up = "/.." * 12
    for workspace in (f"{up}{here}", f"/opt{up}{here}", "/", "//"):
        image = docker(tmp_path / "image.tar", [layer(("etc/hostname", b""))], workspace=workspace)
        assert "the workspace in the image is an absolute path below /" in found(applied, image, 2)[""]


def test_nothing_here_is_taken_away_by_a_layer(
    applied: Applied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers name what goes as `.wh.NAME`: of the name `..` that was the folder in which images are unpacked."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (temporary / "mine").write_text("mine\n")
    for workspace, gone in (("/", ".wh..."), ("/opt", "opt/.wh..."), ("/opt/patched", "opt/patched/.wh.")):
        image = docker(tmp_path / "image.tar", [layer(("x", b""), (gone, b""))], workspace=workspace)
        done = applied.made.patchctl("image", "verify", str(image), env={"TMPDIR": str(temporary)})
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert [one.name for one in temporary.iterdir()] == ["mine"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_temporary_folder_is_named(applied: Applied, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        image = docker(tmp_path / "image.tar", [applied.layer, layer((HELLO, b"x" * 200_000))])
        done = applied.made.patchctl("image", "verify", str(image), env={"TMPDIR": str(small)})
        assert done.returncode == 7 and f"{small}: the image cannot be unpacked" in done.stderr, done.stderr
        assert "set TMPDIR" in done.stderr and not any(small.iterdir())
    finally:
        subprocess.run(["umount", small], check=True)


def timed(seconds: float) -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.mtime = seconds
    return info


@pytest.mark.parametrize(
    ("upper", "what"),
    [
        ((HELLO, timed(1e300)), "OverflowError"),
        (("opt/patched/" + "a/" * 5000 + "b", b""), "folders deep"),
        ((HELLO, entry(tarfile.GNUTYPE_SPARSE)), "is a sparse file"),
    ],
    ids=["a time of no clock", "folders in folders", "sparse"],
)
def test_a_layer_that_no_engine_writes_is_one_error_and_leaves_nothing(
    applied: Applied, upper: tuple[str, Any], what: str, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    image = docker(tmp_path / "image.tar", [applied.layer, layer(upper)])
    done = applied.made.patchctl("image", "verify", str(image), env={"TMPDIR": str(temporary)})
    assert done.returncode == 2 and what in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not any(temporary.iterdir())


def test_a_limit_is_the_users(applied: Applied, tmp_path: Path) -> None:
    image = oci(tmp_path / "image.tar", [applied.layer, layer(("opt/patched/zeros", bytes(3 << 20)))], applied.labels)
    config = tmp_path / "config.yaml"
    for limit, code, said in ((2, 2, "images: {unpacked_mib: N}"), (16, 0, "")):
        config.write_text(f"images: {{unpacked_mib: {limit}}}\n")
        done = applied.made.patchctl("image", "verify", str(image), env={"PATCHCTL_CONFIG": str(config)})
        assert done.returncode == code and said in done.stderr, done.stdout + done.stderr


def test_a_compressed_image_and_a_pipe_are_named_with_what_reads_them(applied: Applied, tmp_path: Path) -> None:
    image = docker(tmp_path / "image.tar", [applied.layer])
    compressed = tmp_path / "image.tar.gz"
    compressed.write_bytes(gzip.compress(image.read_bytes()))
    done = applied.made.patchctl("image", "verify", str(compressed))
    assert done.returncode == 2 and "compressed with gzip" in done.stderr and "`gzip -dc FILE | " in done.stderr
    done = applied.made.patchctl("image", "verify", "/dev/null")
    assert done.returncode == 2 and "/dev/null: not a regular file" in done.stderr
    done = applied.made.patchctl("image", "verify", str(tmp_path))
    assert done.returncode == 2 and f"`tar -C {tmp_path} -cf - . | patchctl image verify -`" in done.stderr
    done = applied.made.patchctl("image", "verify", "-")
    assert done.returncode == 2 and "standard input: not an image that can be read" in done.stderr


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "not an image that can be read"),
        (b"no tar at all" * 100, "not an image that can be read"),
        (layer(("index.json", b"[]")), "not an image that can be read"),
        (layer(("index.json", b'{"manifests": []}')), "it holds 0 images"),
        (layer(("index.json", b'{"manifests": [{"digest": "sha256:00"}]}')), "which it does not hold"),
        (layer(("index.json", b'{"manifests": [{"digest": "md5:00"}]}')), "and not by sha256"),
        (layer(("manifest.json", b"[{}, {}]")), "it holds 2 images"),
        (layer(("etc/hostname", b"")), "nothing was applied to /opt/patched in this image"),
    ],
    ids=["empty", "text", "list", "no image", "no manifest", "md5", "two images", "no workspace"],
)
def test_what_is_no_image_is_one_error(applied: Applied, data: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(data)
    assert what in found(applied, tmp_path / "image.tar", 2)[""]


@pytest.mark.parametrize(
    ("name", "key", "other"),
    [
        ("index.json", "manifests", '"Manifests": [], "manifests"'),
        ("manifest.json", "Layers", '"Layers": [], "layers"'),
        ("manifest.json", "Layers", '"layers": [], "Layers"'),
        ("config.json", "diff_ids", '"diff_ids": [], "Diff_ids"'),
        ("config.json", "diff_ids", '"diff_id\\u017f": [], "diff_ids"'),
        ("config.json", "Labels", '"labels": {}, "Labels"'),
        ("config.json", "Env", '"ENV"'),
        ("config.json", "config", '"config": {}, "config"'),
    ],
)
def test_a_key_that_engines_read_otherwise_is_refused(
    applied: Applied, name: str, key: str, other: str, tmp_path: Path
) -> None:
    """They take it in any case, and the last: another layer could be the one that is verified."""
    files = members((oci if name == "index.json" else docker)(tmp_path / "image.tar", [applied.layer], applied.labels))
    data = files[name]
    assert isinstance(data, bytes)
    files[name] = data.replace(f'"{key}"'.encode(), other.encode(), 1)
    said = found(applied, packed(files, tmp_path / "image.tar"), 2)[""]
    assert "not an image that can be read: ValueError" in said and ("is spelled" in said or "twice" in said)


def test_labels_may_differ_in_case(applied: Applied, tmp_path: Path) -> None:
    """They are names of the image's own, in a map, of which engines take none for another."""
    image = oci(tmp_path / "image.tar", [applied.layer], applied.labels | {"Name": "a", "name": "b", "digest": "c"})
    assert found(applied, image, 0) == {}


def test_a_workspace_elsewhere_is_named(applied: Applied, tmp_path: Path) -> None:
    image = oci(tmp_path / "image.tar", [applied.layer], applied.labels)
    assert "nothing was applied to /srv" in found(applied, image, 2, "--workspace", "/srv")[""]
    assert "an absolute path" in found(applied, image, 2, "--workspace", "srv")[""]


@pytest.fixture
def podman(applied: Applied, tmp_path: Path) -> Iterator[str]:
    """The name of an image, and of a container made from it, that podman has."""
    if not shutil.which("podman") or os.geteuid() != 0:
        pytest.skip("no podman, or not root: no engine has images here")
    name, root = f"patchctl-test-{os.getpid()}", tmp_path / "root.tar"
    root.write_bytes(applied.layer)
    labels = [word for pair in applied.labels.items() for word in ("--change", "LABEL {}={}".format(*pair))]
    environment = ["--change", "ENV PATCHCTL_WORKSPACE=/opt/patched", "--change", 'CMD ["/bin/true"]']
    made = ["podman", "create", "--name", name, f"localhost/{name}:1"]
    imported = ["podman", "import", *labels, *environment, str(root), f"localhost/{name}:1"]
    for line in (imported, made, ["podman", "mount", name]):
        said = subprocess.run(line, capture_output=True, text=True)
        if said.returncode != 0:
            pytest.skip(f"podman can hold no container here: {said.stderr.strip()}")
    yield name
    subprocess.run(["podman", "rm", "--force", name], check=True, capture_output=True)
    subprocess.run(["podman", "rmi", "--force", f"localhost/{name}:1"], check=True, capture_output=True)


def test_an_engines_image_and_container_are_found_by_name(applied: Applied, podman: str) -> None:
    """Both with their labels; a container with what was changed in it since."""
    for name in (f"localhost/{podman}:1", podman):
        done = applied.made.patchctl("image", "verify", name)
        assert done.returncode == 0 and "2 trees" in done.stdout, done.stdout + done.stderr
    mounted = subprocess.run(["podman", "mount", podman], check=True, capture_output=True, text=True).stdout.strip()
    (Path(mounted) / HELLO).write_text("import os\n")
    state = Path(mounted) / "opt/patched/.patchctl/state.json"
    state.write_text(state.read_text().replace('"full"', '"half"'))
    done = applied.made.patchctl("image", "verify", podman, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    seen = {one["file"]: one["rule"] for one in json.loads(done.stdout)["findings"]}
    assert seen[f"/{HELLO}"] == "file-changed" and seen[podman] == "label"


def engine(folder: Path, applied: Applied, mounts: Sequence[str] = (), tmpfs: Sequence[str] = ()) -> Path:
    """A `podman` in this folder that knows one container, `it`; it leaves a file `ran` where it is run."""
    folder.mkdir()
    inner = {"Labels": applied.labels, "Env": ["PATCHCTL_WORKSPACE=/opt/patched"]}
    (folder / "container.json").write_text(
        json.dumps([inner, [{"Destination": one} for one in mounts], {"Tmpfs": dict.fromkeys(tmpfs, "")}])
    )
    (folder / "root.tar").write_bytes(applied.layer)
    tool = folder / "podman"
    tool.write_text(
        f'#!/bin/sh\ntouch ran\ncase "$1" in\ncontainer) cat {folder}/container.json;;\n'
        f'export) cp {folder}/root.tar "$3";;\n*) exit 1;;\nesac\n'
    )
    tool.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("place", "mounted"),
    [
        ("/opt/patched", True),
        ("/opt", True),
        ("/opt/patched/greeter/greeter", True),
        ("/opt/patched2", False),
        ("/data", False),
    ],
)
@pytest.mark.parametrize("kind", ["mounts", "tmpfs"])
def test_a_container_whose_trees_are_a_mount_is_refused(
    applied: Applied, place: str, mounted: bool, kind: str, tmp_path: Path
) -> None:
    """`export` has the image's files there, which the container does not run."""
    path = f"{engine(tmp_path / 'bin', applied, **{kind: [place]})}:/usr/bin:/bin"
    done = applied.made.patchctl("image", "verify", "it", env={"PATH": path})
    assert done.returncode == (2 if mounted else 0), done.stdout + done.stderr
    if mounted:
        assert f"it: {place} is a mount" in done.stderr
        assert "in the container: `patchctl verify --workspace /opt/patched`" in done.stderr


def test_an_engine_in_the_current_folder_is_not_run(applied: Applied, tmp_path: Path) -> None:
    engine(tmp_path / "here", applied)
    git = Path(shutil.which("git") or "").parent
    for path in (f".:{git}", f":{git}"):
        done = subprocess.run(
            [sys.executable, "-m", "patchctl", f"--root={applied.made.root}", "image", "verify", "no-such-image"],
            cwd=tmp_path / "here",
            env={"HOME": str(tmp_path), "PYTHONPATH": str(REPO), "PATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2 and not (tmp_path / "here/ran").exists(), done.stderr


@pytest.mark.parametrize("name", ["no-such-image", "-x", "no such name", "a\nb"])
def test_a_name_that_nothing_has_is_one_error(applied: Applied, name: str) -> None:
    done = applied.made.patchctl("image", "verify", "--json", "--", name)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 2 and error["what"].startswith("no such file, and no image or container"), done.stdout


def test_a_file_that_is_not_there_is_no_name(applied: Applied, tmp_path: Path) -> None:
    assert found(applied, tmp_path / "image.tar", 2)[""] == "there is no such file"
