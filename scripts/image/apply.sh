#!/usr/bin/env bash
# apply.sh PROFILE BUNDLE OPTIONS PYTHON [INTO]: applies the profile into PATCHCTL_WORKSPACE and verifies what is there.
# BUNDLE is a file of the build context, which is at /context, or empty; OPTIONS are words for `patchctl apply`. PYTHON is the interpreter
# that trains, and has to be of the version that the release wants. With INTO, the trees that it imports are patched where they are;
# INTO holds words NAME=DIR that say where one is. RUNTIME as in install.sh.
set -euo pipefail

main() {
  local profile=$1 bundle=$2 found place
  # --root: a bundle's own distribution would lie in the build's cache, which the image has not.
  local -a tool=(patchctl --root "$PATCHCTL_ROOT") options=() said=()
  if [[ -n $bundle && -z ${PATCHCTL_RELEASE-} ]]; then
    PATCHCTL_RELEASE=$(patchctl bundle show "/context/$bundle" --json |
      /opt/patchctl/venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)["release"] or "")')
    export PATCHCTL_RELEASE
  fi
  /opt/patchctl/venv/bin/python /opt/patchctl/image/check_python.py "$profile" "$4"
  read -ra options <<<"${3:-}"
  if [[ -n $bundle ]]; then
    options+=(--bundle "/context/$bundle")
    # scripts/build_image.sh names it by the digest of what it checked.
    if [[ $bundle =~ ^[0-9a-f]{64}\.bundle$ ]]; then options+=(--sha256 "${bundle%.bundle}"); fi
    # Nothing but the bundle: what an earlier build left in the cache would make another image.
    CACHE=$(mktemp -d)
    trap 'rm -rf "$CACHE"' EXIT
    tool+=(--cache "$CACHE")
  fi
  if [[ $# -gt 4 ]]; then
    read -ra said <<<"$5"
    if [[ " ${3:-} " == *" --on-this-base "* ]]; then said+=(--on-this-base); fi
    found=$(/opt/patchctl/venv/bin/python /opt/patchctl/image/find_trees.py "$profile" "$4" "${said[@]}")
    while read -r place; do
      if [[ -n $place ]]; then options+=(--in-place "$place"); fi
    done <<<"$found"
  fi
  "${tool[@]}" apply --profile "$profile" "${options[@]}"
  "${tool[@]}" verify --workspace "$PATCHCTL_WORKSPACE"
  : >"$PATCHCTL_WORKSPACE/.patchctl/lock" # the number of a process that has ended
  # For `docker run --user`: whoever runs it may read and verify.
  chmod -R go+rX "$PATCHCTL_WORKSPACE"
}

main "$@"
