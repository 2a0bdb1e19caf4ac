"""The forms that a bill of materials is written in."""

from __future__ import annotations

import importlib.util
import sys

from patchctl import extension
from patchctl.errors import WrongUse
from patchctl.sbom.contents import Contents

# By form: what writes it, the ending of its files, and the package of the extra `sbom` that this needs, with its import name.
_FORMS = {
    "cyclonedx": ("patchctl.sbom.as_cyclonedx:as_cyclonedx", ".cdx.json", ("cyclonedx-python-lib", "cyclonedx")),
    "spdx": ("patchctl.sbom.as_spdx:as_spdx", ".spdx.json", ("spdx-tools", "spdx_tools")),
    "in-toto": ("patchctl.sbom.as_in_toto:as_in_toto", ".intoto.json", None),
}


def check_form(form: str) -> None:
    """Raise WrongUse if the package that writes the form is not installed."""
    needs = _FORMS[form][2]
    if needs and importlib.util.find_spec(needs[1]) is None:
        what = f"{needs[0]}, which writes {form}, is not installed"
        raise WrongUse(what, hint=f"{sys.executable} -m pip install {needs[0]}")


def name_of(contents: Contents, form: str) -> str:
    """The usual name of a file with these contents."""
    return contents.profile + _FORMS[form][1]


def render(contents: Contents, form: str) -> bytes:
    """Return the contents in this form; equal contents give equal bytes. Raises WrongUse as `check_form`."""
    check_form(form)
    text: str = extension.load(_FORMS[form][0])(contents)
    return text.encode()
