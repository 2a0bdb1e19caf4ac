#!/usr/bin/env bash
# Converts a Hugging Face model to Megatron's distributed checkpoint, with verl's own script. docs/data-and-weights.md
set -euo pipefail

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
CALLED_FROM=$PWD
SCRIPT=convert_hf_to_mcore.sh
# shellcheck source=scripts/common.sh
source "$HERE/common.sh"
# shellcheck source=scripts/data/model_folders.sh
source "$HERE/data/model_folders.sh"

usage() {
  cat <<'TEXT'
Usage: convert_hf_to_mcore.sh HF_DIR MCORE_DIR [options]

Runs scripts/converter_hf_to_mcore.py of the patched verl. Mixtures of experts are converted by one process a device, a
pipeline stage each (002); other models by one, because the script supports no more. MCORE_DIR appears when all is done.

      --sequential           upstream's layout, one tensor an expert, for training with grouped_experts=False
                             [default: the grouped layout, which the recipes of mixtures of experts load]
      --nproc N              processes of this node [default: its NPUs; 002: 16]
      --nnodes N, --node-rank R, --master-addr A, --master-port P
                             several nodes, the same command on each, on a file system that all see
      --test                 let the script compare what it wrote with what it read
      --trust-remote-code    for models that bring code of their own
      --workspace D          where the patched trees are [default: $WORKSPACE, $PATCHCTL_WORKSPACE or workspace]
      --cann D               CANN's folder [default: /usr/local/Ascend]
      --dry-run              check, print the command, and stop

PYTHON names the training environment's Python [default: python3].
Exit codes: 0 done; 2 wrong use, incomplete or quantized weights; the script's own where it fails.

  convert_hf_to_mcore.sh models/Qwen3-235B-A22B models/Qwen3-235B-A22B-mcore --nproc 16
  convert_hf_to_mcore.sh models/DeepSeek-R1-bf16 /shared/R1-mcore --nnodes 4 --node-rank 0 --master-addr 10.0.0.1
TEXT
}

main() {
  parse "$@"
  need_command "$PYTHON" "set PYTHON to the training environment's Python"
  use_trees verl megatron-lm mindspeed
  local converter
  converter=$(tree_of "$WORKSPACE" verl)/scripts/converter_hf_to_mcore.py
  grep -qs -- --grouped_experts "$converter" || [[ -n $SEQUENTIAL ]] ||
    wrong_use "$WORKSPACE/verl is without hf_to_mcore_grouped" \
      "apply a release with verl before 0.9, whose recipes load this layout (later ones take MODEL_PATH as it is); or --sequential"
  new_folder "$TARGET"
  "$PYTHON" "$HERE/weights.py" check "$SOURCE" >&2 || die "$WRONG_USE" "$SOURCE is no whole model" "weights.py fetch"
  local experts
  experts=$(ours data.convertible "$SOURCE")
  [[ $experts == yes ]] || grep -qs copy_dense_weights "$converter" ||
    wrong_use "$WORKSPACE/verl is without hf_to_mcore_dense_cpu" \
      "apply a release with verl before 0.9 (recipes of later ones take MODEL_PATH as it is)"

  PARTIAL=$TARGET.partial
  build_command "$converter" "$experts"
  printf '%q ' "${COMMAND[@]}" >&2 && printf '\n' >&2
  [[ -z $DRY ]] || exit 0
  source_cann "$CANN"
  ((NODE_RANK)) || claim_partial
  CUDA_DEVICE_MAX_CONNECTIONS=1 in_group "${COMMAND[@]}"
  ((NODE_RANK)) || publish
}

parse() {
  local folders=()
  SEQUENTIAL='' DRY='' NPROC='' NNODES=1 NODE_RANK=0 MASTER_ADDR_GIVEN='' MASTER_PORT_GIVEN=29500 EXTRA=()
  CANN=/usr/local/Ascend
  while (($#)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --sequential) SEQUENTIAL=yes ;;
      --test) EXTRA+=(--test) ;;
      --trust-remote-code) EXTRA+=(--trust_remote_code) ;;
      --dry-run) DRY=yes ;;
      --nproc) take NPROC "$@" && whole "$1" "$NPROC" && shift ;;
      --nnodes) take NNODES "$@" && whole "$1" "$NNODES" && shift ;;
      --node-rank) take NODE_RANK "$@" && whole "$1" "$NODE_RANK" && shift ;;
      --master-addr) take MASTER_ADDR_GIVEN "$@" && shift ;;
      --master-port) take MASTER_PORT_GIVEN "$@" && whole "$1" "$MASTER_PORT_GIVEN" && shift ;;
      --workspace) take WORKSPACE "$@" && shift ;;
      --cann) take CANN "$@" && shift ;;
      -*) wrong_use "$1: no such option" ;;
      *) folders+=("$1") ;;
    esac
    shift
  done
  ((${#folders[@]} == 2)) || wrong_use "HF_DIR and MCORE_DIR are wanted"
  ((NNODES == 1)) || [[ -n $MASTER_ADDR_GIVEN ]] || wrong_use "--nnodes $NNODES wants --master-addr, the first node's"
  ((NODE_RANK < NNODES)) || wrong_use "--node-rank $NODE_RANK: ranks of $NNODES nodes begin with 0"
  PYTHON=${PYTHON:-python3}
  WORKSPACE=$(absolute "${WORKSPACE:-${PATCHCTL_WORKSPACE:-workspace}}")
  SOURCE=$(absolute "${folders[0]}") TARGET=$(absolute "${folders[1]}")
}

# build_command CONVERTER EXPERTS: the command line, in COMMAND.
build_command() {
  local processes=1 where=(--standalone)
  if [[ $2 == yes ]]; then
    processes=${NPROC:-$(npus | wc -l)}
    ((processes)) || wrong_use "there is no NPU here" "--nproc N"
  elif ((NNODES > 1 || ${NPROC:-1} > 1)); then
    wrong_use "verl converts a model without experts with one process" "leave --nproc and --nnodes out"
  elif [[ -n $SEQUENTIAL && " ${EXTRA[*]} " == *" --test "* ]]; then
    # With --grouped_experts verl compares in the host's memory, without it on the device.
    wrong_use "--test of a model without experts needs the grouped layout's comparison" "leave --sequential out: it changes nothing here"
  fi
  EXTRA+=(--use_cpu_initialization)
  ((NNODES == 1)) || where=(--nnodes "$NNODES" --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR_GIVEN" --master_port "$MASTER_PORT_GIVEN")
  [[ -n $SEQUENTIAL ]] || EXTRA+=(--grouped_experts)
  COMMAND=("$PYTHON" -m torch.distributed.run "${where[@]}" --nproc_per_node "$processes" "$1"
    --hf_model_path "$SOURCE" --output_path "$PARTIAL" "${EXTRA[@]}")
}

# The script takes a folder that is not empty for a conversion that is done, and ends with 0.
claim_partial() {
  new_folder "$PARTIAL"
  mkdir -p -- "$(dirname -- "$TARGET")"
  trap 'rm -rf -- "$PARTIAL"' EXIT
}

publish() {
  [[ -s $PARTIAL/metadata.json && -s $PARTIAL/.metadata ]] || die 1 "the script ended without a checkpoint"
  [[ ! -d $TARGET ]] || rmdir -- "$TARGET"
  mv -T -- "$PARTIAL" "$TARGET"
  printf '%s\n' "$TARGET"
}

main "$@"
