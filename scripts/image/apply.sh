#!/usr/bin/env bash
# apply.sh PROFILE BUNDLE OPTIONS: applies the profile into PATCHCTL_WORKSPACE and verifies what is there.
# BUNDLE is a file of the build context, which is at /context, or empty; OPTIONS are words for `patchctl apply`. INTO holds
# words NAME=FOLDER.
set -euo pipefail

main() {
  local profile=$1 bundle=$2 place
  local -a options=()
  read -ra options <<<"${3:-}"
  if [[ -n $bundle ]]; then options+=(--bundle "/context/$bundle"); fi
  for place in ${INTO:-}; do
    own "${place#*=}"
    options+=(--into "$place")
  done
  patchctl apply --profile "$profile" "${options[@]}"
  patchctl verify --workspace "$PATCHCTL_WORKSPACE"
  # For `docker run --user`: whoever runs it may read and verify.
  chmod -R go+rX "$PATCHCTL_WORKSPACE"
}

# git refuses a repository that somebody else owns, and a base image's may be anybody's.
own() {
  if [[ -d $1 ]]; then chown -R "$(id -u):$(id -g)" "$1"; fi
}

main "$@"
