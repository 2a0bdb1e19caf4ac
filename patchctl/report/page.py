"""The report's page: one HTML file that needs nothing else, and that nothing in it can make do anything else.

Text from manifests, patches, locks and records becomes text (`markup`); the policy lets a browser run and apply what is ours by
its digest, and load nothing. Without scripts all is there but the filter. The same distribution gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl import __version__
from patchctl.catalog.overview import Overview
from patchctl.output import to_json
from patchctl.report import page_drift, page_parts
from patchctl.report.markup import Markup, embedded, join, raw, tag, text

if TYPE_CHECKING:
    from patchctl.drift.drift_json import SavedDrift

GENERATOR = "patchctl report"
_FOLDER = Path(__file__).with_name("templates")
_PARTS = {
    "profiles": "Profiles",
    "stacks": "Stacks",
    "features": "Features",
    "files": "Files",
    "dependencies": "Dependencies",
    "drift": "Drift",
    "recipes": "Recipes",
}


def is_page(data: bytes) -> bool:
    """Whether these bytes begin a page that this module wrote."""
    return (
        data.startswith(b"<!DOCTYPE html>\n")
        and f'<meta name="generator" content="{GENERATOR} '.encode() in data[:2048]
    )


def page(seen: Overview, saved: SavedDrift | None) -> bytes:
    """The whole file. The patches are embedded as JSON, for the filter."""
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
    title = f"{seen.profile or 'all profiles'} · patchctl report"
    head = [
        tag("meta", charset="utf-8"),
        _meta("generator", f"{GENERATOR} {__version__}"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        _meta("viewport", "width=device-width, initial-scale=1"),
        _meta("color-scheme", "light dark"),
        _meta("referrer", "no-referrer"),
        tag("title", title),
        raw("style", style),
    ]
    island = raw(
        "script",
        embedded(json.dumps([to_json(one) for one in seen.patches], sort_keys=True)),
        type="application/json",
        id="data",
    )
    body = [_body(page_parts.Names(seen), saved), island, raw("script", script)]
    whole = tag(
        "html", tag("head", "\n", join(head, "\n"), "\n"), "\n", tag("body", "\n", join(body, "\n"), "\n"), lang="en"
    )
    return f"<!DOCTYPE html>\n{whole}\n".encode()


def _meta(name: str, content: str) -> Markup:
    return tag("meta", name=name, content=content)


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _body(names: page_parts.Names, saved: SavedDrift | None) -> Markup:
    links = (tag("li", tag("a", title, href=f"#part-{name}")) for name, title in _PARTS.items())
    parts = (
        page_parts.profiles(names),
        page_parts.stacks(names),
        page_parts.features(names),
        page_parts.files(names),
        page_parts.dependencies(names),
        page_drift.drift(names, saved),
        page_parts.recipes(names),
    )
    foot = f"Made by patchctl {__version__} from manifests, patches, locks and records alone; the same ones give the same bytes."
    return join(
        [
            tag("a", "To the content", href="#content", class_="skip"),
            _header(names.seen),
            tag("nav", tag("ul", *links), aria_label="Parts of this page"),
            tag("main", _filter(names.seen), *(join([part, "\n"]) for part in parts), id="content", tabindex="-1"),
            tag("footer", tag("p", foot)),
        ],
        "\n",
    )


def _header(seen: Overview) -> Markup:
    counts = (tag("div", tag("dt", name), tag("dd", number)) for name, number in page_parts.numbers(seen))
    if seen.profile:
        title, summary = seen.profile, seen.profiles[0].summary
    else:
        title, summary = "All profiles", "Every stack of this distribution, with its patches."
    releases = {profile.release for profile in seen.profiles}
    eyebrow = (
        f"patchctl report, release {releases.pop()}"
        if len(releases) == 1 and None not in releases
        else "patchctl report"
    )
    return tag(
        "header",
        tag("p", eyebrow, class_="eyebrow"),
        tag("h1", title),
        tag("p", summary),
        tag("dl", *counts, class_="counts"),
    )


def _filter(seen: Overview) -> Markup:
    """Hidden until the script is there that it needs."""
    upstreams = dict.fromkeys(s.row.upstream for s in seen.stacks)
    options = [tag("option", "every upstream", value=""), *(tag("option", u, value=u) for u in upstreams)]
    proofs = [
        tag("option", words, value=value)
        for value, words in (("", "any proof"), ("proven", "proven"), ("unproven", "unproven"))
    ]
    box = tag(
        "input",
        type="search",
        id="words",
        autocomplete="off",
        spellcheck="false",
        aria_describedby="words-hint",
        placeholder="Feature, file, switch, word",
    )
    return tag(
        "div",
        tag("label", "Find ", tag("kbd", "/"), for_="words"),
        box,
        tag("label", "Upstream", for_="upstream", class_="heard"),
        tag("select", *options, id="upstream"),
        tag("label", "Proof", for_="proof", class_="heard"),
        tag("select", *proofs, id="proof"),
        tag("button", "Clear", type="button", id="clear"),
        tag("p", "", id="found", role="status"),
        tag("p", text("All words have to be found. / goes here, Escape clears."), id="words-hint", class_="heard"),
        role="search",
        aria_label="Filter",
        class_="filter",
        id="filter",
        hidden=True,
    )
