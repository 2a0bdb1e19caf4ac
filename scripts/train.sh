#!/usr/bin/env bash
# Trains a recipe: checks the machine, loads the environment, waits for the cluster, then runs the framework's own entry
# module with the recipe's overrides. docs/scripts.md
set -euo pipefail

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
SCRIPT=train.sh
# shellcheck source=scripts/common.sh
source "$HERE/common.sh"

usage() {
  if in_chinese; then
    usage_in_chinese
    return
  fi
  cat <<'TEXT'
Usage: train.sh PROFILE RECIPE [options] [KEY=VALUE ...]

Run it on the first node, after ray_cluster.sh on every node. In this order, and each step only if the one before is sound:
the recipe keeps its rules, KEY=VALUE included; its paths are set (MODEL_PATH, TRAIN_FILE, ...); `patchctl preflight`; all
nodes and NPUs are in the cluster, and Ray was started with this environment; then the training, printed by
`patchctl recipe command`.

  -n, --nodes N           how many nodes [default: the recipe's]
      --workspace D       where the patched trees are, the same on every node
                          [default: $WORKSPACE, $PATCHCTL_WORKSPACE or workspace]
      --path NAME=PATH    a file of the recipe, instead of its variable; repeatable
      --size NAME=N       another size of the recipe; repeatable
      --release NAME      the release whose recipe it is, as RECIPE@NAME and PATCHCTL_RELEASE say it, too
      --head A[:PORT]     the cluster [default: RAY_ADDRESS, else what ray_cluster.sh started on this machine, else
                          for one node: the framework starts Ray by itself]
      --wait SECONDS      for the nodes [default: 600]
      --log-dir D         [default: logs]; the file is PROFILE-RECIPE-TIME.log
      --accept NAME       go on in spite of this finding of preflight; repeatable
      --no-preflight      do not look at the machine at all
      --node-ip A, --interface I   this node's, where they are not found; --cann D: CANN's folder
      --dry-run           print all of it as a script, and stop; on any machine: what is not here is said, and assumed

Exit codes: those of the training once it runs; before: 1 preflight found something, or nodes are missing; 2 wrong use, a
recipe that breaks a rule, a path that is not set; 130 interrupted, 143 terminated.

  train.sh qwen3-235b grpo --nodes 8 --path model=/data/Qwen3-235B-A22B trainer.total_epochs=1
  MODEL_PATH=... TRAIN_FILE=... VAL_FILE=... CKPTS_DIR=... train.sh qwen3-32b dapo --dry-run
TEXT
}

parse() {
  local names=() word='' name=''
  WORKSPACE=${WORKSPACE:-${PATCHCTL_WORKSPACE:-workspace}}
  NODES='' ON_PATH='' ASKED=() HEAD='' WAIT=600 LOG_DIR=logs ACCEPTED=() PREFLIGHT=1 DRY_RUN=''
  NODE_IP='' INTERFACE='' CANN=/usr/local/Ascend
  while (($#)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      -n | --nodes) take NODES "$@" && shift 2 ;;
      --workspace) take WORKSPACE "$@" && ON_PATH=1 && shift 2 ;;
      --path) take word "$@" && name=${word%%=*} && path_is_named "$word" && ASKED+=(--path "$name=$(absolute "$name" "${word#*=}")") && shift 2 ;;
      --size | --release) take word "$@" && ASKED+=("$1" "$word") && shift 2 ;;
      --head) take HEAD "$@" && shift 2 ;;
      --wait) take WAIT "$@" && shift 2 ;;
      --log-dir) take LOG_DIR "$@" && shift 2 ;;
      --accept) take word "$@" && ACCEPTED+=(--accept "$word") && shift 2 ;;
      --no-preflight) PREFLIGHT='' && shift ;;
      --node-ip) take NODE_IP "$@" && shift 2 ;;
      --interface) take INTERFACE "$@" && shift 2 ;;
      --cann) take CANN "$@" && shift 2 ;;
      --dry-run) DRY_RUN=1 && shift ;;
      -*) wrong_use "$(text "unknown option {1}" "$1")" ;;
      *=*) ASKED+=("$1") && shift ;;
      *) names+=("$1") && shift ;;
    esac
  done
  ((${#names[@]} == 2)) ||
    wrong_use "$(text "PROFILE and RECIPE are wanted, then KEY=VALUE; given: {1}" "${names[*]:-$(text "nothing")}")"
  PROFILE=${names[0]} RECIPE=${names[1]}
}

path_is_named() {
  [[ $1 == ?*=?* ]] || wrong_use "$(text "--path {1}: NAME=PATH is wanted" "$1")"
}

# What patchctl says of the recipe. A rule that is broken ends the script here, with patchctl's own words.
read_recipe() {
  whole --wait "$WAIT"
  [[ -z $NODES ]] || { whole --nodes "$NODES" && ASKED+=(--nodes "$NODES"); }
  WORKSPACE=$(realpath -m -- "$WORKSPACE")
  COMMAND=$(patchctl recipe command --profile "$PROFILE" "$RECIPE" "${ASKED[@]}" --workspace "$WORKSPACE")
  ENVIRONMENT=$(patchctl recipe env --profile "$PROFILE" "$RECIPE" "${ASKED[@]}")
  # The command begins with `# PROFILE/RECIPE, release NAME: what it does`.
  TITLE=$(sed -n '1s/^# \([^:, ]*\), release \([^: ]*\):.*/\1@\2/p' <<<"$COMMAND")
  TITLE=${TITLE:-$PROFILE/$RECIPE}
  TRAINERS=$(override trainer.nnodes) DEVICES=$(override trainer.n_gpus_per_node)
  local engines # nodes of their own, which ray_cluster.sh adds, too
  engines=$(override actor_rollout_ref.rollout.nnodes)
  NODES=$((TRAINERS + ${engines:-0}))
  FOLDER=$(WORKSPACE=$WORKSPACE bash -c "printf %s $(sed -n 's/^cd \(.*\) || exit$/\1/p' <<<"$COMMAND")")
  PREFLIGHT_COMMAND=(preflight --profile "$PROFILE" --recipe "$RECIPE" "${ASKED[@]}" --workspace "$WORKSPACE"
    --python "$(command -v python3)" "${ACCEPTED[@]}")
}

# RAY_ADDRESS as the driver gets it; `local` is Ray's word for a cluster of its own.
find_cluster() {
  local state=${PATCHCTL_RAY_STATE_DIR:-${TMPDIR:-/tmp}/patchctl-ray-$UID}/address
  if [[ -n $HEAD ]]; then
    [[ $HEAD == *:* ]] || HEAD+=:6766
  elif [[ ${RAY_ADDRESS-} == *:* ]]; then
    HEAD=$RAY_ADDRESS
  elif [[ -r $state ]]; then
    HEAD=$(<"$state")
  elif ((NODES > 1)) && [[ -n $DRY_RUN ]]; then
    say "$(text "no cluster is known for {1} nodes; a dry run assumes one, and its script wants HEAD=HOST:PORT" "$NODES")"
  elif ((NODES > 1)); then
    wrong_use "$(text "no cluster is known for {1} nodes" "$NODES")" \
      "$(text "ray_cluster.sh head and worker first; or --head ADDRESS[:PORT]")"
  fi
  STATUS_COMMAND=("$HERE/ray_cluster.sh" status --head "$HEAD" --nodes "$TRAINERS" --devices "$DEVICES" --wait "$WAIT"
    --profile "$PROFILE" --recipe "$RECIPE" "${ASKED[@]}")
}

# Variables that the command or the environment reads, each with what it stands for: NAME:?WHAT
variables() {
  grep -ohE '\$\{[A-Z_][A-Z0-9_]*:\?[^}]*\}' <<<"$COMMAND"$'\n'"$ENVIRONMENT" | sed 's/^..//; s/}$//' | sort -u
}

# All that are missing at once. Training starts in another folder, so that relative paths are made absolute.
check_paths() {
  local line name missing=()
  while IFS= read -r line; do
    name=${line%%:\?*}
    if [[ -z ${!name-} ]]; then
      missing+=("  $name: ${line#*:\?}")
    else
      export "$name=$(absolute "$name" "${!name}")"
    fi
  done < <(variables)
  ((${#missing[@]} == 0)) || die "$WRONG_USE" "$(text "{1} needs paths that are not set:" "$PROFILE/$RECIPE")
$(printf '%s\n' "${missing[@]}")" "$(text "export NAME=PATH, or --path NAME=PATH (patchctl recipe show -v {1})" "$TITLE")"
  [[ -d $FOLDER ]] || die "$WRONG_USE" "$(text "{1}: there is no such folder" "$FOLDER")" \
    "$(text "patchctl apply --profile {1} --workspace D (with the recipe's --release), --workspace D" "$PROFILE")"
}

# absolute NAME PATH: a model may also be a name on a hub, which is no path; checkpoints may not be there yet.
absolute() {
  if [[ $1 == CKPTS_DIR || $1 == checkpoints || -e $2 ]]; then
    realpath -m -- "$2"
  else
    printf '%s' "$2"
  fi
}

print_plan() {
  check_paths_aloud
  local trees=''
  [[ -z $ON_PATH ]] || trees=$(trees_of "$WORKSPACE") || true
  # shellcheck disable=SC2016
  [[ -z $trees ]] || printf 'export PYTHONPATH=%q${PYTHONPATH:+:$PYTHONPATH}\n' "$trees"
  [[ -z ${PATCHCTL_RELEASE-} ]] || printf 'export PATCHCTL_RELEASE=%q\n' "$PATCHCTL_RELEASE"
  local PROGRAM ROOT name
  find_patchctl
  [[ $PROGRAM != "$(type -P patchctl)" ]] || PROGRAM=patchctl
  [[ -z $ROOT ]] || printf 'export PATCHCTL_ROOT=%q\n' "$ROOT"
  while IFS= read -r name; do
    name=${name%%:\?*}
    [[ -z ${!name-} ]] || printf 'export %s=%q\n' "$name" "$(absolute "$name" "${!name}")"
  done < <(variables)
  if [[ -n $PREFLIGHT ]]; then printf '%q' "$PROGRAM" && printf ' %q' "${PREFLIGHT_COMMAND[@]}" && echo ' || exit'; fi
  # Only what is known now is quoted; a cluster that is not there yet is the script's own HEAD.
  local head=local
  if [[ -n $HEAD ]]; then
    printf -v head %q "$HEAD"
  elif ((NODES > 1)); then
    # shellcheck disable=SC2016
    head='$HEAD'
    # shellcheck disable=SC2016
    echo ': "${HEAD:?HOST:PORT of the first node, where ray_cluster.sh head runs}"'
  fi
  if [[ $head != local ]]; then
    printf '%q ' "${STATUS_COMMAND[@]:0:2}" && printf -- '--head %s ' "$head"
    printf '%q ' "${STATUS_COMMAND[@]:4}" && echo '|| exit'
  fi
  printf '%s\nexport RAY_ADDRESS=%s WORKSPACE=%q\n%s\n' "$ENVIRONMENT" "$head" "$WORKSPACE" "$COMMAND"
}

check_paths_aloud() {
  (check_paths) || say "$(text "this is what the printed script would stop at")"
}

preflight() {
  if [[ -z $PREFLIGHT ]]; then
    say "$(text "warning: --no-preflight: nobody has looked at this machine; what is missing shows up in hours, not now")"
    return
  fi
  patchctl "${PREFLIGHT_COMMAND[@]}" >&2 || {
    local status=$?
    die "$status" "$(text "preflight says no: nothing was started")" \
      "$(text "what it says above; --accept NAME; --no-preflight to go on blindly")"
  }
}

wait_for_cluster() {
  [[ -z $HEAD ]] || in_group "${STATUS_COMMAND[@]}" >&2
}

train() {
  set +e
  bash -euc "$COMMAND" train.sh 2>&1 </dev/null | (trap '' INT TERM HUP && exec tee -a -- "$LOG")
  exit "${PIPESTATUS[0]}"
}

# Before anything is waited for.
make_log_folder() {
  mkdir -p -- "$LOG_DIR" 2>/dev/null && [[ -w $LOG_DIR ]] ||
    wrong_use "$(text "--log-dir {1}: nothing can be written there" "$LOG_DIR")"
}

start_log() {
  LOG=$(realpath -- "$LOG_DIR")/$PROFILE-${RECIPE##*/}-$(date +%Y%m%d_%H%M%S).log
  printf '%s\n' "$ENVIRONMENT" "$COMMAND" | sed 's/^/# /' >"$LOG"
  say "$(text "the log: {1}" "$LOG")"
}

main() {
  parse "$@"
  read_recipe
  find_cluster
  if [[ -n $DRY_RUN ]]; then
    print_plan
    return
  fi
  check_paths
  make_log_folder
  [[ -z $ON_PATH ]] || put_on_path "$WORKSPACE"
  source_cann "$CANN"
  ((NODES == 1)) || find_way "${HEAD%:*}"
  load_environment "$ENVIRONMENT"
  raise_file_limit
  preflight
  wait_for_cluster
  export RAY_ADDRESS=${HEAD:-local} WORKSPACE
  start_log
  local status=0
  in_group train || status=$?
  say "$(text "the training ended with {1}; the log: {2}" "$status" "$LOG")"
  return "$status"
}

main "$@"
