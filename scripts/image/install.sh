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

# The lock of the profile's requirements: nothing is left for pip to resolve. What the package index lacks on a platform comes
# from CPU_WHEELS, without digests; pip takes all lines of a run with digests or none.
runtime() {
  local profile=$1 python=$2 lock machine
  local -a index=()
  if [[ -n ${CPU_WHEELS-} ]]; then index=(--extra-index-url "$CPU_WHEELS"); fi
  lock=$(mktemp -d)
  machine=$("$python" -c 'import platform; print(platform.machine())')
  patchctl requirements --profile "$profile" --platform "$machine" >"$lock/hashed.txt"
  patchctl requirements --profile "$profile" --platform "$machine" --elsewhere >"$lock/elsewhere.txt"
  # A base may have triton, which owns the same files as triton-ascend: pip would keep what is left of the latter.
  if "$python" -m pip show --quiet triton 2>/dev/null; then "$python" -m pip uninstall -y triton triton-ascend; fi
  if [[ -s $lock/elsewhere.txt ]]; then
    "$python" -m pip install --no-deps "${index[@]}" -r "$lock/elsewhere.txt"
  fi
  "$python" -m pip install --no-deps --require-hashes -r "$lock/hashed.txt"
  rm -r "$lock"
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
