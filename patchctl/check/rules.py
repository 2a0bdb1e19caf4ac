"""The rules, each with what must hold and why, and the lint of patch files. docs/lint-rules.md is generated from here.

Rules about one patch file are functions (patch_rules) that register with `patch_rule`. The others belong to checks of
the whole distribution, a source or a workspace, and are only listed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from patchctl import extension
from patchctl.check.patch_rules import PATCH_CHECKS, PATCH_RULES, LintRule
from patchctl.findings import Finding, Level
from patchctl.manifest.diagnostics import did_you_mean
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Stack
from patchctl.stack.patches import LintedPatch, StackPatch


def all_rules() -> dict[str, LintRule]:
    """Every rule by its id, in the order of the documentation."""
    more = (rule for other in extension.registered() for name in other.rules for rule in extension.load(name))
    return {**PATCH_RULES, **{rule.id: rule for rule in (*_OTHERS, *more)}}


_OTHERS = (
    LintRule("manifest", "distribution", "manifests are valid and fit each other", "nothing can be built from others"),
    LintRule("patch-file", "distribution", "every patch file can be read, and stays inside the tree",
         "a patch that is read in two ways is applied in two ways"),
    LintRule("number-gap", "distribution", "the numbers of a stack's patches have no gaps (a note)",
         "a gap is often a patch that someone forgot to commit"),
    LintRule("unlinted", "distribution", "`unlinted:` of a stack names rules about one patch file, which its imported patches break (a note)",
         "nobody would know what was not asked of them"),
    LintRule("feature-unique", "distribution", "a stack has one patch of each feature",
         "`--without FEATURE` and the generated pages speak of one patch"),
    LintRule("requires-known", "distribution", "`Requires:` names patches that come earlier, or another upstream's",
         "half of a feature would be applied, or a patch without what it builds on"),
    LintRule("selection", "distribution", "every profile's selection of features can be applied",
         "the profile would be refused when someone applies it"),
    LintRule("alone", "distribution", "every feature applies on its pin with only what it requires (with --alone)",
         "a user who leaves the others out cannot have it, and upstream cannot take it by itself"),
    LintRule("carried-file", "distribution", "a patch carries every file below files/: the one beside it, and no other of the stack",
         "a file that no one carries is not in the patched tree, although it looks so"),
    LintRule("unlisted-file", "distribution", "everything in patches/ belongs to a stack",
         "a patch that no manifest lists is not applied, although it looks so"),
    LintRule("tested", "distribution", "every patch has a behaviour test and a mutation, in a distribution that keeps tests",
         "nobody would notice when the patch does nothing, or when upstream breaks it"),
    LintRule("proven", "distribution", "every feature of a stack is proven there by a record that holds (a note; with --proven an error)",
         "tests that never ran on this stack, with this patch, say nothing of it"),
    LintRule("left-over", "distribution", "every test with the mark `on` and every mutation lies in the folder of a feature",
         "nothing runs it, and the next reader looks for its patch"),
    LintRule("generated-missing", "distribution", "a stack has the generated files of the upstream's other stacks (a note)",
         "the package may not start without them, and nothing else shows it"),
    LintRule("dropped", "distribution", "each feature of the stack that a stack comes from is in it, or its manifest says why not"
         " (`dropped:`) or why not yet (`postponed:`); not two of these",
         "a patch that did not arrive at a new revision is missed by nobody until it is needed"),
    LintRule("gain", "distribution", "`gains:` of a stack names features that it has", "the gain of a feature would be said of none"),
    LintRule("practice-feature", "distribution", "practice.yaml names features that a stack has",
         "a reader of the practice's documents would look for a switch that is not there"),
    LintRule("requirements-lock", "distribution", "the locks of requirements follow from trees, profiles, recipes and set.yaml",
         "what is installed would not be what was resolved"),
    LintRule("preimage-chain", "distribution", "a patch's `index` begins where the one before it in the stack ended",
         "the patch was made on another tree than the one that it is applied to"),
    LintRule("lock", "distribution", "every stack has a lock, for this pin and these patches",
         "without one nobody knows what the stack must give"),
    LintRule("lock-blob", "distribution", "files and ids of every `index` line equal those of the lock",
         "the patch is for another revision of the file"),
    LintRule("unidiff-counts", "distribution", "unidiff counts the same added and removed lines as our parser",
         "two readings of one patch: one of them is wrong"),
    LintRule("schema-stale", "distribution", "manifests/schema is as generated", "editors would complete what is refused"),
    LintRule("page-stale", "distribution", "the generated pages and tables are as `patchctl lock` writes them",
         "documentation would speak of other patches"),
    LintRule("applies", "source", "every patch applies exactly, and gives what its `index` lines promise",
         "the stack cannot be built"),
    LintRule("lock-tree", "source", "commits and trees equal the lock, in every form that can be had",
         "the patched tree is not the one that was tested"),
    LintRule("tree-list", "source", "manifests/trees lists exactly the files of the pin", "`identify` would name wrong pins"),
    LintRule("python-compiles", "source", "every touched or carried Python file compiles after every patch",
         "the import fails where the framework is started"),
    LintRule("undefined-name", "source", "no patch adds a name that is defined nowhere (pyflakes)",
         "it is found in the branch that runs after hours of training"),
    LintRule("switch-in-code", "source", "the variable or key of `Switch:` occurs in what the patch writes",
         "a switch that nothing reads leaves the feature off, or on, for everybody"),
    LintRule("statement", "workspace", "an in-toto statement that is named (--statement) describes the trees that are there",
         "it says of others how they were made"),
    LintRule("label", "workspace", "labels of an image name the trees that it holds (`image verify`)",
         "who reads the labels takes it for another one"),
    LintRule("interrupted", "workspace", "no run was interrupted", "trees may be half changed; the next run finishes it"),
    LintRule("tree-missing", "workspace", "every tree of the state is there, with its repository", "there is nothing to verify"),
    LintRule("repository", "workspace", "the objects of a tree's repository are what their ids say",
         "revert and switch would bring damaged files"),
    LintRule("file-changed", "workspace", "every file is that of the stack's last commit, byte for byte",
         "the code that runs is not the code that was tested"),
    LintRule("record", "workspace", "RECORD of a package that is patched where it is installed lists its files as they are",
         "`pip uninstall` would leave files behind, and an audit of the image would find changed ones"),
    LintRule("generated-changed", "workspace", "generated files are as they were written", "versions may be told wrongly"),
    LintRule("head-moved", "workspace", "HEAD of a managed tree is the stack's last commit", "`git log` would not show the stack"),
    LintRule("untracked-file", "workspace",
         "a managed tree holds no other files (a note; an error where Python imports one in place of a module, and for a module"
         " or a package at its top or in a package of the stack, ignored by git or not)",
         "Python imports them: a `torch.py` at the top of a tree comes before PyTorch"),
    LintRule("byte-code", "workspace", "byte code that Python takes in place of a file of the stack is that file's compilation",
         "other code runs than the one that lies there"),
    LintRule("other-stack", "workspace", "a tree has the stack that the profile names now",
         "the profile has moved on, or the state was edited: another framework runs"),
    LintRule("wrong-base", "workspace", "a tree's base is the pin", "the patches are on another revision"),
    LintRule("other-base", "workspace", "a tree's base is the pin, and not one that `apply --on-this-base` took (a note)",
         "what is proven was proven on the pin"),
    LintRule("wrong-tip", "workspace", "the last commit is what the distribution's patches give on the base",
         "the state, the lock or the distribution is another one than when it was applied"),
    LintRule("other-patches", "workspace", "the applied patches are those of the distribution, less what is left out",
         "the distribution has moved on since the apply"),
)  # fmt: skip


def lint(patch: StackPatch, upstream: str | None = None) -> Iterator[Finding]:
    """Check one patch file against every rule about one."""
    all_rules()
    linted = LintedPatch(patch)
    for name, check in PATCH_CHECKS.items():
        for fault in check(linted):
            yield Finding(name, fault.message, patch.shown, fault.line, upstream=upstream, patch=patch.feature)


def check_form(dist: Distribution, patches: Mapping[Path, StackPatch]) -> Iterator[Finding]:
    """Lint every patch. A rule that a stack names in `unlinted:` gives one note instead of its findings in imported patches: rewriting
    those for a linter would make them differ from the other project's."""
    spared: Counter[tuple[str, str, str]] = Counter()
    for file, patch in patches.items():
        _, upstream, name, *_ = file.relative_to(dist.root).parts
        stack = dist.stacks.get((upstream, name))
        exempt = stack.unlinted if stack is not None and "Imported" in patch.header.trailers else {}
        found = list(lint(patch, upstream))
        spared.update((upstream, name, rule) for rule in {f.rule for f in found} & exempt.keys())
        yield from (f for f in found if f.rule not in exempt)
    for stack in dist.stacks.values():
        for rule, why in stack.unlinted.items():
            count = spared[stack.upstream, stack.name, rule]
            if rule not in PATCH_CHECKS:
                what = f"{rule} is no rule about one patch file{did_you_mean(rule, PATCH_CHECKS)}"
            elif count == 0:
                what = f"no imported patch of this stack breaks {rule}: take it out of `unlinted:`"
            else:
                what = (
                    f"{rule} is not asked of {count} imported patch{'es' if count > 1 else ''}: {' '.join(why.split())}"
                )
            level: Level = "note" if rule in PATCH_CHECKS else "error"
            yield Finding("unlinted", what, *in_manifest(dist, stack, "unlinted", rule), level, stack.upstream)


def in_manifest(dist: Distribution, stack: Stack, *path: str | int) -> tuple[str, int | None]:
    """The file and line of what the manifest of a stack has at `path`; without one, the file."""
    file = dist.stack_file(stack)
    return file.relative_to(dist.root).as_posix(), dist.where(file, *path).line if path else None
