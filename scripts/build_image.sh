#!/usr/bin/env bash
# Builds an image of a profile, and labels it with what it holds. docs/images.md has examples.
set -euo pipefail
readonly SCRIPT=build_image.sh
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/common.sh
source "$HERE/common.sh"

readonly NO_TOOL=3

usage() {
  cat <<'TEXT'
Usage: scripts/build_image.sh [OPTIONS] [-- OPTIONS OF THE BUILD]

Builds Dockerfile for a profile with docker, podman or buildah, then asks the image what it holds
(`patchctl labels`) and labels it with that: profile, digest of the locks, a tree for each upstream.

  -p, --profile NAME   the profile [default: qwen3-235b]
  -t, --tag IMAGE      the image's name [default: patchctl:PROFILE]
  -b, --base IMAGE     BASE_IMAGE [default: what the Dockerfile says]
      --into           Dockerfile.into: the base holds vllm and vllm-ascend under /vllm-workspace
      --bundle FILE    a file of `patchctl bundle create`, for a build without a network
      --apply OPTIONS  for `patchctl apply`, as one word: "--skip-unavailable --without FEATURE"
      --no-runtime     the base has torch_npu and what else the trees run on
      --native         vllm-ascend's operators are built too (docs/images.md)
      --tool NAME      docker, podman or buildah [default: the first that works]
  -h, --help

What follows -- goes to the build, e.g. --build-arg PIP_INDEX_URL=... or -v CERTIFICATES:CERTIFICATES:ro.
Exit codes: 2 wrong use, 3 no tool that builds, otherwise the build's.
TEXT
}

main() {
  local profile=qwen3-235b tag='' base='' file=Dockerfile bundle='' tool='' native=no value
  local -a arguments=()
  while [[ $# -gt 0 ]]; do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --into) file=Dockerfile.into ;;
      --no-runtime) arguments+=(--build-arg RUNTIME=no) ;;
      --native) native=yes ;;
      --) shift && break ;;
      -p | --profile | -t | --tag | -b | --base | --bundle | --apply | --tool)
        take value "$@"
        case $1 in
          -p | --profile) profile=$value ;;
          -t | --tag) tag=$value ;;
          -b | --base) base=$value ;;
          --bundle) bundle=$value ;;
          --apply) arguments+=(--build-arg "APPLY_OPTIONS=$value") ;;
          --tool) tool=$value ;;
        esac
        shift
        ;;
      *) wrong_use "unknown option $1" ;;
    esac
    shift
  done
  [[ -z $bundle ]] || bundle=$(realpath -- "$bundle")
  cd "$HERE/.."
  [[ -f manifests/profiles/$profile.yaml ]] || wrong_use "there is no profile $profile" "patchctl list"
  tool=$(building "$tool")
  tag=${tag:-patchctl:$profile}
  arguments+=(--build-arg "PROFILE=$profile" --build-arg "NATIVE=$native")
  if [[ -n $base ]]; then arguments+=(--build-arg "BASE_IMAGE=$base"); fi
  if [[ -n $bundle ]]; then
    take_bundle "$bundle"
    arguments+=(--build-arg "BUNDLE=$COPY")
  fi
  # A HEALTHCHECK is in docker's format alone.
  if [[ ${tool##*/} != docker ]]; then arguments+=(--format docker); fi
  # docker 20.10's older builder knows no mounts.
  export DOCKER_BUILDKIT=1
  "$tool" build -f "$file" -t "$tag-unlabelled" "${arguments[@]}" "$@" .
  label "$tool" "$tag"
  say "$tag: built with $tool, labelled as \`patchctl labels\` says in it"
}

# A build sees nothing outside its context: a copy in it, in COPY.
take_bundle() {
  [[ -f $1 ]] || wrong_use "there is no bundle $1" "patchctl bundle create --profile PROFILE"
  COPY=$(mktemp image-XXXXXX.bundle)
  trap 'rm -f -- "$COPY"' EXIT
  cp -- "$1" "$COPY"
}

building() {
  local tool
  if [[ -n $1 ]]; then
    command -v "$1" >/dev/null || die "$NO_TOOL" "there is no $1 on PATH" "install it, or name another with --tool"
    echo "$1"
    return
  fi
  for tool in docker podman buildah; do
    # The client alone builds nothing.
    if command -v "$tool" >/dev/null && "$tool" info >/dev/null 2>&1; then
      echo "$tool"
      return
    fi
  done
  die "$NO_TOOL" "none of docker, podman and buildah works here" "install one, or start docker's daemon"
}

# Takes the name -unlabelled away: the labels are one empty layer on top.
label() {
  local tool=$1 tag=$2 found line container
  local -a labels=()
  if [[ ${tool##*/} == buildah ]]; then
    # Asked in a container of its own: what a run leaves behind is not for the image.
    container=$(buildah from --pull-never "$tag-unlabelled")
    found=$(buildah run "$container" -- patchctl labels) || { buildah rm "$container" >/dev/null && exit 1; }
    buildah rm "$container" >/dev/null
    while IFS= read -r line; do labels+=(--label "$line"); done <<<"$found"
    container=$(buildah from --pull-never "$tag-unlabelled")
    buildah config "${labels[@]}" "$container"
    buildah commit --format docker --rm "$container" "$tag"
    buildah rmi "$tag-unlabelled" >/dev/null
    return
  fi
  # Not through the entry point: CANN's scripts print.
  found=$("$tool" run --rm --entrypoint patchctl "$tag-unlabelled" labels)
  while IFS= read -r line; do labels+=(--label "$line"); done <<<"$found"
  if [[ ${tool##*/} == podman ]]; then labels+=(--format docker); fi
  echo "FROM $tag-unlabelled" | "$tool" build "${labels[@]}" -t "$tag" -f - .
  "$tool" rmi "$tag-unlabelled" >/dev/null
}

main "$@"
