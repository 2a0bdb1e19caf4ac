"""The watch of `watched.py` itself: what it must see, it sees."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from watched import REPO, environment, watch, why_unwatched

pytestmark = pytest.mark.skipif(why_unwatched() is not None, reason=f"nobody watches: {why_unwatched()}")

# What a program does: Python text, in which OUT is a folder that it must not touch, and which is its current one's sibling.
WRITES = {
    "open": "open(OUT + '/x', 'w')",
    "append": "open(OUT + '/old', 'a')",
    "relative": "open('../out/x', 'w')",
    "mkdir": "os.mkdir(OUT + '/d')",
    "mkdir_after_chdir": "os.chdir(OUT); os.mkdir('d')",
    "unlink": "os.unlink(OUT + '/old')",
    "rename_into": "open('x', 'w').close(); os.rename('x', OUT + '/x')",
    "rename_out_of": "os.rename(OUT + '/old', 'x')",
    "symlink": "os.symlink('x', OUT + '/l')",
    "hard_link": "open('x', 'w').close(); os.link('x', OUT + '/l')",
    "through_a_link": "os.symlink(OUT, 'l'); open('l/x', 'w')",
    "onto_a_link": "os.symlink(OUT + '/x', 'l'); open('l', 'w')",
    "chmod": "os.chmod(OUT + '/old', 0o600)",
    "truncate": "os.truncate(OUT + '/old', 0)",
    "times": "os.utime(OUT + '/old')",
    "fifo": "os.mkfifo(OUT + '/f')",
    "by_folder_descriptor": "fd = os.open(OUT, os.O_RDONLY); os.open('x', os.O_WRONLY | os.O_CREAT, dir_fd=fd)",
    "child": "import subprocess; subprocess.run(['sh', '-c', 'echo x >../out/x'])",
    "grandchild": "import subprocess; subprocess.run(['sh', '-c', 'cd ../out && sh -c \"mkdir d\"'])",
    "fork": "os.fork() or (os.chdir(OUT), os.mkdir('d'), os._exit(0)); os.wait()",
    "odd_name": "open(OUT + '/a \\x1b\"\\\\b\\u00e9', 'w')",
}


@pytest.mark.parametrize("how", WRITES)
def test_a_write_outside_is_seen(how: str, tmp_path: Path) -> None:
    out, home = tmp_path / "out", tmp_path / "home"
    out.mkdir()
    (out / "old").write_text("old\n")
    env = environment(home)
    program = [sys.executable, "-S", "-c", f"import os\nOUT = {str(out)!r}\n{WRITES[how]}"]
    changed, executed = watch(program, home=home, log=tmp_path / "log", env=env)
    assert changed is not None and executed is not None
    assert any(path.startswith(f"{out}/") for path in changed), changed
    assert any(os.path.basename(e).startswith("python") for e in executed)


def test_what_only_reads_changes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    program = [
        sys.executable,
        "-c",
        f"import os, patchctl.cli; os.listdir({str(tmp_path)!r}); open('/etc/passwd').read()",
    ]
    env = {**environment(home), "PYTHONPATH": str(REPO)}
    changed, _ = watch(program, home=home, log=tmp_path / "log", env=env)
    assert changed is not None and not [c for c in changed if c != "/dev/null"]
