#!/usr/bin/env bash
# Installs the system's packages that the tool, the trees and a run need, with the package manager that the base has.
set -euo pipefail

# Where the recipes look for jemalloc (001): distributions put it elsewhere.
readonly JEMALLOC=/usr/local/lib/libjemalloc.so.2

main() {
  if command -v dnf >/dev/null || command -v yum >/dev/null; then
    with_rpm
  elif command -v apt-get >/dev/null; then
    with_apt
  else
    echo "system_packages.sh: no dnf, yum or apt-get here; install git, ifconfig and jemalloc in the base image" >&2
    exit 2
  fi
  link_jemalloc
}

# net-tools: ifconfig, with which the practice finds a node's interface (002). The compilers and numactl: vllm-ascend's
# operators, and the sdists of its requirements.
with_rpm() {
  local tool=yum
  command -v dnf >/dev/null && tool=dnf
  "$tool" install -y git net-tools jemalloc gcc gcc-c++ make cmake numactl-devel
  "$tool" clean all
}

with_apt() {
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    ca-certificates git iproute2 net-tools libjemalloc2 gcc g++ make cmake libnuma-dev
  rm -rf /var/lib/apt/lists/*
}

link_jemalloc() {
  local found
  [[ -e $JEMALLOC ]] && return
  found=$(find /usr/lib /usr/lib64 -name 'libjemalloc.so.2' -print -quit 2>/dev/null || true)
  if [[ -z $found ]]; then
    echo "system_packages.sh: libjemalloc.so.2 is not under /usr/lib or /usr/lib64" >&2
    exit 1
  fi
  mkdir -p "$(dirname "$JEMALLOC")"
  ln -s "$found" "$JEMALLOC"
}

main "$@"
