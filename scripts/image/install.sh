#!/usr/bin/env bash
# install.sh PROFILE PYTHON: puts the patched trees into the interpreter's environment, and what they run on.
# RUNTIME=no: the base has torch_npu and the rest already. NATIVE=yes: vllm-ascend's operators are built, with CANN's compilers,
# and all trees are copied into the environment with them; without, it leads to the trees.
set -euo pipefail

readonly ASCEND=/usr/local/Ascend
# What upstream's builds import, which `install --build-native` does not fetch by itself.
readonly BUILD=('setuptools>=77.0.3,<81' 'setuptools-scm>=8' wheel 'packaging>=24.2' pybind11)

main() {
  local profile=$1 python=$2
  patchctl install --editable --workspace "$PATCHCTL_WORKSPACE" --python "$python"
  if [[ ${RUNTIME:-yes} == yes ]]; then runtime "$profile" "$python"; fi
  if [[ ${NATIVE:-no} == yes ]]; then native "$python"; fi
  patchctl status --workspace "$PATCHCTL_WORKSPACE" --python "$python"
}

# What the trees declare, with the profile's versions in place of theirs: they do not agree with each other.
runtime() {
  local profile=$1 python=$2 list index
  local -a indexes=()
  for index in "${CPU_WHEELS-}" "${ASCEND_WHEELS-}"; do
    if [[ -n $index ]]; then indexes+=(--extra-index-url "$index"); fi
  done
  list=$(mktemp)
  /opt/patchctl/venv/bin/python /opt/patchctl/image/requirements.py "$profile" "$python" >"$list"
  "$python" -m pip install "${indexes[@]}" -r "$list" modelscope
  # vllm brings triton on x86, where it is in the way of triton-ascend (002); both own the same files.
  "$python" -m pip uninstall -y triton
  if grep -i '^triton-ascend' "$list" >"$list.triton"; then
    "$python" -m pip install "${indexes[@]}" --force-reinstall --no-deps -r "$list.triton"
  fi
  rm "$list" "$list.triton"
}

native() {
  local python=$1 machine script
  machine=$(uname -m)
  for script in "$ASCEND/ascend-toolkit/set_env.sh" "$ASCEND/nnal/atb/set_env.sh"; do
    if [[ ! -f $script ]]; then
      echo "install.sh: $script is not in the base image; NATIVE=no leaves vllm-ascend's operators out" >&2
      exit 1
    fi
    set +u
    # shellcheck disable=SC1090  # it is CANN's
    source "$script"
    set -u
  done
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:$ASCEND/ascend-toolkit/latest/$machine-linux/devlib"
  export CPLUS_INCLUDE_PATH="${CPLUS_INCLUDE_PATH:-}:/usr/include/c++/12:/usr/include/c++/12/$machine-openEuler-linux"
  "$python" -m pip install "${BUILD[@]}"
  patchctl install --build-native --workspace "$PATCHCTL_WORKSPACE" --python "$python"
}

main "$@"
