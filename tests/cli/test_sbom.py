"""`patchctl sbom`: valid documents of both formats, with what the distribution and a workspace hold, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, REPO, Made, make_distribution, run_patchctl
from pins import profile_on
from requirement_sets import NEEDS, VERSIONS, with_set

from patchctl.sbom.contents import _said

FORMATS = ("cyclonedx", "spdx")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    greeter = replace(GREETER, files={**GREETER.files, "needs.txt": NEEDS["greeter"]}, sdist=("greeter/hello.py",))
    clock = replace(CLOCK, files={**CLOCK.files, "needs.txt": NEEDS["clock"]})
    return with_set(make_distribution(tmp_path_factory.mktemp("sbom"), (greeter, clock), lock=True))


def check(text: str, form: str, folder: Path) -> None:
    """The validators of the libraries: the schema of CycloneDX, and SPDX's own rules.

    Imported here: they take two seconds to import, in each process that collects tests.
    """
    if form == "cyclonedx":
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator

        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        return
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    (folder / "document.spdx.json").write_text(text)
    document = parse_file(str(folder / "document.spdx.json"))
    assert [one.validation_message for one in validate_full_spdx_document(document)] == []


def cyclonedx(made: Made, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.good("sbom", "--format", "cyclonedx", *args))
    return found


def by_name(components: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in components}


def facts(one: dict[str, Any]) -> dict[str, str]:
    return {p["name"].removeprefix("patchctl:"): p["value"] for p in one.get("properties", ())}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("profile", ["full", "plain"])
def test_a_document_is_valid(made: Made, form: str, profile: str, tmp_path: Path) -> None:
    check(made.good("sbom", "--profile", profile, "--format", form), form, tmp_path)


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_distribution_gives_the_same_bytes_anywhere(made: Made, form: str, tmp_path: Path) -> None:
    other = replace(made, root=tmp_path / "elsewhere", cache=tmp_path / "cache")
    shutil.copytree(made.root, other.root)
    text = made.good("sbom", "--profile", "full", "--format", form)
    assert other.good("sbom", "--profile", "full", "--format", form, "--out", "it.json") == "wrote it.json\n"
    assert (tmp_path / "home" / "it.json").read_text() == text
    other.edit("patches/greeter/v1/polite/files/greeter/manners.py", ", please", ", pray")
    changed = other.good("sbom", "--profile", "full", "--format", form)
    serial = "serialNumber" if form == "cyclonedx" else "documentNamespace"
    assert json.loads(changed)[serial] != json.loads(text)[serial]


def test_an_upstream_has_its_pin_and_its_patches_as_pedigree(made: Made) -> None:
    greeter = by_name(cyclonedx(made, "--profile", "full")["components"])["greeter"]
    (stack,) = [s for s in json.loads(made.good("list", "stacks", "--json"))["stacks"] if s["upstream"] == "greeter"]
    assert facts(greeter)["pin:commit"] in greeter["purl"] and facts(greeter)["stack"] == "greeter/v1"
    assert facts(greeter)["pin:commit"] == stack["commit"]
    assert greeter["licenses"] == [{"expression": "MIT"}]
    (sdist,) = [one for one in greeter["externalReferences"] if one["type"] == "source-distribution"]
    packed = hashlib.sha256((made.index / "greeter-1.0.tar.gz").read_bytes()).hexdigest()
    assert (sdist["url"], sdist["hashes"][0]["content"]) == ("pkg:pypi/greeter@1.0", packed)
    resolved = {patch["resolves"][0]["id"]: patch for patch in greeter["pedigree"]["patches"]}
    assert {*resolved} == {"typo", "polite", "loud"}
    assert {patch["type"] for patch in resolved.values()} == {"unofficial"}
    assert (
        resolved["typo"]["resolves"][0]["type"] == "defect"
        and resolved["polite"]["resolves"][0]["type"] == "enhancement"
    )
    assert made.patch("typo").read_text().endswith(resolved["typo"]["diff"]["text"]["content"])


def test_a_patch_has_digest_switch_licence_and_what_it_carries(made: Made) -> None:
    greeter = by_name(cyclonedx(made, "--profile", "full")["components"])["greeter"]
    files = by_name(greeter["components"])
    polite = files[made.patch("polite").relative_to(made.root).as_posix()]
    lock = json.loads((made.root / "manifests/locks/greeter/v1.json").read_text())
    assert facts(polite)["digest"] == next(p["digest"] for p in lock["patches"] if p["feature"] == "polite")
    assert polite["hashes"][0]["content"] == hashlib.sha256(made.patch("polite").read_bytes()).hexdigest()
    assert (facts(polite)["switch"], facts(polite)["order"]) == ("env GREETER_POLITE=1", "2")
    assert facts(polite)["proof"] == "none: no record" and polite["licenses"] == [{"expression": "MIT"}]
    carried = made.root / "patches/greeter/v1/polite/files/greeter/manners.py"
    assert files["greeter/manners.py"]["hashes"][0]["content"] == hashlib.sha256(carried.read_bytes()).hexdigest()
    assert facts(greeter)["locked:git:tip:tree"] == lock["results"][0]["forms"]["git"]["tip_tree"]


def test_packages_are_those_of_the_lock(made: Made) -> None:
    found = {
        c["name"]: c for c in cyclonedx(made, "--profile", "full")["components"] if c["bom-ref"].startswith("package:")
    }
    assert {name: one["version"] for name, one in found.items()} == VERSIONS
    assert {one["purl"] for one in found.values()} == {f"pkg:pypi/{n}@{v}" for n, v in VERSIONS.items()}
    assert {h["content"] for one in found.values() for h in one["hashes"]} == {"0" * 64}
    assert [p["value"] for p in found["six"]["properties"]] == ["aarch64", "x86_64"]


def test_what_a_profile_leaves_out_is_named(made: Made) -> None:
    greeter = by_name(cyclonedx(made, "--profile", "plain")["components"])["greeter"]
    assert [p["resolves"][0]["id"] for p in greeter["pedigree"]["patches"]] == ["typo"]
    left_out = [p["value"] for p in greeter["properties"] if p["name"] == "patchctl:left-out"]
    assert left_out == [f"{name}: the profile plain leaves it out" for name in ("loud", "polite")]


def test_both_formats_have_the_same_parts(made: Made) -> None:
    spdx = json.loads(made.good("sbom", "--profile", "full", "--format", "spdx"))
    found = cyclonedx(made, "--profile", "full")
    assert {p["name"] for p in spdx["packages"]} == {*by_name(found["components"]), "full"}
    files = {f["fileName"].removeprefix("./") for f in spdx["files"]}
    assert files == {file["name"] for c in found["components"] for file in c.get("components", ())}
    kinds = [r["relationshipType"] for r in spdx["relationships"]]
    assert (kinds.count("PATCH_FOR"), kinds.count("FILE_ADDED")) == (4, 1)
    (polite,) = [f for f in spdx["files"] if f["fileName"].endswith("polite.patch")]
    assert "patchctl:switch: env GREETER_POLITE=1" in polite["comment"] and polite["licenseConcluded"] == "MIT"


@pytest.mark.parametrize("form", FORMATS)
def test_of_a_workspace(made: Made, form: str, tmp_path: Path) -> None:
    workspace = str(tmp_path / "ws")
    made.good("apply", "--profile", "full", "--workspace", workspace, "--without", "polite")
    text = made.good("sbom", "--profile", "full", "--format", form, "--workspace", workspace)
    check(text, form, tmp_path)
    state = json.loads((tmp_path / "ws/.patchctl/state.json").read_text())["trees"]["greeter"]
    assert state["tip_tree"] in text and "polite: left out with --without" in text and "manners.py" not in text
    if form == "cyclonedx":
        greeter = by_name(json.loads(text)["components"])["greeter"]
        assert (facts(greeter)["form"], facts(greeter)["tip:tree"]) == ("git", state["tip_tree"])
        assert {p["resolves"][0]["id"] for p in greeter["pedigree"]["patches"]} == {"typo", "loud"}


@pytest.mark.parametrize("form", FORMATS)
def test_a_bundle_holds_it(made: Made, form: str, tmp_path: Path) -> None:
    """The same bytes as `sbom` gives, beside the README; a machine without a network reads them with the distribution."""
    text = made.good("sbom", "--profile", "full", "--format", form)
    file = tmp_path / "full.tar"
    for out in (file, tmp_path / "again.tar"):
        made.good("bundle", "create", "--profile", "full", "--sbom", form, "--out", str(out))
    assert file.read_bytes() == (tmp_path / "again.tar").read_bytes()
    made.good("bundle", "unpack", str(file), "--to", str(tmp_path / "there"))
    (held,) = (tmp_path / "there").glob("full.*.json")
    assert held.read_text() == text
    check(text, form, tmp_path)
    made.good("apply", "--bundle", str(file), "--profile", "full", "--workspace", str(tmp_path / "ws"))


def test_a_report_links_it(made: Made, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    made.good("report", "--profile", "full", "--sbom", "cyclonedx", "--out", str(page))
    assert 'href="full.cdx.json"' in page.read_text()
    assert (tmp_path / "full.cdx.json").read_text() == made.good("sbom", "--profile", "full", "--format", "cyclonedx")
    refused = made.patchctl("report", "--sbom", "spdx", "--out", str(page))
    assert refused.returncode == 2 and "--sbom needs one profile" in refused.stderr


def test_its_folder_is_made_and_a_file_is_no_folder(made: Made, tmp_path: Path) -> None:
    args = ("--profile", "full", "--format", "cyclonedx", "--out")
    made.good("sbom", *args, str(tmp_path / "new/below/full.json"))
    for verb in (("sbom", *args), ("report", "--out"), ("bundle", "create", "--profile", "full", "--out")):
        done = made.patchctl(*verb, str(tmp_path / "new/below/full.json/more.json"))
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    os.mkfifo(tmp_path / "pipe")
    done = made.patchctl("sbom", *args, str(tmp_path / "pipe"))
    assert done.returncode == 2 and "not a file to replace" in done.stderr and (tmp_path / "pipe").is_fifo()


def test_a_workspace_of_something_else_is_refused(made: Made, tmp_path: Path) -> None:
    workspace = str(tmp_path / "ws")
    empty = made.patchctl("sbom", "--profile", "full", "--format", "spdx", "--workspace", workspace)
    assert empty.returncode == 2 and "nothing is applied in" in empty.stderr
    made.good("apply", "--profile", "plain", "--workspace", workspace)
    other = made.patchctl("sbom", "--profile", "full", "--format", "spdx", "--workspace", workspace)
    assert other.returncode == 2 and "the workspace holds plain, not profile full" in other.stderr
    edited = replace(made, root=tmp_path / "edited")
    shutil.copytree(made.root, edited.root)
    edited.edit(edited.patch("typo"), "The code does it now.", "The code does it.")
    done = edited.patchctl("sbom", "--profile", "plain", "--format", "spdx", "--workspace", workspace)
    assert done.returncode == 2 and "greeter has other patches than the distribution" in done.stderr


@pytest.mark.parametrize(
    ("form", "module", "package"),
    [("cyclonedx", "cyclonedx", "cyclonedx-python-lib"), ("spdx", "spdx_tools", "spdx-tools")],
)
def test_without_the_library_one_error_says_what_to_install(made: Made, form: str, module: str, package: str) -> None:
    args = [f"--root={made.root}", "sbom", "--profile", "full", "--format", form]
    code = f"import sys; sys.modules[{module!r}] = None; from patchctl.cli import run; sys.exit(run({args!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and f"{package}, which writes {form}, is not installed" in done.stderr
    assert f"{sys.executable} -m pip install {package}" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_no_licence_s_short_name_is_none_to_spdx(made: Made, form: str, tmp_path: Path) -> None:
    """In comments of other languages, and in words of its own."""
    own = replace(made, root=tmp_path / "own")
    shutil.copytree(made.root, own.root)
    manners = next(own.root.glob("patches/greeter/*/polite/files/greeter/manners.py"))
    mark = "SPDX-License-" + "Identifier:"
    manners.write_text(f'"""{mark} MIT"""\n' + manners.read_text())
    upstreams = own.root / "manifests/upstreams.yaml"
    upstreams.write_text(upstreams.read_text().replace("license: MIT", 'license: "Apache License, Version 2.0"'))
    text = own.good("sbom", "--profile", "full", "--format", form)
    check(text, form, tmp_path)
    assert ("Apache License, Version 2.0" in text) == (form == "cyclonedx") and '"MIT"' in text


def test_the_mark_of_a_licence_ends_with_its_comment() -> None:
    mark = b"SPDX-License-" + b"Identifier:"
    for line in (b"<!-- %s Apache-2.0 -->", b'"""%s Apache-2.0"""', b"/* %s Apache-2.0 */", b"# %s Apache-2.0\n"):
        assert _said(line % mark) == "Apache-2.0"
    assert _said(b"# %s (MIT OR GPL-2.0+) AND 0BSD" % mark) == "(MIT OR GPL-2.0+) AND 0BSD"


@pytest.mark.heavy("every profile of the real distribution, in both formats")
@pytest.mark.parametrize("form", FORMATS)
def test_the_real_distribution(form: str, tmp_path: Path) -> None:
    for profile in sorted(one.stem for one in (REPO / "manifests/profiles").glob("*.yaml")):
        done = run_patchctl(f"--root={REPO}", "sbom", "--profile", profile, "--format", form, home=tmp_path / "home")
        assert done.returncode == 0, done.stderr
        check(done.stdout, form, tmp_path)
        if form == "cyclonedx" and profile == "qwen3-235b":
            parts = by_name(json.loads(done.stdout)["components"])
            files = [file for upstream in profile_on(None, profile).stacks for file in parts[upstream]["components"]]
            patches = [facts(one) for one in files if one["name"].startswith("patches/")]
            assert len(patches) > 20 and all(
                "proof:date" in one and "proof:environment:torch" in one for one in patches
            )
            assert not any(one["purl"].startswith("pkg:generic/") for one in parts.values() if "purl" in one)


@pytest.fixture(scope="module")
def stated(made: Made, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A workspace and a signed statement of it, whose key is allowed in a file beside."""
    folder = tmp_path_factory.mktemp("stated")
    made.good("apply", "--profile", "full", "--workspace", str(folder / "ws"), "--without", "polite")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    (folder / "allowed").write_text(f"patchctl@localhost {(folder / 'key.pub').read_text()}")
    options = ("--workspace", str(folder / "ws"), "--out", str(folder / "s.json"), "--sign", str(folder / "key"))
    made.good("sbom", "--profile", "full", "--format", "in-toto", *options)
    return folder / "ws", folder / "s.json"


def test_a_statement_says_of_what_trees_were_made(made: Made, stated: tuple[Path, Path]) -> None:
    workspace, file = stated
    statement = json.loads(file.read_text())
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    for one in statement["subject"]:
        tree = workspace / one["name"]
        ids = subprocess.run(
            ["git", "-C", tree, "rev-parse", "HEAD", "HEAD^{tree}"], capture_output=True, text=True, check=True
        ).stdout.split()
        assert [one["digest"]["gitCommit"], one["digest"]["gitTree"]] == ids
    assert {one["name"] for one in statement["subject"]} == {"greeter", "clock"}
    built = statement["predicate"]["buildDefinition"]
    assert built["externalParameters"]["leftOut"] == {"greeter": ["polite: left out with --without"]}
    used = {one["name"]: one["digest"] for one in built["resolvedDependencies"]}
    typo = made.patch("typo")
    digest = {"sha256": hashlib.sha256(typo.read_bytes()).hexdigest()}
    assert used[typo.relative_to(made.root).as_posix()] == digest
    assert made.patch("polite").relative_to(made.root).as_posix() not in used and "greeter: base" in used


def verified(made: Made, workspace: Path, file: Path, *args: str) -> tuple[int, str]:
    done = made.patchctl("verify", "--workspace", str(workspace), "--statement", str(file), *args)
    return done.returncode, done.stdout + done.stderr


def test_verify_holds_a_statement_and_its_signature(made: Made, stated: tuple[Path, Path], tmp_path: Path) -> None:
    workspace, file = stated
    signers = ("--statement-signers", str(file.with_name("allowed")))
    assert verified(made, workspace, file)[0] == 0
    assert verified(made, workspace, file, *signers)[0] == 0
    bare = tmp_path / "bare.json"
    shutil.copy(file, bare)
    code, said = verified(made, workspace, bare, *signers)
    assert code == 3 and "the statement has no signature" in said and "sbom --format in-toto --sign KEY" in said
    bare.write_text(file.read_text().replace('"leftOut"', '"leftout"'))
    shutil.copy(file.with_name("s.json.sig"), tmp_path / "bare.json.sig")
    code, said = verified(made, workspace, bare, *signers)
    assert code == 3 and "the statement was modified after signing" in said
    bundle = subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", "patchctl-bundle", "-f", file.with_name("key")],
        input=file.read_bytes(),
        capture_output=True,
        check=True,
    )
    shutil.copy(file, bare)
    (tmp_path / "bare.json.sig").write_bytes(bundle.stdout)
    code, said = verified(made, workspace, bare, *signers)
    assert code == 3 and "it was not made for a statement (its namespace is not patchctl-statement)" in said


def test_a_statement_of_other_trees_is_a_finding(made: Made, stated: tuple[Path, Path], tmp_path: Path) -> None:
    _, file = stated
    made.good("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"))
    code, said = verified(made, tmp_path / "ws", file)
    assert code == 1 and "the statement has tree" in said and "of greeter" in said and "it is of other trees" in said
    own = json.loads(file.read_text())
    for text in (own | {"predicateType": "https://other"}, own | {"subject": [*own["subject"], own["subject"][0]]}):
        (tmp_path / "changed.json").write_text(json.dumps(text))
        code, said = verified(made, stated[0], tmp_path / "changed.json")
        assert code == 1 and "this is not a statement of" in said, said
    for text in ("", "[]", "{}", '{"_type": "https://in-toto.io/Statement/v0.1", "subject": []}', "[" * 5000):
        (tmp_path / "other.json").write_text(text)
        code, said = verified(made, tmp_path / "ws", tmp_path / "other.json")
        assert code == 1 and "this is not a statement of" in said and "Traceback" not in said, text[:80]
        assert "indices" not in said and "'_type'" not in said, said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("sbom", "--profile", "full", "--format", "in-toto"), "an in-toto statement is of trees that were made"),
        (("sbom", "--profile", "full", "--format", "spdx", "--sign", "key", "--out", "o"), "--sign signs a statement"),
        (("verify", "--statement", "s.json"), "--statement is for the trees of a workspace"),
        (("verify", "--workspace", "ws", "--statement-signers", "s"), "--statement-signers is for a statement"),
    ],
)
def test_what_has_no_meaning_is_refused(made: Made, args: tuple[str, ...], said: str) -> None:
    done = made.patchctl(*args)
    assert done.returncode == 2 and said in done.stderr
