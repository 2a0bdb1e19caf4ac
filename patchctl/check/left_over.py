"""What a change of stacks leaves behind or forgets: tests and mutations of features that are gone, generated files of a pin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from patchctl.catalog.evidence import BEHAVIOUR, feature_tested, keys_of
from patchctl.check.series import Series
from patchctl.findings.report import Finding
from patchctl.manifest.distribution import Distribution


def check_left_over(dist: Distribution, series: Series) -> Iterator[Finding]:
    """Tests and mutations that no patch is for; nothing while a patch cannot be read."""
    if series.broken:
        return
    carried: dict[str, set[str]] = {upstream: set() for upstream in dist.upstreams}
    for (upstream, _), patches in series.stacks.items():
        carried[upstream] |= {patch.feature for patch in patches}
    top = dist.root / BEHAVIOUR
    for upstream, features in carried.items():
        for file in sorted((top / upstream.replace("-", "_")).rglob("test_*.py")):
            name = file.stem.removeprefix("test_")
            if _is_of_a_feature(file) and feature_tested(name, features) not in features:
                yield _finding(dist.root, file, upstream, f"no stack of {upstream} has the feature {name}")
    for file in sorted((top / "mutants").glob("*.yaml")):
        feature = file.name.partition(".")[0]
        named = keys_of(file).get("upstream", "")
        if feature not in carried.get(named, ()):
            yield _finding(
                dist.root, file, named or None, f"no stack of {named or 'no upstream'} has the feature {feature}"
            )


def _is_of_a_feature(test: Path) -> bool:
    """By the mark that each feature's tests have; others are of what upstream does without us."""
    return "pytest.mark.on\n" in test.read_text(encoding="utf-8", errors="replace")


def _finding(root: Path, file: Path, upstream: str | None, what: str) -> Finding:
    return Finding("left-over", f"{what}: delete it, or name what it is for", file.relative_to(root).as_posix(), 1, "error",
                   upstream)  # fmt: skip


def check_generated(dist: Distribution) -> Iterator[Finding]:
    """A note for each stack that lacks a generated file which another stack of the upstream has."""
    for stack in dist.stacks.values():
        own = {g.path for g in stack.generated}
        for (upstream, name), other in sorted(dist.stacks.items()):
            if upstream != stack.upstream or stack.extends == name or other.extends == stack.name:
                continue
            for generated in other.generated:
                if generated.path not in own:
                    own.add(generated.path)
                    what = f"`generated:` has no {generated.path}, as {upstream}/{name} has: {generated.why}"
                    file = dist.stack_file(stack).relative_to(dist.root).as_posix()
                    yield Finding("generated-missing", what, file, None, "note", upstream)
