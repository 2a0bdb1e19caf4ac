"""The release that fits a machine whose software is not that of the release in force: said before anybody installs another CANN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from patchctl.findings.report import Finding, looked_at
from patchctl.language.messages import message
from patchctl.training.preflight.case import Case

RELEASE = "release"


def blocked_by_software(findings: Iterable[Finding]) -> bool:
    """Whether what is installed is in the way."""
    return any(f.rule == "software" and f.blocks for f in findings)


def fitting_release(
    case: Case, releases: Sequence[str], look: Callable[[str], tuple[Case, Sequence[Finding]] | None]
) -> Finding | None:
    """A note on the first of `releases` whose software this machine has. `look` gives the case and the findings of the same recipe on a
    release, None where the release has no such recipe."""
    for name in releases:
        seen = look(name)
        if seen is None or blocked_by_software(seen[1]):
            continue
        rest = len(dict.fromkeys(f.name for f in seen[1] if f.blocks))
        left = message("nothing is in the way there")
        if rest:
            left = message("{count} other findings are in the way there", count=rest)
        what = message(
            "this machine's software is that of release {fitting}, and {release} was looked at; {left}",
            fitting=name,
            release=case.run.release,
            left=left,
        )
        todo = f"patchctl preflight -p {case.run.profile} -r {case.run.name} --release {name}"
        return looked_at("recipe", RELEASE, "warning", what, todo, needed=False)
    return None
