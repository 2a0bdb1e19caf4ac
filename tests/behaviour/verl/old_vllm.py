"""Fetches sources of vllm releases that verl v0.6.0 was written for, to import them beside a newer torch."""

from __future__ import annotations

import hashlib
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from unearth import PackageFinder

DEFAULT_INDEX = "https://pypi.org/simple"


@dataclass(frozen=True)
class OldVllm:
    """An sdist on the package index. It is fetched and unpacked, never built or installed."""

    version: str
    sha256: str
    megabytes: int

    def python_path(self, folder: Path) -> list[Path]:
        """Folders for PYTHONPATH, made under `folder`: metadata of a CPU build, and the sources.

        Skips the test, with the reason, when the index cannot be reached or has no such file.
        """
        sources = folder / f"vllm-{self.version}"
        metadata = folder / f"metadata-{self.version}"
        if not sources.is_dir():
            self._unpack(self._download(folder), folder)
        info = metadata / f"vllm-{self.version}+cpu.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {self.version}+cpu\n")
        return [metadata, sources]

    def _download(self, folder: Path) -> Path:
        index = os.environ.get("PIP_INDEX_URL", DEFAULT_INDEX)
        finder = PackageFinder(index_urls=[index], no_binary=[":all:"])
        try:
            best = finder.find_best_match(f"vllm=={self.version}").best
            if best is None:
                pytest.skip(f"{index} has no sdist of vllm {self.version}")
            content = finder.session.get(best.link.url_without_fragment).content
        except Exception as error:  # unearth's HTTP library, and with it the errors, differs from release to release
            pytest.skip(f"vllm {self.version} ({self.megabytes} MB) could not be fetched from {index}: {error}")
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            pytest.fail(f"sdist of vllm {self.version} from {index}: sha256 {digest}, not {self.sha256}")
        archive = folder / f"vllm-{self.version}.tar.gz"
        archive.write_bytes(content)
        return archive

    def _unpack(self, archive: Path, folder: Path) -> None:
        inside = f"vllm-{self.version}/vllm/"
        with tarfile.open(archive) as tar:
            members = [member for member in tar.getmembers() if member.name.startswith(inside) and member.isreg()]
            # Python 3.11.3 and older have no filters; the members are files below `inside` anyhow.
            tar.extractall(folder, members, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        archive.unlink()


# The newest that verl v0.6.0's setup.py admits, and the oldest whose AsyncLLM has all that verl's server calls.
V0_9_1 = OldVllm("0.9.1", "c5ad11603f49a1fad05c88debabb8b839780403ce1b51751ec4da4e8a838082c", megabytes=9)
V0_10_0 = OldVllm("0.10.0", "a44e9013db26082a82c3931ed8772ac884d6d60566d36ecdb0e8dc01c65b241a", megabytes=9)
