#!/usr/bin/env bash
# Starts Ray on a node of a training run, with the recipe's environment loaded before it; waits for the others; stops what
# it started and nothing else. docs/scripts.md
set -euo pipefail

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
SCRIPT=ray_cluster.sh
# shellcheck source=scripts/common.sh
source "$HERE/common.sh"

# Everything that `ray start` leaves running inherits this variable: that is how `stop` knows its own from others'.
readonly MARK=PATCHCTL_RAY_STATE
readonly GRACE_S=15 REST_S=5 # for everything, and for what is left once the raylets have ended

usage() {
  cat <<'TEXT'
Usage: ray_cluster.sh head   (--profile P --recipe R | --env-file F | --no-env) [--nodes N] [options] [-- RAY-OPTIONS]
       ray_cluster.sh worker (as above) --head ADDRESS [options] [-- RAY-OPTIONS]
       ray_cluster.sh status [--nodes N] [--wait SECONDS] [--json] [options]
       ray_cluster.sh stop

head starts the first node of a Ray cluster and waits for N nodes; worker waits for the head and joins it; status says which
nodes are there, and waits with --wait; stop ends what this script started on this machine, and nothing else.

The environment comes first: Ray's workers inherit that of `ray start`, and a variable that is set later reaches none.
  -p, --profile P, -r, --recipe R   load `patchctl recipe env` of this recipe
      --path NAME=PATH, --size NAME=N, --release NAME|KEY=VALUE   passed to `patchctl recipe env`; repeatable
      --env-file F           source F instead: what `patchctl recipe env` printed elsewhere
      --no-env               leave the environment as it is
      --workspace D          put the trees of D on PYTHONPATH; not needed where they are installed
      --cann D               CANN's folder; its set_env.sh is sourced unless it is already [default: /usr/local/Ascend]

Where:
      --head ADDRESS[:PORT]  the first node [status: the cluster that this script started here]
      --port N               port of the head [default: 6766]
      --dashboard-port N     [default: 8260], on --dashboard-host [default: 127.0.0.1]
      --node-ip A            this node's address [default: the one on the way to the head]
      --interface I          its interface, for HCCL and gloo [default: the one that has the address]
      --devices N            NPUs of a node [default: counted under /dev, ASCEND_RT_VISIBLE_DEVICES obeyed]
      --temp-dir D           Ray's files, on the head [default: Ray's own]
      --state D              what is remembered here; one for each raylet of a machine
                             [default: $PATCHCTL_RAY_STATE_DIR, else $TMPDIR/patchctl-ray-$UID]

Waiting:
  -n, --nodes N              how many nodes, of a recipe those that train: engines' own are added [default: the recipe's, else 1]
      --expect A,B,...       their addresses, or --hosts FILE with one a line: so that a missing one can be named
      --wait SECONDS         [default: 600; status: 0]
      --poll SECONDS         [default: 5]
      --block                stay until interrupted or until Ray ends, and stop it then

Exit codes: 0 done; 1 nodes are missing when the time is over, or Ray ended; 2 wrong use; 6 it runs here already, or the port
is taken; 130 interrupted, 143 terminated: what was started is stopped then.

  ray_cluster.sh head -p qwen3-235b -r grpo --hosts hosts.txt        # on the first of 8 nodes
  ray_cluster.sh worker -p qwen3-235b -r grpo --nodes 8 --head 10.0.0.1        # on every other one
  ray_cluster.sh status --nodes 8 --wait 600 && scripts/train.sh qwen3-235b grpo
TEXT
}

parse() {
  PROFILE='' RECIPE='' ENV_FILE='' NO_ENV='' ASKED=() WORKSPACE='' CANN=/usr/local/Ascend
  HEAD='' PORT=6766 DASHBOARD_PORT=8260 DASHBOARD_HOST=127.0.0.1 NODE_IP='' INTERFACE='' DEVICES='' TEMP_DIR=''
  STATE=${PATCHCTL_RAY_STATE_DIR:-${TMPDIR:-/tmp}/patchctl-ray-$UID}
  NODES='' EXPECT='' HOSTS='' WORD='' WAIT='' POLL=5 BLOCK='' JSON='' RAY_OPTIONS=()
  while (($#)); do
    case $1 in
      -p | --profile) take PROFILE "$@" && shift 2 ;;
      -r | --recipe) take RECIPE "$@" && shift 2 ;;
      --path | --size | --release) take WORD "$@" && ASKED+=("$1" "$WORD") && shift 2 ;;
      --env-file) take ENV_FILE "$@" && shift 2 ;;
      --no-env) NO_ENV=1 && shift ;;
      --workspace) take WORKSPACE "$@" && shift 2 ;;
      --cann) take CANN "$@" && shift 2 ;;
      --head) take HEAD "$@" && shift 2 ;;
      --port) take PORT "$@" && shift 2 ;;
      --dashboard-port) take DASHBOARD_PORT "$@" && shift 2 ;;
      --dashboard-host) take DASHBOARD_HOST "$@" && shift 2 ;;
      --node-ip) take NODE_IP "$@" && shift 2 ;;
      --interface) take INTERFACE "$@" && shift 2 ;;
      --devices) take DEVICES "$@" && shift 2 ;;
      --temp-dir) take TEMP_DIR "$@" && shift 2 ;;
      --state) take STATE "$@" && shift 2 ;;
      -n | --nodes) take NODES "$@" && shift 2 ;;
      --expect) take EXPECT "$@" && shift 2 ;;
      --hosts) take HOSTS "$@" && shift 2 ;;
      --wait) take WAIT "$@" && shift 2 ;;
      --poll) take POLL "$@" && shift 2 ;;
      --block) BLOCK=1 && shift ;;
      --json) JSON=1 && shift ;;
      --) shift && RAY_OPTIONS=("$@") && break ;;
      -*) wrong_use "unknown option $1" ;;
      *=*) ASKED+=("$1") && shift ;;
      *) wrong_use "unknown option $1" ;;
    esac
  done
}

check() {
  whole --port "$PORT" && whole --dashboard-port "$DASHBOARD_PORT" && whole --poll "$POLL"
  ((POLL)) || wrong_use "--poll 0: at least a second"
  [[ -z $NODES ]] || whole --nodes "$NODES"
  [[ -z $DEVICES ]] || whole --devices "$DEVICES"
  [[ -z $WAIT ]] || whole --wait "$WAIT"
  [[ -z $RECIPE$PROFILE ]] || [[ -n $RECIPE && (-n $PROFILE || $RECIPE == */*) ]] || wrong_use "give --profile and --recipe"
  if [[ $HEAD =~ ^(.+):([0-9]+)$ ]]; then
    HEAD=${BASH_REMATCH[1]} PORT=${BASH_REMATCH[2]}
  fi
  STATE=$(realpath -m -- "$STATE")
  [[ -z $HOSTS ]] || EXPECT=$(hosts_of "$HOSTS")
  COUNT=$(count_of "$EXPECT")
}

# hosts_of FILE: the first word of every line, comments left out, as A,B,C. A node's address is what Ray knows it by.
hosts_of() {
  [[ -r $1 ]] || wrong_use "--hosts $1: no such file"
  sed 's/#.*//; s/\r$//' -- "$1" | awk 'NF { printf "%s%s", sep, $1; sep = "," }'
}

# count_of A,B,C: 3; of nothing: nothing.
count_of() {
  [[ -z $1 ]] || awk -F, '{ print NF }' <<<"$1"
}

# Devices of this node: what this container was given, in the terms of whoever limits it.
count_devices() {
  local found
  found=$(npus)
  [[ -n $found ]] || wrong_use "no NPU was found (/dev/davinci*)" "--devices N"
  if [[ -n ${ASCEND_RT_VISIBLE_DEVICES-} ]]; then
    count_of "$ASCEND_RT_VISIBLE_DEVICES"
  else
    wc -l <<<"$found"
  fi
}

# The recipe's environment, the node's own variables, CANN's, and the limit of open files.
prepare() {
  local text
  text=$(environment_text)
  source_cann "$CANN"
  find_way "$HEAD"
  HEAD=${HEAD:-$NODE_IP}
  DEVICES=${DEVICES:-$(count_devices)}
  export RAY_DEDUP_LOGS=0
  [[ -z $WORKSPACE ]] || put_on_path "$WORKSPACE"
  load_environment "$text"
  raise_file_limit
  say "this node: $NODE_IP on $INTERFACE, $DEVICES NPU; head: $HEAD:$PORT"
  [[ $INTERFACE != lo || ${NODES:-1} -le 1 ]] || say "warning: lo reaches no other machine; --interface NAME says another"
}

environment_text() {
  local nodes=()
  if [[ -n $RECIPE ]]; then
    [[ -z $TRAINERS ]] || nodes=(--nodes "$TRAINERS")
    patchctl recipe env ${PROFILE:+--profile "$PROFILE"} "${nodes[@]}" "$RECIPE" "${ASKED[@]}"
  elif [[ -n $ENV_FILE ]]; then
    [[ -r $ENV_FILE ]] || wrong_use "--env-file $ENV_FILE: no such file"
    cat -- "$ENV_FILE"
  elif [[ -z $NO_ENV ]]; then
    wrong_use "which environment?" "--profile P --recipe R, or --env-file F, or --no-env"
  fi
}

# The processes that this script started: those with the mark, and what descends from them. (A worker's own environment
# cannot be read once it has overwritten its title.)
started() {
  local marked
  marked=$(grep -lzxF -- "$MARK=$STATE" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true)
  [[ -n $marked ]] || return 0
  { cat /proc/[0-9]*/status 2>/dev/null || true; } | awk -v marked="${marked//$'\n'/ }" '
    BEGIN { n = split(marked, list, " "); for (i = 1; i <= n; i++) ours[list[i]] }
    /^Pid:/ { pid = $2 }
    /^PPid:/ { parent[pid] = $2 }
    END {
      do { more = 0; for (p in parent) if (!(p in ours) && (parent[p] in ours)) { ours[p]; more = 1 } } while (more)
      for (p in ours) if (p in parent) print p
    }'
}

started_raylet() {
  local pid
  for pid in $(started); do
    [[ $(cat "/proc/$pid/comm" 2>/dev/null) != raylet ]] || { echo "$pid" && return; }
  done
}

warn_of_others() {
  local pid
  while read -r pid; do
    say "warning: another raylet (pid $pid) runs on this machine; it is left alone"
  done < <(grep -lx raylet /proc/[0-9]*/comm 2>/dev/null | cut -d/ -f3)
}

# When a process began, in ticks; nothing for one that ended. With it, a number that is used again is another process.
began() {
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
  read -ra stat <<<"${stat##*) }"
  [[ ${stat[0]} == Z ]] || echo "${stat[19]}"
}

# Raylets first, as `ray stop` does: they end their workers and tell the head; then the rest; what is left after a while is
# killed. Those that lose their parent are still waited for: `ours` remembers them.
stop_started() {
  local pid left raylets deadline=$((SECONDS + GRACE_S))
  local -A ours=() told=()
  while :; do
    for pid in $(started); do
      [[ -n ${ours[$pid]-} ]] || ours[$pid]=$(began "$pid")
    done
    left=() raylets=()
    for pid in "${!ours[@]}"; do
      [[ -n ${ours[$pid]} && $(began "$pid") == "${ours[$pid]}" ]] || continue
      left+=("$pid")
      [[ $(cat "/proc/$pid/comm" 2>/dev/null) != raylet ]] || raylets+=("$pid")
    done
    ((${#left[@]})) || break
    if ((${#raylets[@]} == 0)); then
      raylets=("${left[@]}")
      ((deadline < SECONDS + REST_S)) || deadline=$((SECONDS + REST_S))
    fi
    for pid in "${raylets[@]}"; do
      [[ -n ${told[$pid]-} ]] || { kill -TERM "$pid" 2>/dev/null || true; }
      told[$pid]=1
    done
    ((SECONDS < deadline)) || kill -KILL "${left[@]}" 2>/dev/null || true
    sleep 0.2
  done
  rm -f -- "$STATE/address"
}

on_signal() {
  trap '' INT TERM HUP
  if [[ -n $CHILD ]]; then
    kill "$CHILD" 2>/dev/null || true
    wait "$CHILD" 2>/dev/null || true
  fi
  if [[ -n $STARTING ]]; then
    say "interrupted: stopping what was started here"
    stop_started
  fi
  exit "$1"
}

# Waits for the last job of the background; unlike a command in the foreground, a signal ends that at once.
attend() {
  local status=0
  CHILD=$!
  wait "$CHILD" || status=$?
  CHILD=''
  return "$status"
}

# The environment is not given on to `python3` and `sleep` of this script, hence the mark here alone.
start() {
  local log="$STATE/ray_start.log"
  (umask 077 && mkdir -p -- "$STATE")
  [[ -O $STATE ]] || die "$WRONG_USE" "$STATE belongs to somebody else" "--state D"
  [[ -z $(started) ]] || die "$BUSY" "Ray of this script runs here already" "$SCRIPT stop --state $STATE"
  warn_of_others
  STARTING=1
  printf '%s:%s\n' "$HEAD" "$PORT" >"$STATE/address"
  set -m # in a group of its own, with signals as a terminal gives them
  env -u RAY_ADDRESS "$MARK=$STATE" ray start "$@" --node-ip-address "$NODE_IP" --resources "{\"NPU\": $DEVICES}" \
    --disable-usage-stats "${RAY_OPTIONS[@]}" >"$log" 2>&1 </dev/null &
  set +m
  if ! attend; then
    stop_started
    tail -n 20 -- "$log" >&2
    die "$FINDINGS" "Ray did not start here" "its output is in $log"
  fi
  say "Ray is up here; its output is in $log"
}

ask_nodes() {
  python3 "$HERE/ray_nodes.py" "$@" &
  attend
}

# Until the raylet that was started is gone.
block() {
  while [[ -n $(started_raylet) ]]; do
    sleep "$POLL" &
    attend
  done
  stop_started
  die "$FINDINGS" "Ray ended on this node" "its logs are in ${TEMP_DIR:-/tmp/ray}/session_latest/logs"
}

head_() {
  need_command ray "activate the environment that has Ray"
  recipe_nodes
  prepare
  [[ $HEAD == "$NODE_IP" ]] || wrong_use "the head's address is --node-ip $NODE_IP, not --head $HEAD"
  [[ -n $(started) ]] || ! python3 "$HERE/ray_nodes.py" reach "$HEAD:$PORT" 2>/dev/null ||
    die "$BUSY" "port $PORT of $HEAD is taken by something that this script did not start" "end it there, or --port N"
  start --head --port "$PORT" --dashboard-host "$DASHBOARD_HOST" --dashboard-port "$DASHBOARD_PORT" \
    ${TEMP_DIR:+--temp-dir "$TEMP_DIR"}
  say "on the other nodes: ray_cluster.sh worker --head $HEAD:$PORT${TRAINERS:+ --nodes $TRAINERS}, with the same recipe"
  ask_nodes nodes "$HEAD:$PORT" --nodes "$NODES" --devices "$DEVICES" --expect "$EXPECT" --wait "${WAIT:-600}" \
    --poll "$POLL" || die "$FINDINGS" "not all nodes are there; Ray stays up here" \
    "$SCRIPT status --state $STATE --nodes $NODES --devices $DEVICES ${EXPECT:+--expect $EXPECT }--wait 600, or stop"
  [[ -z $BLOCK ]] || block
}

worker() {
  need_command ray "activate the environment that has Ray"
  [[ -n $HEAD ]] || wrong_use "worker wants --head ADDRESS"
  recipe_nodes
  prepare
  ask_nodes reach "$HEAD:$PORT" --wait "${WAIT:-600}" --poll "$POLL" ||
    die "$FINDINGS" "the head at $HEAD:$PORT was not reached in ${WAIT:-600} s" "is it up? is the port open?"
  start --address "$HEAD:$PORT"
  ask_nodes nodes "$HEAD:$PORT" --devices "$DEVICES" --expect "$NODE_IP" --wait 60 --poll 1 >&2 ||
    { stop_started && die "$FINDINGS" "this node did not appear in the cluster" "see $STATE/ray_start.log"; }
  [[ -z $BLOCK ]] || block
}

status() {
  need_command ray "activate the environment that has Ray"
  if [[ -z $HEAD ]]; then
    [[ -r $STATE/address ]] || wrong_use "which cluster? none was started here" "--head ADDRESS[:PORT]"
    HEAD=$(<"$STATE/address")
    check
  fi
  recipe_nodes
  ask_nodes nodes "$HEAD:$PORT" --nodes "$NODES" --devices "${DEVICES:-0}" --expect "$EXPECT" --wait "${WAIT:-0}" \
    --poll "$POLL" ${JSON:+--json} || die "$FINDINGS" "not all nodes are there"
  [[ -z $RECIPE$ENV_FILE ]] || compare_environment
}

# What the recipe says now, against what the raylet of this node was started with.
compare_environment() {
  local text pid name there differs=''
  pid=$(started_raylet)
  [[ -n $pid ]] || { say "Ray of this node was not started by this script: its environment is not compared" && return 0; }
  text=$(environment_text)
  load_environment "$text"
  for name in $(names_of "$text"); do
    there=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n "s/^$name=//p")
    [[ $there == "${!name}" ]] || differs+=" $name=$there (the recipe: ${!name})"
  done
  [[ -z $differs ]] ||
    die "$FINDINGS" "Ray was started with another environment:$differs" "stop it on every node, and start it with this recipe"
}

# How many nodes: said, or counted in --hosts, or the recipe's; on top of a recipe's come those that its engines have to themselves.
recipe_nodes() {
  local COMMAND engines=''
  TRAINERS=$NODES
  if [[ -n $RECIPE ]]; then
    COMMAND=$(patchctl recipe command ${PROFILE:+--profile "$PROFILE"} ${NODES:+--nodes "$NODES"} "$RECIPE" "${ASKED[@]}")
    engines=$(override actor_rollout_ref.rollout.nnodes)
    if [[ -n $NODES || -z $COUNT ]]; then
      NODES=$(($(override trainer.nnodes) + ${engines:-0}))
    elif [[ -z $engines ]]; then
      TRAINERS=$COUNT
    fi
  fi
  NODES=${NODES:-${COUNT:-1}}
}

stop() {
  if [[ -z $(started) ]]; then
    rm -f -- "$STATE/address" # of a cluster that has died
    say "nothing runs here that was started with --state $STATE"
  else
    stop_started
    say "stopped"
  fi
}

main() {
  local verb=${1-}
  case $verb in
    head | worker | status | stop) shift ;;
    -h | --help) usage && return ;;
    '') wrong_use "head, worker, status or stop?" ;;
    *) wrong_use "unknown command $verb" ;;
  esac
  case " $* " in *" --help "* | *" -h "*) usage && return ;; esac
  parse "$@"
  check
  CHILD='' STARTING=''
  trap 'on_signal $INTERRUPTED' INT
  trap 'on_signal $TERMINATED' TERM HUP
  case $verb in
    head) head_ ;;
    *) "$verb" ;;
  esac
}

main "$@"
