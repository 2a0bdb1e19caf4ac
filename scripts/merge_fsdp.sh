#!/usr/bin/env bash
# Merges an FSDP checkpoint of verl into a Hugging Face model, with verl's own merger. docs/data-and-weights.md
set -euo pipefail

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
CALLED_FROM=$PWD
SCRIPT=merge_fsdp.sh
# shellcheck source=scripts/common.sh
source "$HERE/common.sh"
# shellcheck source=scripts/data/model_folders.sh
source "$HERE/data/model_folders.sh"

usage() {
  cat <<'TEXT'
Usage: merge_fsdp.sh ACTOR_DIR TARGET_DIR [options]

ACTOR_DIR is global_step_N/actor of a run. Every node wrote the shards of its own ranks: copy them into one folder first.
It is refused, with the ranks that are missing or cut off, before the merger starts. TARGET_DIR appears when all is done.

      --workspace D          where the patched verl is [default: $WORKSPACE, $PATCHCTL_WORKSPACE or workspace]
      --trust-remote-code    for models that bring code of their own
      --dry-run              check, print the command, and stop

PYTHON names the training environment's Python [default: python3].
Exit codes: 0 done; 2 wrong use or incomplete shards; the merger's own where it fails.

  rsync -a node1:ckpts/global_step_100/actor/ ckpts/global_step_100/actor/       # for each other node
  merge_fsdp.sh ckpts/global_step_100/actor models/Qwen3-32B-step100
TEXT
}

main() {
  local folders=() remote=() dry=''
  while (($#)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --workspace) take WORKSPACE "$@" && shift ;;
      --trust-remote-code) remote=(--trust-remote-code) ;;
      --dry-run) dry=yes ;;
      -*) wrong_use "$1: no such option" ;;
      *) folders+=("$1") ;;
    esac
    shift
  done
  ((${#folders[@]} == 2)) || wrong_use "ACTOR_DIR and TARGET_DIR are wanted"
  PYTHON=${PYTHON:-python3}
  WORKSPACE=$(absolute "${WORKSPACE:-${PATCHCTL_WORKSPACE:-workspace}}")
  local actor target
  actor=$(absolute "${folders[0]}") target=$(absolute "${folders[1]}")
  need_command "$PYTHON" "set PYTHON to the training environment's Python"
  use_trees verl
  new_folder "$target"
  ours data.fsdp_shards "$actor" "$target"

  PARTIAL=$target.partial
  local command=("$PYTHON" -m verl.model_merger merge --backend fsdp --local_dir "$actor" --target_dir "$PARTIAL" "${remote[@]}")
  printf '%q ' "${command[@]}" >&2 && printf '\n' >&2
  [[ -z $dry ]] || exit 0
  new_folder "$PARTIAL"
  mkdir -p -- "$(dirname -- "$target")"
  trap 'rm -rf -- "$PARTIAL"' EXIT
  in_group "${command[@]}"
  "$PYTHON" "$HERE/weights.py" check "$PARTIAL" >&2
  [[ ! -d $target ]] || rmdir -- "$target"
  mv -T -- "$PARTIAL" "$target"
  printf '%s\n' "$target"
}

main "$@"
