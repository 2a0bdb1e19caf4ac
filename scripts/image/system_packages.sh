#!/usr/bin/env bash
# system_packages.sh [compilers]: installs what the base lacks of the system's packages that the tool and a run need, with the package
# manager that the base has; with `compilers`, what compiling operators needs instead.
set -euo pipefail

# Where the recipes look for jemalloc (001): distributions put it elsewhere.
readonly JEMALLOC=/usr/local/lib/libjemalloc.so.2

main() {
  local -a packages=()
  if [[ ${1-} == compilers ]]; then
    compilers
    return
  fi
  command -v git >/dev/null || packages+=(git)
  # ifconfig, with which the practice finds a node's interface (002).
  command -v ifconfig >/dev/null || packages+=(net-tools)
  if [[ $(manager) == apt-get ]]; then
    [[ -d /usr/share/ca-certificates ]] || packages+=(ca-certificates)
    [[ -n $(jemalloc) ]] || packages+=(libjemalloc2)
  else
    [[ -n $(jemalloc) ]] || packages+=(jemalloc)
  fi
  install_packages "${packages[@]}"
  link_jemalloc
}

# For vllm-ascend's operators, and for MindSpeed's, which are compiled at their first use.
compilers() {
  if [[ $(manager) == apt-get ]]; then
    install_packages gcc g++ make cmake libnuma-dev
  else
    install_packages gcc gcc-c++ make cmake numactl-devel
  fi
}

manager() {
  local one
  for one in dnf yum apt-get; do
    if command -v "$one" >/dev/null; then
      echo "$one"
      return
    fi
  done
}

# Nothing of the download stays, nor of the logs, which are of no use in an image and differ in every build.
install_packages() {
  if [[ $# -eq 0 ]]; then return; fi
  case $(manager) in
    dnf) dnf install -y --setopt=install_weak_deps=False "$@" && dnf clean all ;;
    yum) yum install -y "$@" && yum clean all ;;
    apt-get)
      apt-get update
      DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
      apt-get clean
      ;;
    *)
      echo "system_packages.sh: no dnf, yum or apt-get here; install $* in the base image" >&2
      exit 2
      ;;
  esac
  rm -rf /var/lib/apt/lists/* /var/cache/{apt,dnf,yum}/* /var/log/{apt,dnf*,yum*,hawkey*,dpkg.log,alternatives.log}
  rm -rf /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old /var/lib/dpkg/*-old
}

jemalloc() {
  find "$JEMALLOC" /usr/lib /usr/lib64 -name 'libjemalloc.so.2' -print -quit 2>/dev/null || true
}

link_jemalloc() {
  local found
  [[ ! -e $JEMALLOC ]] || return 0
  found=$(jemalloc)
  if [[ -z $found ]]; then
    echo "system_packages.sh: libjemalloc.so.2 is not under /usr/lib or /usr/lib64" >&2
    exit 1
  fi
  mkdir -p "$(dirname "$JEMALLOC")"
  ln -s "$found" "$JEMALLOC"
}

main "$@"
