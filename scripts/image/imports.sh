#!/usr/bin/env bash
# Asks the interpreter that trains whether it imports the workspace's trees, or an exact copy of them; says what it found where not.
set -euo pipefail

found=$(patchctl status --python "$PATCHCTL_TORCH_PYTHON") || {
  printf '%s\n' "$found"
  exit 1
}
