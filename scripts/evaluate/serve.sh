#!/usr/bin/env bash
# Serves a model with vLLM as 003, 4.8.3 does for its evaluation: in the foreground, until it is interrupted. docs/scripts.md
set -euo pipefail

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
SCRIPT=serve.sh
# shellcheck source=scripts/common.sh
source "$HERE/../common.sh"
readonly GRACE_S=30

usage() {
  cat <<'TEXT'
Usage: serve.sh MODEL_DIR [options] [-- OPTIONS OF vllm serve]

Starts `vllm serve`, says when it answers, stays, and takes all of its processes with it when it is interrupted.
The settings are those of 003's evaluation on one A3 machine of 16 devices: tensor parallel 4, data parallel 4, 24 sequences,
22,528 tokens, 0.9 of the memory, eager mode. The last word counts: -- --max-num-seqs 12.

      --name NAME       the name that clients ask for [default: qwen3-32b]
      --port N          [default: 6380]
      --host A          [default: 127.0.0.1: whoever reaches the port can use the model]
      --tp N, --dp N    tensor and data parallel sizes [default: 4, 4]
      --no-remote-code  do not run Python code that comes with the model (003 allows it)
      --wait SECONDS    for the first answer of /health [default: 1800]
      --log FILE        [default: logs/serve-TIME.log]
      --cann D          CANN's folder; its set_env.sh is sourced unless it is already [default: /usr/local/Ascend]

Exit codes: 1 the server ended, or did not answer in time; 2 wrong use; 6 the port is taken; 130 interrupted, 143 terminated.

  cd /data/run && serve.sh /data/Qwen3-32B-step-100
TEXT
}

parse() {
  MODEL='' NAME=qwen3-32b PORT=6380 HOST=127.0.0.1 TP=4 DP=4 REMOTE_CODE=(--trust-remote-code) WAIT=1800 LOG=''
  CANN=/usr/local/Ascend EXTRA=()
  while (($#)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --name) take NAME "$@" && shift 2 ;;
      --port) take PORT "$@" && shift 2 ;;
      --host) take HOST "$@" && shift 2 ;;
      --tp) take TP "$@" && shift 2 ;;
      --dp) take DP "$@" && shift 2 ;;
      --no-remote-code) REMOTE_CODE=() && shift ;;
      --wait) take WAIT "$@" && shift 2 ;;
      --log) take LOG "$@" && shift 2 ;;
      --cann) take CANN "$@" && shift 2 ;;
      --) shift && EXTRA=("$@") && break ;;
      -*) wrong_use "unknown option $1" ;;
      *) [[ -z $MODEL ]] || wrong_use "one MODEL_DIR, not $MODEL and $1" && MODEL=$1 && shift ;;
    esac
  done
}

check() {
  [[ -n $MODEL ]] || wrong_use "MODEL_DIR is wanted"
  whole --port "$PORT" && whole --tp "$TP" && whole --dp "$DP" && whole --wait "$WAIT"
  [[ -r $MODEL/config.json ]] || die "$WRONG_USE" "$MODEL: no model is there (config.json)" \
    "the folder of a merged or downloaded model; nothing is fetched here"
  MODEL=$(realpath -- "$MODEL")
  check_folder "$(pwd -P)"
  need_command vllm "activate the environment that has vLLM and vllm-ascend"
  ! answers "http://$HOST:$PORT/health" || die "$BUSY" "$HOST:$PORT answers already" "end that server, or --port N"
}

# 003, 4.8.3: not under /home, where paths go wrong: its image has checkouts there, and a folder `vllm` in the current one is
# what Python imports in place of an editable installation.
check_folder() {
  [[ $1 != /home && $1 != /home/* ]] || die "$WRONG_USE" "the server fails when it is started under /home (003, 4.8.3)" \
    "cd to another folder"
  local name
  for name in vllm vllm_ascend vllm-ascend; do
    [[ ! -d $1/$name ]] || die "$WRONG_USE" "$1 has a folder $name, which Python may import in place of the package" \
      "cd to another folder"
  done
}

serve() {
  exec vllm serve "$MODEL" --served-model-name "$NAME" --host "$HOST" --port "$PORT" \
    --tensor-parallel-size "$TP" --data-parallel-size "$DP" --distributed-executor-backend mp \
    --gpu-memory-utilization 0.9 --max-num-seqs 24 --max-model-len 22528 --max-num-batched-tokens 22528 \
    --enforce-eager --generation-config vllm "${REMOTE_CODE[@]}" "${EXTRA[@]}"
}

alive() {
  kill -0 -- "-$GROUP" 2>/dev/null
}

# Every process of the server's group: first asked, then killed.
stop_server() {
  trap '' INT TERM HUP
  local deadline=$((SECONDS + GRACE_S))
  kill -TERM -- "-$GROUP" 2>/dev/null || true
  while alive; do
    ((SECONDS < deadline)) || kill -KILL -- "-$GROUP" 2>/dev/null || true
    wait "$GROUP" 2>/dev/null || true # so that it does not stay as a zombie, which looks alive
    sleep 0.2
  done
}

# shellcheck disable=SC2329 # by trap
on_signal() {
  say "interrupted: the server ends"
  stop_server
  exit "$1"
}

wait_for_health() {
  local url="http://$HOST:$PORT/health" deadline=$((SECONDS + WAIT))
  say "waiting up to $WAIT s for $url; the log: $LOG"
  until answers "$url"; do
    [[ -n $(jobs -rp) ]] || ended "the server ended before it answered"
    ((SECONDS < deadline)) || ended "the server did not answer in $WAIT s"
    sleep 1 &
    wait $!
  done
  say "$NAME is served at http://$HOST:$PORT; Ctrl-C ends it"
}

ended() {
  stop_server
  tail -n 20 -- "$LOG" >&2
  die "$FINDINGS" "$1" "the log: $LOG"
}

main() {
  parse "$@"
  check
  source_cann "$CANN"
  LOG=${LOG:-logs/serve-$(date +%Y%m%d_%H%M%S).log}
  mkdir -p -- "$(dirname -- "$LOG")"
  set -m
  serve >"$LOG" 2>&1 </dev/null &
  GROUP=$!
  set +m
  trap 'on_signal $INTERRUPTED' INT
  trap 'on_signal $TERMINATED' TERM HUP
  wait_for_health
  wait "$GROUP" || true
  ended "the server ended"
}

main "$@"
