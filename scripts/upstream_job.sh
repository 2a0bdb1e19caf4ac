#!/usr/bin/env bash
# What upstreams have that is newer, as a branch for a draft request: the steps of a scheduled CI job. docs/rebase.md
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: upstream_job.sh OUT [patchctl's source options...]

In the root of a distribution, in a fresh clone: asks upstreams what is newer, and bumps the newest release on a branch of its
own, whether all patches arrive or not. An upstream whose sources cannot be had is named, and stays as it is. Writes OUT/outdated.txt
(OUT is below build/, or outside of the clone), and if a stack moves OUT/branch (the branch's name; it is checked out and has the commit),
OUT/title and OUT/body.md. What a person needs
to go on after a conflict is in edit/, and in OUT/edit.tar.gz to be kept: work tree, state and resolutions. OUT/status.txt says where it
stopped.

Exit codes: 0 also where patches conflict; otherwise patchctl's.

  upstream_job.sh build/upstream --mirror verl=/mirrors/verl
TEXT
}

# allow STATUS... -- COMMAND...: run it, and exit with its status unless that is 0 or one of these.
allow() {
  local allowed=() code=0
  while [[ $1 != -- ]]; do allowed+=("$1") && shift; done
  shift
  "$@" || code=$?
  [[ " 0 ${allowed[*]} " == *" $code "* ]] || exit "$code"
}

case ${1:-} in
  -h | --help) usage && exit 0 ;;
  '' | -*)
    printf 'upstream_job.sh: name a folder for the results\n  try: upstream_job.sh --help\n' >&2
    exit 2
    ;;
esac
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift

echo /build/ >>"$(git rev-parse --git-path info/exclude)"
allow 1 -- patchctl outdated --skip-unavailable "$@" | tee "$out/outdated.txt"
allow 4 20 -- patchctl bump --branch --skip-unavailable --no-prove "$@"
branch=$(git branch --show-current)
[[ $branch == bump/* ]] || exit 0
new=${branch#bump/}
for tree in edit/*-bump-"$new"; do
  patchctl rebase --status --dir "$tree" 2>/dev/null || true # a tree that has arrived is no rebase any more
done >"$out/status.txt"
tar -czf "$out/edit.tar.gz" edit # an artifact's zip would drop links, modes and empty folders
echo "$branch" >"$out/branch"
echo "Release $new" >"$out/title"
cp "edit/bump-$new.md" "$out/body.md"
