#!/usr/bin/env bash
# Starts a container on an Atlas A3 machine, with the NPUs that are found and the driver's files that are there. docs/scripts.md
set -euo pipefail

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
SCRIPT=run_container.sh
# shellcheck source=scripts/common.sh
source "$HERE/common.sh"

# Of the practice's two commands (002 and 003, container). A folder mounted over one of the image hides what the image has
# there: so neither /home (003) nor /tmp, where Ray of several containers would meet.
readonly MACHINE_NPUS=16 # of an Atlas A3 machine (002, container)
readonly MANAGERS=(davinci_manager devmm_svm hisi_hdc)
readonly DRIVER=/usr/local/Ascend/driver
readonly READ_ONLY=("$DRIVER" /usr/local/dcmi /usr/local/bin/npu-smi /usr/bin/msnpureport /usr/local/sbin /etc/localtime)
readonly SHARED=(/var/log/npu/slog/slogd)

usage() {
  cat <<'TEXT'
Usage: run_container.sh IMAGE [options] [-- COMMAND ...]

Starts IMAGE in the background with every NPU of this machine (/dev/davinci*, davinci_manager, devmm_svm, hisi_hdc), the
driver's files, the host's network and enough shared memory; COMMAND is /bin/bash unless given.

  -v SOURCE:TARGET[:ro]   mount weights, data, checkpoints; repeatable. SOURCE has to be there; TARGET may not be /home,
                          which hides what images keep there (003, 3.3)
  -e NAME[=VALUE]         set a variable; repeatable
      --npus LIST         only these, such as 0,1,4-7 [default: all that are found]
      --shm-size S        [default: 720g (003)]
      --name NAME         [default: patchctl]
      --interface I       HCCL's and gloo's; ray_cluster.sh finds it otherwise
      --privileged        every device and every right, as 002 and 003 do. Without it, the container has the NPUs and no more
      --tool NAME         docker or podman [default: the one that is found]
      --option OPTION     for the tool, as it is; repeatable: --option --cap-add=SYS_PTRACE lets pystack look at processes
      --dry-run           print the command, and stop; on any machine: what is missing is said, and assumed

Exit codes: 2 wrong use, or a device or the driver is missing; otherwise the tool's.

  run_container.sh patchctl:qwen3-235b -v /data/weights:/data/weights:ro -v /data/run:/data/run
  docker exec -it patchctl bash
TEXT
}

parse() {
  local word=''
  IMAGE='' MOUNTS=() VARIABLES=() LIST='' SHM=720g NAME=patchctl INTERFACE='' PRIVILEGED='' TOOL='' OPTIONS=() DRY_RUN=''
  COMMAND=(/bin/bash) ELSEWHERE=''
  while (($#)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      -v) take word "$@" && MOUNTS+=("$word") && shift 2 ;;
      -e) take word "$@" && VARIABLES+=(-e "$word") && shift 2 ;;
      --npus) take LIST "$@" && shift 2 ;;
      --shm-size) take SHM "$@" && shift 2 ;;
      --name) take NAME "$@" && shift 2 ;;
      --interface) take INTERFACE "$@" && shift 2 ;;
      --privileged) PRIVILEGED=1 && shift ;;
      --tool) take TOOL "$@" && shift 2 ;;
      --option) take word "$@" && OPTIONS+=("$word") && shift 2 ;;
      --dry-run) DRY_RUN=1 && shift ;;
      --) shift && COMMAND=("$@") && break ;;
      -*) wrong_use "unknown option $1" ;;
      *) [[ -z $IMAGE ]] || wrong_use "one IMAGE, not $IMAGE and $1" && IMAGE=$1 && shift ;;
    esac
  done
  [[ -n $IMAGE ]] || wrong_use "IMAGE is wanted"
  ((${#COMMAND[@]})) || wrong_use "-- is followed by a command"
}

# On this machine; a test has another root. A dry run without the driver is for another machine, which has everything.
there() {
  [[ -n $ELSEWHERE || -e ${PATCHCTL_HOST_ROOT-}$1 ]]
}

# absent WHAT ASSUMED HINT: the end, or what a dry run goes on with.
absent() {
  [[ -n $DRY_RUN ]] || die "$WRONG_USE" "$1" "$3"
  say "$1; a dry run assumes $2"
}

find_tool() {
  local tool
  if [[ -z $TOOL ]]; then
    for tool in docker podman; do
      [[ -z $(type -P "$tool") ]] || { TOOL=$tool && return; }
    done
    absent "neither docker nor podman is on PATH" docker "install one, or --tool PATH"
    TOOL=docker
  elif ! command -v -- "$TOOL" >/dev/null; then
    absent "there is no $TOOL on PATH" "that there is" "--tool docker or podman"
  fi
}

# Into DEVICES: what is asked for, or all; and the three that every process on an NPU opens.
find_devices() {
  local name missing=() wanted
  if [[ -n $LIST ]]; then
    wanted=$(numbers "$LIST" | sed 's/^/davinci/')
  else
    wanted=$(npus | sed 's|.*/||')
  fi
  if [[ -z $wanted ]]; then
    absent "no NPU was found (/dev/davinci*)" "$MACHINE_NPUS" "install the driver; is this an A2 or A3 machine?"
    wanted=$(seq -f 'davinci%.0f' 0 $((MACHINE_NPUS - 1)))
  fi
  DEVICES=()
  for name in $wanted "${MANAGERS[@]}"; do
    there "/dev/$name" || missing+=("/dev/$name")
    DEVICES+=(--device "/dev/$name")
  done
  ((${#missing[@]} == 0)) ||
    absent "not there: ${missing[*]}" "that they are" "the driver makes them: npu-smi info tells whether it runs"
}

# numbers LIST: 0,2-4 as 0 2 3 4, one a line.
numbers() {
  local part first last
  [[ $1 =~ ^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$ ]] || wrong_use "--npus $1: numbers and ranges are wanted, such as 0,1,4-7"
  for part in ${1//,/ }; do
    first=${part%-*} last=${part#*-}
    ((10#$first <= 10#$last)) || wrong_use "--npus $1: $part ends before it begins"
    seq "$((10#$first))" "$((10#$last))"
  done
}

# The driver that each release names.
drivers() {
  local release said=()
  while read -r release; do
    said+=("$(of_release "$release" runtime driver) for $release")
  done < <(basename -s .yaml -- "$HERE"/../manifests/releases/*.yaml)
  local IFS=,
  echo "${said[*]}"
}

# Into VOLUMES: those of the driver that this machine has, and what was asked for.
find_mounts() {
  local path mount source target
  VOLUMES=()
  there "$DRIVER" || {
    absent "$DRIVER is not there: containers use the host's driver" "it and its files" "install the Ascend HDK of the release: $(drivers)"
    ELSEWHERE=1
  }
  for path in "${READ_ONLY[@]}" "${SHARED[@]}"; do
    if ! there "$path"; then
      say "$path is not there, and is not mounted"
    elif [[ " ${SHARED[*]} " == *" $path "* ]]; then
      VOLUMES+=(-v "$path:$path")
    else
      VOLUMES+=(-v "$path:$path:ro")
    fi
  done
  for mount in "${MOUNTS[@]}"; do
    IFS=: read -r source target _ <<<"$mount"
    [[ $source == /* && $target == /* ]] || wrong_use "-v $mount: SOURCE:TARGET, both from / on"
    # docker would make an empty folder for it, which belongs to root
    [[ -e $source ]] || absent "-v $mount: $source is not there" "that it is" "make the folder first"
    [[ $(realpath -m -- "$target") != @(/home|/) ]] ||
      die "$WRONG_USE" "-v $mount: this hides what the image has in $target (003, 3.3)" "-v $source:/data"
    VOLUMES+=(-v "$mount")
  done
}

main() {
  parse "$@"
  find_tool
  find_devices
  find_mounts
  [[ -z $PRIVILEGED ]] || OPTIONS+=(--privileged)
  [[ -z $INTERFACE ]] || VARIABLES+=(-e "HCCL_SOCKET_IFNAME=$INTERFACE" -e "GLOO_SOCKET_IFNAME=$INTERFACE")
  # Ray opens many files and has many threads: podman allows 2,048 unless told.
  local command=("$TOOL" run -itd --name "$NAME" --net=host --shm-size "$SHM" --ulimit nofile=65536:65536 --pids-limit -1
    "${DEVICES[@]}" "${VOLUMES[@]}" "${VARIABLES[@]}" "${OPTIONS[@]}" "$IMAGE" "${COMMAND[@]}")
  if [[ -n $DRY_RUN ]]; then
    printf '%q ' "${command[@]}" && echo
    return
  fi
  "${command[@]}"
  say "$NAME runs; enter it with: $TOOL exec -it $NAME bash"
}

main "$@"
