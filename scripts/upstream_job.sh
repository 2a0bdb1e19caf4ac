#!/usr/bin/env bash
# What upstreams have that is newer, as a branch for a draft request: the steps of a scheduled CI job. docs/rebase.md
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: upstream_job.sh OUT [patchctl's source options...]

In the root of a distribution, in a clean checkout: asks upstreams what is newer, and bumps the newest release on a branch of its
own, whether all patches arrive or not. Writes OUT/outdated.txt, and if a stack moves OUT/branch (the branch's name; it is checked
out and has the commit), OUT/title and OUT/body.md. What a person needs to go on after a conflict is in edit/.

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

allow 1 -- patchctl outdated "$@" | tee "$out/outdated.txt"
patchctl bump --dry-run --json "$@" >"$out/plan.json"
new=$(python3 -c 'import json, sys; p = json.load(open(sys.argv[1])); print(p["new"] if p["moves"] else "")' "$out/plan.json")
if [[ -z $new ]]; then
  echo "nothing to move"
  exit
fi
git checkout --quiet -B "bump/$new"
allow 4 20 -- patchctl bump --no-prove "$@"
printf '%s\n' /edit/ /build/ >>"$(git rev-parse --git-path info/exclude)"
git add --all
git commit --quiet --allow-empty -m "Release $new, as \`patchctl bump\` made it"
echo "bump/$new" >"$out/branch"
echo "Release $new" >"$out/title"
cp "edit/bump-$new.md" "$out/body.md"
