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

Builds Dockerfile.into (--in-place) or Dockerfile for a profile with docker, podman or buildah, then asks the image what it
holds (`patchctl status --labels`) and labels it with that, and with where it came from: revision, base and its digest.

  -p, --profile NAME   the profile [default: qwen3-235b]
  -s, --release NAME   the release to take it on, whose base is then the default [default: PATCHCTL_RELEASE, else the bundle's, else
                       the newest on which the profile stands, proven or not]
  -t, --tag IMAGE      the image's name [default: patchctl:PROFILE]
  -b, --base IMAGE     BASE_IMAGE, by tag or NAME@sha256:DIGEST [default: what the Dockerfile says]
      --in-place [NAME=DIR]
                       Dockerfile.into: the base holds trees, which are patched where they are. They are found by
                       what the base's Python imports; NAME=DIR says where one is, NAME= leaves the base's alone
                       and installs a fetched one. Repeatable
      --python PY      the interpreter that trains [default: python3]
      --bundle FILE    a file of `patchctl bundle create`, for a build without a network
      --allowed-signers FILE
                       take the bundle only with a signature (BUNDLE.sig) of a key in FILE; it is checked here, and the
                       build takes what was checked, by its sha256. Without it the user configuration of patchctl counts
      --apply OPTIONS  for `patchctl apply`, as one word: "--skip-unavailable --without FEATURE"
      --leave-out NAME a package of the lock that cannot be had here; a label names it. Repeatable
      --no-runtime     the base has torch_npu and what else the trees run on
      --compilers      with g++, make and cmake, for operators that MindSpeed compiles at their first use
      --native         vllm-ascend's operators are built too (docs/images.md), which brings compilers
      --dry-run        print the build's command, and stop
      --tool NAME      docker, podman or buildah, or a path to one [default: the first that works]
  -h, --help

What follows -- goes to the build, e.g. --build-arg PIP_INDEX_URL=... or -v CERTIFICATES:CERTIFICATES:ro.
SOURCE_DATE_EPOCH, where it is set, is the label of the time. Exit codes: 2 wrong use, 3 no tool that builds, otherwise
the build's.
TEXT
}

main() {
  local profile=qwen3-235b release=${PATCHCTL_RELEASE-} tag='' base='' file=Dockerfile bundle='' signers='' tool='' dry='' value
  local -a arguments=() into=() left=()
  while [[ $# -gt 0 ]]; do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --in-place)
        file=Dockerfile.into
        if [[ ${2-} =~ ^[A-Za-z0-9._-]+= ]]; then into+=("$2") && shift; fi
        ;;
      --into) wrong_use "unknown option --into" "it is called --in-place now" ;;
      --no-runtime) arguments+=(--build-arg RUNTIME=no) ;;
      --dry-run) dry=1 ;;
      --compilers) arguments+=(--build-arg COMPILERS=yes) ;;
      --native) arguments+=(--build-arg NATIVE=yes) ;;
      --) shift && break ;;
      -p | --profile | -s | --release | -t | --tag | -b | --base | --bundle | --allowed-signers | --apply | --tool | --python | --leave-out)
        take value "$@"
        case $1 in
          -p | --profile) profile=$value ;;
          -s | --release) release=$value ;;
          -t | --tag) tag=$value ;;
          -b | --base) base=$value ;;
          --bundle) bundle=$value ;;
          --allowed-signers) signers=$(realpath -- "$value") ;;
          --apply) arguments+=(--build-arg "APPLY_OPTIONS=$value") ;;
          --leave-out) left+=("$value") ;;
          --python) arguments+=(--build-arg "PYTHON=$value") ;;
          --tool) tool=$value ;;
        esac
        shift
        ;;
      *) wrong_use "unknown option $1" ;;
    esac
    shift
  done
  [[ -z $signers || -n $bundle ]] || wrong_use "--allowed-signers is for a bundle" "name it with --bundle"
  # Without following a link: its signature lies beside the name that was given.
  [[ -z $bundle ]] || bundle=$(realpath --no-symlinks -- "$bundle")
  cd "$HERE/.."
  trap leave EXIT
  [[ -d patchctl || ! -d ../_distribution ]] || make_context
  [[ -f $file ]] || wrong_use "there is no $file in $PWD" "in a clone of patchctl, or \`patchctl script build_image.sh\` of an installed one"
  [[ -f manifests/profiles/$profile.yaml ]] || wrong_use "there is no profile $profile" "patchctl list"
  [[ -z $bundle ]] || release=${release:-$(release_in "$bundle")}
  release=${release:-$(release_of "$profile")}
  if [[ -n $release ]]; then
    [[ -f manifests/releases/$release.yaml ]] || wrong_use "there is no release $release" "patchctl list releases"
    arguments+=(--build-arg "RELEASE=$release")
    base=${base:-$(image_of "$release" "$file")}
    [[ -n $base ]] || wrong_use "release $release names no base image for $file" "name one with --base IMAGE"
  fi
  [[ -n $dry ]] && tool=${tool:-docker} || tool=$(building "$tool")
  tag=${tag:-patchctl:$profile}
  base=${base:-$(sed -n 's/^ARG BASE_IMAGE=//p' "$file")}
  arguments+=(--build-arg "PROFILE=$profile" --build-arg "BASE_IMAGE=$base")
  if [[ ${#into[@]} -gt 0 ]]; then arguments+=(--build-arg "INTO=${into[*]}"); fi
  if [[ ${#left[@]} -gt 0 ]]; then arguments+=(--build-arg "LEAVE_OUT=${left[*]}"); fi
  if [[ -n $bundle ]]; then
    take_bundle "$bundle" "$signers"
    arguments+=(--build-arg "BUNDLE=$COPY")
  fi
  # A HEALTHCHECK is in docker's format alone.
  if [[ ${tool##*/} != docker ]]; then arguments+=(--format docker); fi
  if [[ -n $dry ]]; then
    printf '%q ' "$tool" build -f "$file" -t "$tag-unlabelled" "${arguments[@]}" "$@" . && echo
    return
  fi
  # docker 20.10's older builder knows no mounts.
  export DOCKER_BUILDKIT=1
  "$tool" build -f "$file" -t "$tag-unlabelled" "${arguments[@]}" "$@" .
  label "$tool" "$tag" "$base"
  say "$tag: built with $tool, labelled as \`patchctl status --labels\` says in it"
}

# A clone's layout, of the distribution that was installed with patchctl and of the tool around it.
make_context() {
  CONTEXT=$(mktemp -d)
  mkdir -p "$CONTEXT/patchctl" "$CONTEXT/tests/behaviour"
  tar -c --exclude __pycache__ . | tar -x -C "$CONTEXT"
  tar -c --exclude __pycache__ --exclude ./_distribution -C .. . | tar -x -C "$CONTEXT/patchctl"
  cd "$CONTEXT"
}

leave() {
  if [[ -n ${HELD-} ]] && flock --nonblock --exclusive "$HELD"; then rm -f -- "$COPY"; fi
  [[ -z ${CONTEXT-} ]] || rm -rf -- "$CONTEXT"
}

# release_in BUNDLE: the release that it was made for, as its index says, which is read before its signature is looked at.
release_in() {
  { tar -xOf "$1" patchctl-bundle/index.json 2>/dev/null || true; } | sed -n 's/.*"release": *"\([0-9.]*\)".*/\1/p' | head -n 1
}

# release_of PROFILE: the newest release on which the profile stands. patchctl, which need not be here, takes it on the same one where
# that is proven, as a test holds.
release_of() {
  local release releases
  while read -r release; do
    while read -r releases; do
      if among "$releases" "$release"; then echo "$release" && return; fi
    done < <(sed -n "/^releases:/,/^[^ ]/s/^  [\"']\([^\"']*\)[\"']:.*/\1/p" "manifests/profiles/$1.yaml")
  done < <(basename -s .yaml -- manifests/releases/*.yaml | sort -rV)
}

# among RELEASES RELEASE: whether it is the one named, or within limits such as >=YEAR.MONTH,<YEAR.MONTH.
among() {
  local limit limits
  IFS=', ' read -ra limits <<<"$1"
  for limit in "${limits[@]}"; do
    case $limit in
      '>='*) [[ $(printf '%s\n' "${limit#>=}" "$2" | sort -V | head -n 1) == "${limit#>=}" ]] || return 1 ;;
      '<'*) [[ ${limit#<} != "$2" && $(printf '%s\n' "${limit#<}" "$2" | sort -V | head -n 1) == "$2" ]] || return 1 ;;
      *) [[ $limit == "$2" ]] || return 1 ;;
    esac
  done
}

# image_of RELEASE DOCKERFILE
image_of() {
  local key=base
  [[ $2 != *.into ]] || key=into
  of_release "$1" images "$key"
}

# take_bundle BUNDLE SIGNERS
# A build sees nothing outside its context: a copy in it, in COPY. Named by its sha256, so that a second build finds its layers again, no
# history has a random name, and the build proves that it has what was checked here. Builds at the same time share it, and the last one
# takes it away.
take_bundle() {
  local said
  [[ -f $1 ]] || wrong_use "there is no bundle $1" "patchctl bundle create --profile PROFILE"
  COPY=$(sha256sum <"$1" | cut -c1-64).bundle
  if [[ -n $2 ]] || (patchctl --version) &>/dev/null; then
    said=$(patchctl bundle verify "$1" ${2:+--allowed-signers "$2"}) || exit
    echo "$said" >&2
    COPY=${said##*sha256 }.bundle
  fi
  until [[ ${HELD-} && $COPY -ef /proc/self/fd/$HELD ]]; do
    exec {HELD}<>"$COPY"
    flock --shared "$HELD"
    cmp --silent -- "$1" "$COPY" || { flock --exclusive "$HELD" && cat -- "$1" >"$COPY" && flock --shared "$HELD"; }
  done
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
  local tool=$1 tag=$2 base=$3 found line container
  local -a labels=()
  if [[ ${tool##*/} == buildah ]]; then
    # Asked in a container of its own: what a run leaves behind is not for the image.
    container=$("$tool" from --pull-never "$tag-unlabelled")
    found=$("$tool" run "$container" -- patchctl status --labels) || { "$tool" rm "$container" >/dev/null && exit 1; }
    "$tool" rm "$container" >/dev/null
  else
    # Not through the entry point: CANN's scripts print.
    found=$("$tool" run --rm --entrypoint patchctl "$tag-unlabelled" status --labels)
  fi
  found+=$'\n'$(origin "$tool" "$base" "$(sed -n 's/^patchctl.version=//p' <<<"$found")")
  while IFS= read -r line; do labels+=(--label "$line"); done <<<"$found"
  if [[ ${tool##*/} == buildah ]]; then
    container=$("$tool" from --pull-never "$tag-unlabelled")
    "$tool" config "${labels[@]}" "$container"
    "$tool" commit --format docker --rm "$container" "$tag"
  else
    if [[ ${tool##*/} == podman ]]; then labels+=(--format docker); fi
    echo "FROM $tag-unlabelled" | "$tool" build "${labels[@]}" -t "$tag" -f - .
  fi
  "$tool" rmi "$tag-unlabelled" >/dev/null
}

# origin TOOL BASE VERSION: where the image came from, as labels of the OCI's names. Each is there, if empty: a base's own label of that
# name would say something else of this image.
origin() {
  local revision='' source='' name=org.opencontainers.image
  if [[ -e .git ]] && revision=$(git rev-parse HEAD 2>/dev/null); then
    [[ -z $(git status --porcelain -- ':!*.bundle' 2>/dev/null) ]] || revision+=-dirty
    # Without the user and password that an address may hold.
    source=$(git config --get remote.origin.url | sed -E 's#^([a-z+]+://)[^/]*@#\1#' || true)
  fi
  printf '%s=%s\n' "$name.version" "$3" "$name.revision" "$revision" "$name.source" "$source" \
    "$name.created" "$(date --utc --date="@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%Y-%m-%dT%H:%M:%SZ)" \
    "$name.base.name" "${2%%@sha256:*}" "$name.base.digest" "$(digest "$1" "$2")"
}

# digest TOOL IMAGE: the one that it was given by, else that of the image which the build took. docker knows none of an image that was
# never in a registry.
digest() {
  if [[ $2 == *@sha256:* ]]; then
    echo "${2#*@}"
    return
  fi
  case ${1##*/} in
    buildah) "$1" inspect --type image --format '{{.FromImageDigest}}' "$2" ;;
    podman) "$1" image inspect --format '{{.Digest}}' "$2" ;;
    *)
      "$1" image inspect "$2" >/dev/null 2>&1 || "$1" pull --quiet "$2" >/dev/null
      "$1" image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$2" | sed -n '1s/.*@//p'
      ;;
  esac
}

main "$@"
