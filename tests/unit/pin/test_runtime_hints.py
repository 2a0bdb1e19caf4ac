"""What a line of an upstream's build file says that it runs on."""

from __future__ import annotations

import pytest

from patchctl.manifest.types import Requirement
from patchctl.pin.upstream_files import _value

TRANSFORMERS = Requirement(summary="models", kind="python", distribution="transformers")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("transformers >= 5.5.3, <6  # for Qwen3", ">=5.5.3,<6"),
        ("transformers>=4.57.0,<5", ">=4.57.0,<5"),
        ('  "transformers[torch] == 4.57.1",', "==4.57.1"),
        ("transformers~=4.5 ; python_version > '3.9'", "~=4.5"),
        ("transformers===4.5", None),
        ("transformers", None),
        ("transformers-stream >= 1", None),
    ],
)
def test_the_limits_of_a_line(line: str, value: str | None) -> None:
    assert _value("transformers", TRANSFORMERS, line) == value
