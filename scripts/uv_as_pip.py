#!/usr/bin/env python3
"""Runs uv as pip is configured: `uv_as_pip.py pip install --python PYTHON click`.

uv makes the environments of the tests, in a sixth of pip's time, and reads neither pip's files nor its variables. Who is behind a
firewall has told pip where packages come from; here uv is told the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from patchctl.source.places import IndexConfig, machine_config


def variables(config: IndexConfig) -> dict[str, str]:
    """uv's variables for a configuration of pip's."""
    found = {
        "UV_DEFAULT_INDEX": next(iter(config.index_urls), ""),
        "UV_INDEX": " ".join(config.index_urls[1:]),
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # as pip: the best of all indexes, and not all from the first
        "UV_NO_INDEX": "" if config.index_urls else "1",
        "UV_FIND_LINKS": ",".join(config.find_links),
        "UV_INSECURE_HOST": " ".join(config.trusted_hosts),
        "SSL_CERT_FILE": config.cert or "",
        "ALL_PROXY": config.proxy or "",
        "UV_HTTP_TIMEOUT": str(round(max(config.timeout, 60))),
    }
    return {name: value for name, value in found.items() if value}


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What uv is run with; what is set for uv itself stays."""
    return {**variables(machine_config()), **given}


if __name__ == "__main__":
    sys.exit(subprocess.run([sys.executable, "-m", "uv", *sys.argv[1:]], env=environment(), check=False).returncode)
