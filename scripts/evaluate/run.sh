#!/usr/bin/env bash
# Evaluates a served model on MATH-500 with AISBench, as 003, 4.8 does. docs/scripts.md
set -euo pipefail

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
SCRIPT=run.sh
# shellcheck source=scripts/common.sh
source "$HERE/../common.sh"

usage() {
  cat <<'TEXT'
Usage: run.sh --math FILE --model MODEL_DIR [options] [-- OPTIONS OF ais_bench]

Asks the server of serve.sh the 500 problems of MATH-500, without examples and step by step, at temperature 0, 48 at once,
and compares the boxed answers. Run it in the environment that has AISBench (pip install ais_bench_benchmark; 3.1 was tried).
Nothing is fetched.

      --math FILE       MATH-500: test_prm800k_500.json, the folder of math.zip that holds it, or JSON lines with problem
                        and solution. From http://opencompass.oss-cn-shanghai.aliyuncs.com/datasets/data/math.zip
      --model DIR       the model that is served, for its tokenizer
      --name NAME       what the server calls it [default: qwen3-32b]
      --host A, --port N    the server [default: localhost, 6380]
      --max-out-len N   tokens of an answer [default: 20480];   --batch-size N  requests at once [default: 48]
      --out DIR         configuration, data, log and results [default: outputs/math-500]; an earlier run's stay beside them
      --wait SECONDS    for the server [default: 1800]
      --cann D          CANN's folder; its set_env.sh is sourced unless it is already [default: /usr/local/Ascend]

Exit codes: AISBench's own; before it runs: 1 the server does not answer, or serves another name; 2 wrong use.

  run.sh --math data/math --model /data/Qwen3-32B-step-100
  run.sh --math data/math --model /data/Qwen3-32B -- --num-prompts 8         # a first try
TEXT
}

parse() {
  MATH='' MODEL='' NAME=qwen3-32b HOST=localhost PORT=6380 OUT=outputs/math-500 WAIT=1800 CANN=/usr/local/Ascend
  VALUES=() EXTRA=()
  local word=''
  while (($#)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --math) take MATH "$@" && shift 2 ;;
      --model) take MODEL "$@" && shift 2 ;;
      --name) take NAME "$@" && shift 2 ;;
      --host) take HOST "$@" && shift 2 ;;
      --port) take PORT "$@" && shift 2 ;;
      --max-out-len | --batch-size) take word "$@" && whole "$1" "$word" && VALUES+=("$1" "$word") && shift 2 ;;
      --out) take OUT "$@" && shift 2 ;;
      --wait) take WAIT "$@" && shift 2 ;;
      --cann) take CANN "$@" && shift 2 ;;
      --) shift && EXTRA=("$@") && break ;;
      *) wrong_use "unknown option $1" ;;
    esac
  done
  whole --port "$PORT" && whole --wait "$WAIT"
  [[ -n $MATH ]] || wrong_use "--math FILE is wanted: nothing is fetched" \
    "http://opencompass.oss-cn-shanghai.aliyuncs.com/datasets/data/math.zip has test_prm800k_500.json"
  [[ -r $MODEL/config.json ]] || wrong_use "--model ${MODEL:-DIR}: no model is there (config.json)"
}

wait_for_server() {
  local url="http://$HOST:$PORT" deadline=$((SECONDS + WAIT))
  answers "$url/health" || say "waiting up to $WAIT s for $url/health"
  until answers "$url/health"; do
    ((SECONDS < deadline)) || die "$FINDINGS" "no server answers at $url" "scripts/evaluate/serve.sh MODEL_DIR in another shell"
    sleep 1
  done
  served_names "$url" | grep -xF -- "$NAME" >/dev/null ||
    die "$FINDINGS" "$url does not serve $NAME but: $(served_names "$url" | tr '\n' ' ')" "--name NAME"
}

served_names() {
  python3 -c 'import json, sys; from urllib.request import ProxyHandler, build_opener
for model in json.load(build_opener(ProxyHandler({})).open(sys.argv[1] + "/v1/models", timeout=5))["data"]: print(model["id"])' "$1"
}

evaluate() {
  set +e
  AIS_BENCH_DATASETS_CACHE=$OUT/data ais_bench --models vllm_api_general --datasets math_prm800k_500_0shot_cot_gen \
    --config-dir "$OUT/config" --work-dir "$OUT/results" "${EXTRA[@]}" 2>&1 </dev/null |
    (trap '' INT TERM HUP && exec tee -- "$LOG")
  exit "${PIPESTATUS[0]}"
}

main() {
  parse "$@"
  need_command ais_bench "pip install ais_bench_benchmark in an environment of its own"
  mkdir -p -- "$OUT"
  OUT=$(realpath -- "$OUT") LOG=$OUT/ais_bench-$(date +%Y%m%d_%H%M%S).log
  python3 "$HERE/aisbench_config.py" "$OUT" --math "$MATH" --path "$(realpath -- "$MODEL")" --name "$NAME" \
    --host "$HOST" --port "$PORT" "${VALUES[@]}"
  wait_for_server
  source_cann "$CANN"
  export no_proxy="$HOST${no_proxy:+,$no_proxy}" # AISBench asks through a proxy of the environment otherwise
  local status=0
  in_group evaluate || status=$?
  say "AISBench ended with $status; results are below $OUT/results, its log is $LOG"
  return "$status"
}

main "$@"
