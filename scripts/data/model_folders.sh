# shellcheck shell=bash
# What convert_hf_to_mcore.sh and merge_fsdp.sh share. Sourced after common.sh.

# use_trees NAME...: puts the workspace's trees on PYTHONPATH; each has to be there.
use_trees() {
  local name tree found=''
  for name in "$@"; do
    tree=$(tree_of "$WORKSPACE" "$name") ||
      wrong_use "$WORKSPACE has no $name" "patchctl apply --profile NAME --workspace $(printf %q "$WORKSPACE"), or --workspace DIR"
    found+=${tree:+$tree:}
  done
  [[ -z $found ]] || export PYTHONPATH=${found%:}${PYTHONPATH:+:$PYTHONPATH}
}

# ours MODULE ARGUMENT...: a Python module of this folder, under the training environment's Python.
ours() {
  (cd -- "$CALLED_FROM" && PYTHONPATH=$HERE exec "$PYTHON" -m "$@")
}

# new_folder DIR: DIR has to be new or empty.
new_folder() {
  [[ ! -e $1 || -d $1 ]] || wrong_use "$1 is no folder"
  [[ ! -d $1 || -z $(ls -A -- "$1") ]] || wrong_use "$1 is not empty" "another folder: nothing is overwritten"
}

# absolute PATH: as seen from where the script was called.
absolute() {
  case $1 in
    /*) printf '%s' "${1%/}" ;;
    *) printf '%s/%s' "$CALLED_FROM" "${1%/}" ;;
  esac
}
