#!/usr/bin/env bash
# install.sh PROFILE PYTHON: puts the patched trees into the interpreter's environment, and what they run on. Trees that the base had
# there already, and that were patched where they are, stay as they are installed.
# RUNTIME=no: the base has torch_npu and the rest already. NATIVE=yes: vllm-ascend's operators are built, with CANN's compilers,
# and all trees are copied into the environment with them; without, it leads to the trees. COMPILERS=yes: the system's come in.
# LEAVE_OUT names packages of the lock that cannot be had where the image is built.
set -euo pipefail

readonly ASCEND=/usr/local/Ascend
# What upstream's builds import, which `install --build-native` does not fetch by itself; setuptools-rust is vllm 0.23's, which builds
# without cargo too, and then has no Rust front end.
readonly BUILD=('setuptools>=77.0.3,<81' 'setuptools-scm>=8' 'setuptools-rust>=1.9' wheel 'packaging>=24.2' pybind11)

main() {
  local profile=$1 python=$2 kind folder ours=no
  # What the trees were applied on, whatever release the build named: a bundle has one of its own.
  PATCHCTL_RELEASE=$(asked 'print(given["release"] or "")')
  export PATCHCTL_RELEASE
  while read -r kind folder; do
    [[ $kind == into ]] || ours=yes
    # git refuses a repository that another user owns, and an image's user may be any.
    git config --system --add safe.directory "$folder"
  done < <(asked 'for tree in given["trees"]: print(tree["kind"], tree["folder"])')
  if [[ ${COMPILERS:-no} == yes || ${NATIVE:-no} == yes ]]; then /opt/patchctl/image/system_packages.sh compilers; fi
  if [[ $ours == yes ]]; then patchctl install --editable --workspace "$PATCHCTL_WORKSPACE" --python "$python"; fi
  if [[ ${RUNTIME:-yes} == yes ]]; then runtime "$profile" "$python"; fi
  if [[ ${NATIVE:-no} == yes && $ours == yes ]]; then native "$python"; fi
  patchctl status --workspace "$PATCHCTL_WORKSPACE" --python "$python"
  # What is in the image, and how its trees were made; the image's labels name both.
  patchctl sbom --profile "$profile" --format cyclonedx --workspace "$PATCHCTL_WORKSPACE" --out /opt/patchctl/sbom.cdx.json
  patchctl sbom --profile "$profile" --format in-toto --workspace "$PATCHCTL_WORKSPACE" --out /opt/patchctl/statement.json
}

# asked CODE: what this Python prints of the workspace's status, `given`.
asked() {
  patchctl status --workspace "$PATCHCTL_WORKSPACE" --json |
    /opt/patchctl/venv/bin/python -c "import json, sys; given = json.load(sys.stdin)
$1"
}

# The lock of the profile's requirements: nothing is left for pip to resolve. What the package index lacks on a platform comes
# from CPU_WHEELS and ASCEND_WHEELS, without digests; pip takes all lines of a run with digests or none.
runtime() {
  local profile=$1 python=$2 lock machine place
  local -a index=()
  for place in "${CPU_WHEELS-}" "${ASCEND_WHEELS-}"; do
    if [[ -n $place ]]; then index+=(--extra-index-url "$place"); fi
  done
  lock=$(mktemp -d)
  machine=$("$python" -c 'import platform; print(platform.machine())')
  patchctl requirements --profile "$profile" --platform "$machine" >"$lock/hashed.txt"
  patchctl requirements --profile "$profile" --platform "$machine" --elsewhere >"$lock/elsewhere.txt"
  leave_out "$lock/hashed.txt" "$lock/elsewhere.txt"
  # A base may have triton, which owns the same files as triton-ascend: pip would keep what is left of the latter.
  if "$python" -m pip show --quiet triton 2>/dev/null; then "$python" -m pip uninstall -y triton triton-ascend; fi
  if grep -q '^[a-z]' "$lock/elsewhere.txt"; then
    "$python" -m pip install --no-deps "${index[@]}" -r "$lock/elsewhere.txt"
  fi
  "$python" -m pip install --no-deps --require-hashes -r "$lock/hashed.txt"
  rm -r "$lock"
}

# leave_out FILE...: takes the packages that LEAVE_OUT names out of the lock's files, and says so. Ends where none has such a line.
leave_out() {
  local name line
  for name in ${LEAVE_OUT:-}; do
    if ! line=$(grep --no-filename "^$name==" "$@"); then
      echo "install.sh: LEAVE_OUT names $name, which is not in the lock" >&2
      exit 2
    fi
    echo "install.sh: left out, as LEAVE_OUT asks: ${line% \\}" >&2
    # With the digests and comments below it.
    sed -i "/^$name==/,/^[^ ]/ { /^$name==/d; /^ /d; }" "$@"
  done
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
