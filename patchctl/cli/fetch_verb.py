"""patchctl fetch."""

from __future__ import annotations

import time
from collections.abc import Iterable

import click

from patchctl.cli.app import App, json_option, profile_option
from patchctl.cli.sources import Sources, source_or_bundle_options
from patchctl.errors import SourceUnavailable
from patchctl.terminal.text import Style


@click.command("fetch")
@profile_option
@source_or_bundle_options
@click.option(
    "--refresh",
    is_flag=True,
    help="Pass the cache by, and put what is fetched in its place; a base that proves intact stays.",
)
@click.option(
    "--skip-unavailable",
    is_flag=True,
    help="Go on without sources that cannot be had, as long as one can be, and list them.",
)
@json_option("patchctl.report.sources:FetchOutput")
@click.pass_obj
def command(
    app: App,
    profile: str,
    sources: Sources,
    refresh: bool,
    skip_unavailable: bool,
    as_json: bool,
) -> None:
    """Bring every pinned source of a profile into the cache and prove it.

    A git source is proven by its commit id, a source distribution by its sha256; sources that are in the cache already
    are read again and proven too. Tried in this order: cache, --mirror, the user configuration's mirrors, the manifest's
    remotes, the package index that pip is configured for.

    With --bundle the sources come from there, and its distribution is put beside them: the last line says where.

    \b
    Examples:
      patchctl fetch --profile qwen3-235b
      patchctl fetch --profile qwen3-235b --refresh
    """
    from patchctl.report.sources import FetchedSource, FetchOutput
    from patchctl.source.intact import check_base
    from patchctl.source.obtain import BUNDLE_HINT, obtain
    from patchctl.source.types import SeveralUnavailable
    from patchctl.stack.plan import Skipped
    from patchctl.terminal.progress import size_text

    dist, options = sources.distribution, sources.options(refresh=refresh)
    progress = app.progress(as_json)
    rows: list[FetchedSource] = []
    missing: list[tuple[str, SourceUnavailable]] = []
    for name, stack in dist.stacks_of(dist.profile(profile)).items():
        began = time.monotonic()
        try:
            base = obtain(dist.upstream(name), stack, options, progress)
        except SourceUnavailable as failure:
            missing.append((name, failure))
            continue
        objects = check_base(base)
        seconds = round(time.monotonic() - began, 3)
        rows.append(FetchedSource(base, base.fetched_bytes == 0, base.fetched_bytes, objects, seconds))
    if missing and not (skip_unavailable and rows):
        goes_on = "; --skip-unavailable goes on without them" if rows else "; nothing could be had"
        hint = BUNDLE_HINT if sources.bundle else f"--mirror NAME=URL adds places{goes_on}"
        raise SeveralUnavailable(dict(missing), hint=hint)

    def text(style: Style) -> Iterable[str]:
        for row in rows:
            base, how = row.base, "cache" if row.from_cache else size_text(row.bytes)
            head = f"{base.upstream:<12} {base.form:<6} {base.commit[:12]}  {style.good('proven')}"
            yield f"{head}  {how}, {row.seconds} s  {base.origin}"
        for name, failure in missing:
            yield f"{name:<12} {style.note('skipped')}"
            yield from (f"    tried {t.place}: {t.reason}" for t in failure.tried)
        if sources.bundle is not None:
            yield f"distribution {dist.root}: patchctl --root {dist.root} apply {dist.profile(profile).options}"

    skipped = [Skipped(name, tuple(failure.tried)) for name, failure in missing]
    data = FetchOutput(profile, dist.root, rows, skipped)
    app.emit("fetch", data, text, as_json)
