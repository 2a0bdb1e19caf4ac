# shellcheck shell=bash
# What the shell scripts of this folder share. Sourced, never run: `SCRIPT` is the name that messages begin with.

# As patchctl's own (docs/exit-codes.md).
# shellcheck disable=SC2034
readonly FINDINGS=1 WRONG_USE=2 BUSY=6 INTERRUPTED=130 TERMINATED=143

# Before 4.4 `set -u` ends a script at "${ARRAY[@]}" of an empty array.
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  printf '%s: bash %s is too old\n  try: install bash 4.4 or newer\n' "${SCRIPT-}" "$BASH_VERSION" >&2
  exit "$WRONG_USE"
fi

# Whether people are to read Chinese, by patchctl's rule (docs/environment.md, PATCHCTL_LANG). What is written here is UTF-8; where no
# locale is set up, or one that is not installed, a terminal shows that as well.
in_chinese() {
  local named=${PATCHCTL_LANG:-${LC_ALL:-${LC_MESSAGES:-${LANG-}}}}
  [[ ${named,,} =~ ^zh([_-](cn|sg|hans)([^a-z0-9_].*)?|[.@].*)?$ ]] || return 1
  case $(locale charmap 2>/dev/null) in '' | UTF-8 | ANSI_X3.4-1968) ;; *) return 1 ;; esac
}

# The Chinese of messages by their English, where there is any: for scripts that have all of theirs in messages.zh_CN.sh.
declare -A CHINESE=()
if [[ ${SCRIPT-} == train.sh ]] && in_chinese; then
  # shellcheck source=scripts/messages.zh_CN.sh
  source "$(dirname -- "${BASH_SOURCE[0]}")/messages.zh_CN.sh"
fi

# text MESSAGE [VALUE...]: the message in the language in use, with the values for {1}, {2}, ...
text() {
  local left=${CHINESE[$1]-$1} made='' number
  shift
  while [[ $left =~ ^([^{]*)\{([0-9])\}(.*)$ ]]; do
    number=${BASH_REMATCH[2]} left=${BASH_REMATCH[3]}
    made+=${BASH_REMATCH[1]}${!number}
  done
  printf '%s' "$made$left"
}

# shellcheck disable=SC2153
say() {
  printf '%s: %s\n' "$SCRIPT" "$*" >&2
}

# die CODE WHAT [HINT]
die() {
  say "$2"
  [[ -z ${3-} ]] || printf '  %s\n' "$(text "try: {1}" "$3")" >&2
  exit "$1"
}

wrong_use() {
  die "$WRONG_USE" "$1" "${2:-$SCRIPT --help}"
}

# take NAME "$@": the word after the option that comes first, into NAME. Not by substitution, where an error would end only
# the subshell.
take() {
  [[ $# -ge 3 ]] || wrong_use "$(text "{1} wants a value" "$2")"
  printf -v "$1" '%s' "$3"
}

# whole OPTION TEXT: a whole number of at least 0.
whole() {
  [[ $2 =~ ^(0|[1-9][0-9]{0,8})$ ]] || wrong_use "$(text "{1} {2}: a whole number is wanted" "$1" "$2")"
}

need_command() {
  command -v -- "$1" >/dev/null || die "$WRONG_USE" "$(text "there is no {1} on PATH" "$1")" "$2"
}

# find_patchctl: sets PROGRAM to patchctl, wherever it is (PATCHCTL, PATH, or the environment that `make` made beside these scripts),
# and ROOT to the recipes that belong to these scripts, from whatever folder they are called. Where they were copied without any,
# patchctl looks itself.
find_patchctl() {
  local folder
  folder=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
  ROOT=${PATCHCTL_ROOT-}
  [[ -n $ROOT || ! -e $folder/manifests/upstreams.yaml ]] || ROOT=$folder
  PROGRAM=${PATCHCTL:-$(type -P patchctl || true)}
  [[ -n $PROGRAM || ! -x $folder/.venv/bin/patchctl ]] || PROGRAM=$folder/.venv/bin/patchctl
  [[ -n $PROGRAM ]] ||
    die "$WRONG_USE" "$(text "patchctl was not found")" "$(text "pip install it, put it on PATH, or set PATCHCTL to its path")"
}

patchctl() {
  local PROGRAM ROOT
  find_patchctl
  [[ -z $ROOT ]] || local -x PATCHCTL_ROOT=$ROOT
  "$PROGRAM" "$@"
}

# override KEY: its number in COMMAND, which `patchctl recipe command` printed.
override() {
  sed -n "s/^ *$1=\([0-9]*\) .*/\1/p" <<<"$COMMAND"
}

# of_release RELEASE SECTION KEY: what its manifest says, or that of the release which it extends; nothing where none does.
of_release() {
  local at=$1 found folder
  folder=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../manifests/releases" && pwd)
  while [[ -n $at ]]; do
    found=$(sed -n "/^$2:/,/^[^ ]/s/^  $3: *[\"']*\([^ \"']*\).*/\1/p" "$folder/$at.yaml")
    [[ -z $found ]] || { echo "$found" && return; }
    at=$(sed -n "s/^extends: *[\"']\([^\"']*\)[\"'].*/\1/p" "$folder/$at.yaml")
  done
}

# tree_of WORKSPACE NAME: where this tree lies, and 1 where the workspace has none. Nothing is printed for a package that was patched
# where it is installed: Python finds it.
tree_of() {
  if [[ -d $1/$2 ]]; then
    realpath -- "$1/$2"
  else
    [[ -r $1/.patchctl/state.json ]] && "${PYTHON:-python3}" - "$1/.patchctl/state.json" "$2" <<'PYTHON'
import json, sys
tree = json.load(open(sys.argv[1], encoding="utf-8"))["trees"].get(sys.argv[2])
if tree is None or tree["kind"] != "into":
    sys.exit(1)
if not tree["record"]:
    print(tree["folder"])
PYTHON
  fi
}

# trees_of WORKSPACE: what PYTHONPATH needs for its trees, and 1 where it has none.
trees_of() {
  local name tree found=1 there=()
  for name in verl vllm vllm-ascend megatron-lm mindspeed; do
    tree=$(tree_of "$1" "$name") || continue
    found=0
    [[ -z $tree ]] || there+=("$tree")
  done
  (IFS=: && echo "${there[*]}")
  return "$found"
}

# put_on_path WORKSPACE: its trees first on PYTHONPATH.
put_on_path() {
  local trees
  trees=$(trees_of "$1") ||
    wrong_use "$(text "--workspace {1}: none of the trees is there" "$1")" \
      "patchctl apply --profile ${PROFILE:-NAME} --workspace $(printf %q "$1")"
  [[ -z $trees ]] || export PYTHONPATH=$trees${PYTHONPATH:+:$PYTHONPATH}
}

# npus: the NPUs that this machine or container has, one path a line. PATCHCTL_HOST_ROOT: another root, for tests.
npus() {
  local path
  for path in "${PATCHCTL_HOST_ROOT-}"/dev/davinci[0-9]*; do
    [[ ! -e $path ]] || printf '%s\n' "$path"
  done | sort -V
}

# load_environment TEXT: evals what `patchctl recipe env` printed. A path that nobody has set ends the script by its name.
load_environment() {
  local missing
  if ! missing=$( (eval "$1") 2>&1); then
    die "$WRONG_USE" "$(text "the environment is incomplete: {1}" "${missing#*line *: }")" \
      "$(text "export it, or give it with --path NAME=PATH")"
  fi
  eval "$1"
  [[ -z ${LD_PRELOAD-} || -e ${LD_PRELOAD%%:*} ]] ||
    die "$WRONG_USE" "$(text "LD_PRELOAD={1}: there is no such library" "$LD_PRELOAD")" \
      "$(text "install it, or leave it out of the recipe")"
}

# The names that an environment exports, one a line.
names_of() {
  sed -n 's/^export \([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' <<<"$1"
}

# find_way HEAD: this node's address and interface on the way to the first node, into NODE_IP and INTERFACE unless they are
# said; exported for HCCL and gloo (003, 4.5). Without a head the way out decides: to an address that is no one's (RFC 5737). A head's
# name is exported as the address that it has for itself.
find_way() {
  local found='' head=''
  if [[ -z $NODE_IP || -z $INTERFACE ]]; then
    found=$(python3 "$HERE/ray_nodes.py" local "${NODE_IP:-${1:-192.0.2.1}}") ||
      die "$WRONG_USE" "$(text "the way to {1} was not found" "${1:-$(text "other machines")}")" "--node-ip ADDRESS --interface NAME"
    NODE_IP=${NODE_IP:-${found% *}} INTERFACE=${INTERFACE:-${found##* }}
  fi
  [[ -z $1 ]] || head=$(python3 "$HERE/ray_nodes.py" address "$1" 2>/dev/null) || head=$1
  export HCCL_SOCKET_IFNAME=$INTERFACE GLOO_SOCKET_IFNAME=$INTERFACE SOCKET_IFNAME=$INTERFACE MASTER_ADDR=${head:-$NODE_IP}
}

# Ray opens many files for each worker (003, 4.5).
raise_file_limit() {
  local now wanted=32768
  now=$(ulimit -Sn)
  [[ $now == unlimited || $now -ge $wanted ]] || ulimit -Sn "$wanted" 2>/dev/null ||
    say "$(text "warning: ulimit -n is {1} and cannot be raised to {2}: Ray runs out of files with many workers" "$now" "$wanted")"
}

# answers URL: whether it answers with success, asked directly: a proxy of the environment knows no local server.
answers() {
  python3 -c 'import sys; from urllib.request import ProxyHandler, build_opener
build_opener(ProxyHandler({})).open(sys.argv[1], timeout=5)' "$1" 2>/dev/null
}

# source_cann FOLDER: CANN's own variables, where this shell has not got them yet. A raylet's children inherit them.
source_cann() {
  local script
  [[ -z ${ASCEND_HOME_PATH-} ]] || return 0
  for script in "$1/ascend-toolkit/set_env.sh" "$1/nnal/atb/set_env.sh"; do
    [[ -r $script ]] || continue
    say "$(text "sourcing {1}" "$script")"
    set +eu # they read unset variables, and use the status of tests
    # shellcheck disable=SC1090
    source "$script"
    set -eu
  done
}

# in_group COMMAND...: runs it in a process group of its own, and passes on INT, TERM and HUP to all of it.
# In the background of a script without job control, INT would be ignored by everything that it starts.
in_group() {
  local status=0 caught=''
  set -m
  (trap : INT TERM HUP && "$@") & # this shell stays until what it started has ended
  local group=$!
  set +m
  trap 'caught=INT; kill -INT -- "-$group" 2>/dev/null' INT
  trap 'caught=TERM; kill -TERM -- "-$group" 2>/dev/null' TERM HUP
  # wait returns early for a signal that is trapped: then the group is still ending.
  while :; do
    wait "$group" && status=0 || status=$?
    kill -0 "$group" 2>/dev/null || break
  done
  trap - INT TERM HUP
  [[ $caught != INT ]] || return "$INTERRUPTED"
  [[ $caught != TERM ]] || return "$TERMINATED"
  return "$status"
}
