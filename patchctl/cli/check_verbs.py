"""verify, image and lock: check a distribution, a workspace or an image, and write what is generated from patches."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from patchctl.cli.app import (
    App,
    complete_upstream,
    flag,
    format_option,
    json_option,
    optional_workspace,
    print_findings,
    statement_options,
    verbose_option,
)
from patchctl.cli.sources import Sources, source_options, source_or_bundle_options
from patchctl.errors import DONE, FINDINGS, SourceUnavailable, WrongUse
from patchctl.terminal.text import Style, visible_line

if TYPE_CHECKING:
    from patchctl.check.pages import WrittenPages
    from patchctl.findings import Report
    from patchctl.source.types import SourceOptions
    from patchctl.stack.locking import LockRow


@click.command("verify")
@optional_workspace("Verify the trees of this workspace on disk, instead of the distribution.")
@source_or_bundle_options
@flag(
    "--skip-unavailable",
    "Exit 0 although a stack had no form whose source could be had, or a workspace's distribution is gone.",
)
@flag("--proven", "Every feature must be proven on its stack by a record that holds; see `prove`.")
@click.option(
    "--record-signers",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --proven: each record needs a signature (evidence.json.sig) of a key that FILE allows; see `prove --sign`.",
)
@flag("--alone", "Every feature has to apply on its pin with only what it requires, too.")
@flag("--static", "Only what needs no source: patches, names, headers, digests, pages.")
@flag("--lint", "Only the patch files: their rules, and how they go together. No lock, page or proof.")
@statement_options
@flag("--quiet", "With text: print findings, and nothing else.", "-q")
@verbose_option("each thing that was not checked, with every place tried")
@format_option("patchctl.findings:VerifyOutput")
@click.pass_obj
def verify_command(
    app: App,
    workspace: Path | None,
    sources: Sources,
    skip_unavailable: bool,
    proven: bool,
    record_signers: Path | None,
    alone: bool,
    static: bool,
    lint: bool,
    statement: Path | None,
    statement_signers: Path | None,
    quiet: bool,
    verbose: bool,
    output: str,
) -> int:
    """Check the distribution, or with --workspace the trees on disk.

    The distribution: manifests, names and numbers, headers, digests, exact preimages, the trees of every stack in every
    form that can be had against the lock, the code of every touched file, the generated pages. What could not be had is
    listed with the places tried. docs/lint-rules.md has every rule.

    A workspace: every file read back, HEAD, generated files, and the last commit computed again from the distribution's
    patches. Takes no lock, writes nothing and needs no cache and no source. Upstreams of the profile that have no tree
    there are listed as not checked; a workspace without any tree is a finding.

    With --bundle FILE it is the bundle's distribution, with the bundle's sources, or a workspace against it.

    Exit code 1 with findings; 3 when a stack had no form that could be had.

    \b
    Examples:
      patchctl verify --static
      patchctl verify --workspace workspace
    """
    from patchctl.check.rules import all_rules
    from patchctl.findings import Shown, report_text, verify_output

    if statement and workspace is None:
        raise WrongUse("--statement is for the trees of a workspace", hint="name it with --workspace DIR")
    if record_signers and not proven:
        raise WrongUse("--record-signers is for the records of proofs", hint="add --proven")
    if workspace is not None:
        _refuse_sources(sources, static, proven, alone, lint)
        from patchctl.check.workspace import verify_workspace
        from patchctl.manifest.distribution import Distribution

        root = workspace.absolute()
        made_of = app.root_of(root)
        app.show_root(made_of)
        dist = Distribution.load(made_of) if made_of else None
        report = verify_workspace(root, dist, app.progress(output == "json"))
        if statement:
            from patchctl.sbom.contents import state_of
            from patchctl.sbom.forms import read_statement, statement_findings

            data = read_statement(statement, app.trust(statement_signers))
            report.add(statement_findings(data, statement, state_of(root)))
    else:
        if alone and static:
            raise WrongUse("--alone builds stacks, and --static leaves sources alone", hint="leave one of both out")
        if lint and (proven or alone):
            raise WrongUse("--lint is for patch files alone", hint="leave --proven and --alone out")
        silent = output == "json"
        chosen = None if static or lint else sources
        signers = app.trust(record_signers) if record_signers else None
        root, report = _distribution(
            app, chosen, proven=proven, signers=signers, isolated=alone, lint=lint, silent=silent
        )
    shown = Shown(report, "verify", root, all_rules() if output == "sarif" else {})
    text = partial(report_text, report, quiet=quiet, verbose=verbose)
    print_findings(app, output, shown, verify_output(report), text)
    return report.exit_code(skip_unavailable=skip_unavailable or static or lint)


def _distribution(app: App, sources: Sources | None, *, lint: bool, silent: bool, **how: Any) -> tuple[Path, Report]:
    from patchctl.check.distribution import lint_distribution, verify_distribution
    from patchctl.check.series import manifest_findings
    from patchctl.cli.generated_pages import generated_pages
    from patchctl.findings import Report
    from patchctl.manifest.diagnostics import InvalidManifest
    from patchctl.manifest.distribution import Distribution, find_root

    root = find_root(app.named_root, Path.cwd())
    try:
        # Read and validated anew: what an earlier run found right is not believed here.
        app.distribution = dist = Distribution.load(root)
    except InvalidManifest as error:
        return root, Report(manifest_findings(root, error))
    if lint:
        return root, lint_distribution(dist)
    options = None if sources is None else sources.options()
    return root, verify_distribution(dist, options, app.progress(silent), generated_pages(dist), **how)


def _refuse_sources(sources: Sources, static: bool, proven: bool, alone: bool, lint: bool) -> None:
    """Raise WrongUse for what has no meaning for a workspace: a job that asks for it would pass for another reason."""
    asked = {
        "--source": sources.source != "auto",
        "--mirror": bool(sources.mirrors),
        "--static": static,
        "--proven": proven,
        "--alone": alone,
        "--lint": lint,
    }
    for option, given in asked.items():
        if given:
            hint = f"leave {option} out, or leave --workspace out to verify the distribution"
            raise WrongUse(f"{option} is for the distribution; a workspace is verified without sources", hint=hint)


@click.command("lock")
@flag("--check", "Write nothing; exit 1 when a lock or a page would differ.")
@flag("--requirements", "Of what profiles run on, instead: uv resolves it with a package index.")
@flag("--pages", "Of pages, tables and schemas alone, which need no source; also where none are kept yet.")
@click.option("--upstream", metavar="NAME", shell_complete=complete_upstream, help="Only the locks of this upstream.")
@flag("--skip-unavailable", "With --check: exit 0 although a stack had no form that could be checked.")
@source_options
@json_option("patchctl.report.machine:LockOutput")
@click.pass_obj
def lock_command(
    app: App,
    check: bool,
    requirements: bool,
    pages: bool,
    upstream: str | None,
    skip_unavailable: bool,
    sources: Sources,
    as_json: bool,
) -> int:
    """Write all that is generated from patches, or with --check fail, and name each file that would differ.

    That is the lock of every stack, and then, where docs/patches/ is kept, the pages, tables and schemas: under
    docs/patches/ a page a patch, a table a stack and their index; docs/practice/switches.md, from practice.yaml;
    docs/lint-rules.md, docs/json.md and other pages made from the code, docs/schema/ and manifests/schema/, where they
    are kept. No page is written while a patch cannot be read. Running it again changes nothing.

    The lock holds the digest of every patch, the blobs before and after each of them, and the resulting commits and
    trees for each form of the source. A form that cannot be had keeps its record while pin and patches are the same, and
    is "unknown" otherwise. The lists of every pin's files, which `identify` reads, are written with it.

    A lock that cannot be read, after a merge or a kill, counts as none. Where no form at all can be had and the old record
    is for other patches, nothing is written for that stack, and the exit code is 3.

    With --requirements it is the locks in manifests/requirements/ that are made: what profiles run on, resolved from what
    the trees declare at their pins, the profiles and the recipes.

    \b
    Examples:
      patchctl lock
      patchctl lock --check --skip-unavailable
    """
    from patchctl.check.pages import write_documents
    from patchctl.cli.generated_pages import generated_pages
    from patchctl.report.machine import LockOutput
    from patchctl.stack.locking import lock_stack

    dist = app.distribution
    if pages and (requirements or upstream):
        raise WrongUse("--pages is for pages alone", hint="leave --requirements and --upstream out")
    if requirements:
        return _requirements(app, sources.options(), as_json, check=check)
    if upstream is not None:
        dist.upstream(upstream)
    options = sources.options()
    chosen = [] if pages else [s for (name, _), s in sorted(dist.stacks.items()) if upstream in (None, name)]
    rows = [lock_stack(dist, stack, options, app.progress(as_json), check=check) for stack in chosen]
    done = write_documents(dist, generated_pages(dist), check=check, strict=pages)
    data = LockOutput(check, rows, (), done.written, done.removed, done.report.sorted())
    app.emit("lock", data, lambda style: _lock_text(rows, done, check, style), as_json)
    return _lock_exit_code(rows, check, skip_unavailable) or done.report.exit_code(skip_unavailable=True)


def _requirements(app: App, options: SourceOptions, as_json: bool, *, check: bool) -> int:
    from patchctl.report.machine import LockOutput, relock_text
    from patchctl.requirements.relock import relock

    rows = relock(app.distribution, options, app.progress(as_json), check=check)
    app.emit("lock", LockOutput(check, (), rows), lambda style: relock_text(rows, style), as_json)
    return FINDINGS if check and any(row.differences for row in rows) else DONE


def _lock_exit_code(rows: list[LockRow], check: bool, skip_unavailable: bool) -> int:
    if not check:
        return SourceUnavailable.code if any(row.lost for row in rows) else DONE
    if any(row.differences for row in rows):
        return FINDINGS
    unchecked = any(not row.forms for row in rows)
    return SourceUnavailable.code if unchecked and not skip_unavailable else DONE


def _lock_text(rows: list[LockRow], pages: WrittenPages, check: bool, style: Style) -> Iterable[str]:
    from patchctl.findings import report_text
    from patchctl.manifest.lock import lock_file
    from patchctl.stack.tree_lists import TREES

    for row in rows:
        word = "written" if row.written else style.bad("differs" if check else "not written")
        word = word if row.differences else style.good("in step")
        yield f"{row.upstream:<12} {row.stack}  {word}  computed in form: {', '.join(row.forms) or 'none'}"
        if any(not d.startswith(TREES) for d in row.differences):
            yield f"    {lock_file(Path(), row.upstream, row.stack)}"
        yield from (f"    {d}" for d in row.differences)
        for form, tried in row.unavailable.items():
            yield f"    {style.note('not checked')}: form {form}"
            yield from (visible_line(f"        tried {place}: {reason}") for place, reason in tried)
        if row.lost and not check:
            yield "    nothing was written: the lock has to be computed, and no form of the source could be had"
    yield from (f"written  {path}" for path in pages.written)
    yield from (f"removed  {path}" for path in pages.removed)
    yield from report_text(pages.report, style, quiet=bool(rows))


@click.group("image")
def image_command() -> None:
    """Look into images and containers without building or running anything.

    \b
    patchctl image verify IMAGE                           or a container, running or not, of docker or podman
    buildah push IMAGE oci-archive:image.tar              or: docker save IMAGE --output image.tar
    patchctl image verify image.tar
    """


@contextmanager
def _room_for_image() -> Iterator[None]:
    """What a disk says that is too small for an image, with where its trees are unpacked."""
    from patchctl.os_errors import as_user_error, is_resource_error

    try:
        yield
    except OSError as error:
        if not is_resource_error(error):
            raise
        hint = "set TMPDIR to a folder with room for the image's trees, and with - for the image"
        place = Path(tempfile.gettempdir())
        raise as_user_error(error, "the image cannot be unpacked", hint, place) from error


@image_command.command("verify", short_help="Check the trees and the labels of an image.")
@click.argument("image", metavar="FILE|NAME")
@click.option(
    "--workspace",
    "-w",
    metavar="/DIR",
    help="The workspace in the image [default: its PATCHCTL_WORKSPACE, else /opt/patched].",
)
@statement_options
@flag("--quiet", "With text: print findings, and nothing else.", "-q")
@format_option("patchctl.findings:VerifyOutput")
@click.pass_obj
def image_verify(
    app: App,
    image: str,
    workspace: str | None,
    statement: Path | None,
    statement_signers: Path | None,
    quiet: bool,
    output: str,
) -> int:
    """Check the trees of an image or a container as `verify --workspace` does, and that its labels name them.

    FILE is a saved image (`docker save`), an OCI archive, or what `docker export` wrote of a container, which has no labels; -
    is standard input. NAME is a container, running or not, or an image that docker or podman has. Layers are compared with their
    digests, only the trees are unpacked, and nothing of the image runs. The trees are compared with the distribution here, not
    the image's. Which of them an interpreter imports is seen in a container alone: `patchctl status --python`.

    Exit code 1 with findings, 2 when it is no image, holds no workspace or is over a limit, 3 when a layer is not what its digest says.

    \b
    Examples:
      patchctl image verify image.tar
      ssh HOST docker save IMAGE | patchctl image verify -
    """
    from patchctl.check.rules import all_rules
    from patchctl.findings import Shown, report_text, verify_output
    from patchctl.image.image_archive import ImageFile
    from patchctl.image.verify import save_image, verify_image
    from patchctl.sbom.forms import read_statement
    from patchctl.scratch import scratch
    from patchctl.source.config import read_user_config

    said = (statement, read_statement(statement, app.trust(statement_signers))) if statement else None
    within = PurePosixPath(workspace) if workspace else None
    progress = app.progress(output == "json")
    with _room_for_image(), scratch("patchctl-image-") as folder:
        kept = folder / "image.tar"
        if image == "-":
            if sys.stdin.isatty():
                raise WrongUse("standard input is a terminal", hint="`docker save IMAGE | patchctl image verify -`")
            progress.note("reading standard input")
            with kept.open("xb") as out:
                shutil.copyfileobj(sys.stdin.buffer, out)
            file = ImageFile(kept, "standard input")
        elif Path(image).exists() or image.startswith(("/", ".")):
            file = ImageFile(Path(image).absolute(), image)
        else:
            progress.note(f"asking docker and podman for {image}")
            file = save_image(image, kept)
        found = verify_image(file, within, app.distribution, progress, said, read_user_config().images)
    report = found.report
    shown = Shown(report, "image.verify", app.found_root, all_rules() if output == "sarif" else {})
    about = [] if quiet else [str(found)]
    print_findings(
        app, output, shown, verify_output(report), lambda style: (*about, *report_text(report, style, quiet=quiet))
    )
    return report.exit_code()
