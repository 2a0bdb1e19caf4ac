"""How much memory a run takes: the resident sizes of its processes, added up. Pages that processes share count in each."""

from __future__ import annotations

import os
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
_PARENT, _SESSION, _RESIDENT = 1, 3, 21  # fields of /proc/PID/stat after the name, from proc(5)


def resident_bytes(root: int, proc: Path = Path("/proc")) -> int:
    """Of the process `root`, all that descend from it, and all of its session, whose parents may be gone."""
    fields: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(errors="replace")
            except OSError:  # it has ended
                continue
            numbers = text.rpartition(")")[2].split()
            fields[int(folder.name)] = [int(numbers[at]) for at in (_PARENT, _SESSION, _RESIDENT)]
    found = {pid for pid, (_, session, _) in fields.items() if pid == root or session == root}
    while more := {pid for pid, (parent, _, _) in fields.items() if parent in found and pid not in found}:
        found |= more
    return sum(fields[pid][2] for pid in found) * PAGE
