"""patchctl prove."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import (
    App,
    complete_upstream,
    file_option,
    find_stack,
    flag,
    json_option,
    optional_profile,
    release_option,
)
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, WrongUse

if TYPE_CHECKING:
    from patchctl.manifest.types import Stack
    from patchctl.prove.proof_trees import Ground
    from patchctl.prove.prove import Verdict
    from patchctl.source.types import SourceOptions


@click.command("prove")
@click.argument("features", nargs=-1, metavar="[FEATURE[@UPSTREAM]]...")
@flag("--all", "Every feature of every stack, in the order they apply.", "everything")
@click.option(
    "--stack", "stack_name", metavar="UPSTREAM[/STACK]", shell_complete=complete_upstream, help="On this stack only."
)
@optional_profile("Whose trees the tests run on [default: the first profile with these stacks].")
@release_option
@click.option(
    "--trees",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Workspaces DIR/base (reverted) and DIR/patched; made there where DIR has none [default: made in a"
    " temporary folder].",
)
@click.option(
    "--only",
    "part",
    type=click.Choice(["all", "tests", "mutants"]),
    default="all",
    show_default=True,
    help="Run only the tests on both trees, or only the mutations.",
)
@flag("--alone", "Each feature on trees with only what it requires; no record is written.")
@flag("--rerun", "Run again what the records show already.")
@flag("--check", "Run it again and compare with the records; none is written.")
@click.option(
    "--since", metavar="COMMIT", help="Only features whose record is another than at this commit of the distribution."
)
@file_option("--sign", metavar="KEY", help="Sign the records of these features with this SSH key: evidence.json.sig.")
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    metavar="N",
    help="Test files and mutations of a feature that run at a time [default: the cores, at most 4].",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="End a test file after this time [default: 1800]; a mutation that hangs is red if the patched trees do not.",
)
@click.option(
    "--debug",
    metavar="TEST",
    help="Run only the tests of the feature that TEST selects (pytest -k), on the patched trees, with their output"
    " here; no record is written.",
)
@source_options
@json_option("patchctl.report.proving:ProveOutput")
@click.pass_obj
def prove_command(
    app: App,
    features: tuple[str, ...],
    everything: bool,
    stack_name: str | None,
    profile: str | None,
    folder: Path | None,
    part: str,
    alone: bool,
    rerun: bool,
    check: bool,
    since: str | None,
    sign: Path | None,
    jobs: int | None,
    timeout: float | None,
    debug: str | None,
    sources: Sources,
    as_json: bool,
) -> int:
    """Prove features by their tests: red on the unpatched tree, green on the patched one, red on each mutation.

    What ends so is written at once into evidence.json in the feature's folder, one record a feature and stack, with the digests of patch, tests
    and probes and with what they ran on; `patchctl verify` reads it. What a record shows already does not run again, so a
    run that was stopped goes on where it was. Needs pytest, and what the tests need (PATCHCTL_TORCH_PYTHON).

    A feature that the stack of --stack dropped, or has not yet, can be named as well: its `on` tests are green on the unpatched
    trees where upstream meets the need. No record is written of it.

    Who trusts no record runs some of them again with --check, such as what changed --since a release, or takes only records that are
    signed: `verify --static --proven --record-signers FILE`.

    Exit code 0 when all that could be run is proven (or met), or no record changed --since; 1 when something is not or nothing could be
    run.

    \b
    Examples:
      patchctl prove sam_proposer --stack vllm-ascend
      patchctl prove --all --trees trees
      patchctl prove --all --check --since HEAD~20
    """
    from patchctl.bundle.signature import SigningKey
    from patchctl.check.distribution import check_orphans
    from patchctl.prove.proof_trees import by_profile, check_provable, debug_one, one_by_one, prove_all
    from patchctl.prove.prove import Runs, changed_since, sign_records, subjects_of
    from patchctl.prove.runs import TIMEOUT_S, cores
    from patchctl.report.proving import prove_output, summary_text
    from patchctl.terminal.text import visible_line

    if bool(features) == everything:
        raise WrongUse("name features, or --all", hint="`patchctl list patches` names them")
    dist = app.distribution
    check_provable(dist)
    stack = find_stack(dist, stack_name) if stack_name else None
    if debug is not None:
        ground = ground_of(app, folder, sources.options(), as_json=False)
        return DONE if debug_one(ground, subjects_of(dist, features, stack), debug, profile) else FINDINGS
    if alone and folder is not None:
        raise WrongUse("--alone makes its trees, others for each feature", hint="leave --trees out")
    if alone and part == "mutants":
        raise WrongUse(
            "mutations run where the tests were green, and --alone keeps no record of that", hint="leave --only out"
        )
    if sign and (alone or check):
        raise WrongUse("--sign signs records, and none is written", hint="leave --alone and --check out")
    key = SigningKey.load(sign) if sign else None
    subjects = subjects_of(dist, features, stack)
    if since is not None and not (subjects := changed_since(dist, subjects, since)):
        none = f"nothing to prove: no record is another than at {visible_line(since)}"
        app.emit("prove", prove_output([], []), lambda style: [none], as_json)
        return DONE
    groups = one_by_one(dist, subjects, profile) if alone else by_profile(dist, subjects, profile, folder)
    how = Runs(
        ("tests", "mutants") if part == "all" else (part,),
        rerun or check,
        not (alone or check),
        jobs or cores(),
        timeout or TIMEOUT_S,
        check,
    )
    ground = ground_of(app, folder, sources.options(), as_json)
    verdicts = prove_all(ground, groups, how, teller(app, folder, as_json))
    orphans = [f"{f.file}: {f.message}" for f in check_orphans(dist)] if everything and stack is None else []
    if key is not None:
        sign_records(dist.root, (v for v in verdicts if v.status == "proven"), key)
    proven = sum(v.status in ("proven", "met") for v in verdicts)
    failed = bool(orphans) or any(v.problems for v in verdicts)
    app.emit("prove", prove_output(verdicts, orphans), lambda style: summary_text(verdicts, orphans, style), as_json)
    return DONE if proven and not failed else FINDINGS


def prove_stack(app: App, stack: Stack, options: SourceOptions, *, as_json: bool) -> list[Verdict]:
    """Prove every feature of one stack on trees made for it, as `patchctl.prove.proof_trees` does, and print each verdict."""
    from patchctl.prove import proof_trees

    return proof_trees.prove_stack(ground_of(app, None, options, as_json), stack, teller(app, None, as_json))


def teller(app: App, folder: Path | None, as_json: bool) -> Callable[[Verdict], None]:
    """What prints each verdict as soon as it is there."""
    from patchctl.report.proving import verdict_text

    def tell(verdict: Verdict) -> None:
        if not as_json:
            app.emit("prove", {}, lambda style: verdict_text(verdict, style, str(folder) if folder else None), as_json)

    return tell


def ground_of(app: App, folder: Path | None, options: SourceOptions, as_json: bool) -> Ground:
    """Where this run's proofs run; `verify --workspace` reads the trees back."""
    from patchctl.check.workspace import verify_workspace
    from patchctl.prove.proof_trees import Ground

    dist, progress = app.distribution, app.progress(as_json)

    def check(workspace: Path) -> list[str]:
        # A stack that no profile names yet is proven too: a record names it.
        found = (e for e in verify_workspace(workspace, dist, progress).errors if e.rule != "other-stack")
        return [f"{error.file}: {error.message}" for error in found]

    return Ground(dist, folder, options, progress, check)
