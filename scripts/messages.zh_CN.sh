# shellcheck shell=bash
# The Chinese of what train.sh and common.sh print for people. Sourced by common.sh; tests/scripts/test_train.py holds it against them.
# shellcheck disable=SC2034
CHINESE=(
  ["try: {1}"]="建议：{1}"
  ["{1} wants a value"]="{1} 需要一个值"
  ["{1} {2}: a whole number is wanted"]="{1} {2}：应为整数"
  ["--path {1}: NAME=PATH is wanted"]="--path {1}：应为 NAME=PATH"
  ["there is no {1} on PATH"]="PATH 中没有 {1}"
  ["patchctl was not found"]="找不到 patchctl"
  ["pip install it, put it on PATH, or set PATCHCTL to its path"]="请用 pip 安装、放到 PATH 中，或将 PATCHCTL 设为它的路径"
  ["--workspace {1}: none of the trees is there"]="--workspace {1}：其中没有任何源码树"
  ["the environment is incomplete: {1}"]="环境变量不完整：{1}"
  ["export it, or give it with --path NAME=PATH"]="请 export 它，或用 --path NAME=PATH 给出"
  ["LD_PRELOAD={1}: there is no such library"]="LD_PRELOAD={1}：没有这个库"
  ["install it, or leave it out of the recipe"]="请安装它，或从配方中去掉"
  ["the way to {1} was not found"]="找不到通往{1}的网络路径"
  ["other machines"]="其他机器"
  ["warning: ulimit -n is {1} and cannot be raised to {2}: Ray runs out of files with many workers"]="注意：ulimit -n 为 {1}，无法提高到 {2}：worker 很多时 Ray 会用尽文件描述符"
  ["sourcing {1}"]="正在加载 {1}"
  ["unknown option {1}"]="未知选项 {1}"
  ["PROFILE and RECIPE are wanted, then KEY=VALUE; given: {1}"]="应依次给出 PROFILE 和 RECIPE，然后是 KEY=VALUE；实际给出：{1}"
  ["nothing"]="无"
  ["no cluster is known for {1} nodes; a dry run assumes one, and its script wants HEAD=HOST:PORT"]="没有已知的集群可用于 {1} 个节点；--dry-run 假定有一个，打印的脚本需要 HEAD=HOST:PORT"
  ["no cluster is known for {1} nodes"]="没有已知的集群可用于 {1} 个节点"
  ["ray_cluster.sh head and worker first; or --head ADDRESS[:PORT]"]="请先执行 ray_cluster.sh head 和 worker；或用 --head ADDRESS[:PORT] 指定"
  ["{1} needs paths that are not set:"]="{1} 需要以下路径，但没有设置："
  ["export NAME=PATH, or --path NAME=PATH (patchctl recipe show -v {1})"]="请执行 export NAME=PATH，或用 --path NAME=PATH 给出（说明见 patchctl recipe show -v {1}）"
  ["{1}: there is no such folder"]="{1}：目录不存在"
  ["--log-dir {1}: nothing can be written there"]="--log-dir {1}：无法在其中写入"
  ["patchctl apply --profile {1} --workspace D (with the recipe's --release), --workspace D"]="请执行 patchctl apply --profile {1} --workspace D（加上配方的 --release），再用 --workspace D"
  ["this is what the printed script would stop at"]="打印的脚本运行到这里会停止"
  ["warning: --no-preflight: nobody has looked at this machine; what is missing shows up in hours, not now"]="注意：--no-preflight：没有检查这台机器；缺少的东西现在看不出来，几小时后才会暴露"
  ["preflight says no: nothing was started"]="预检未通过：没有启动任何程序"
  ["what it says above; --accept NAME; --no-preflight to go on blindly"]="请按以上说明处理；或用 --accept NAME 放行某条结论；或用 --no-preflight 跳过检查"
  ["the log: {1}"]="日志：{1}"
  ["the training ended with {1}; the log: {2}"]="训练以退出码 {1} 结束；日志：{2}"
)

usage_in_chinese() {
  cat <<'TEXT'
用法：train.sh PROFILE RECIPE [选项] [KEY=VALUE ...]

先在每个节点上执行 ray_cluster.sh，再在第一个节点上执行本脚本。步骤依次如下，前一步无误才进行下一步：
检查配方的规则，KEY=VALUE 也在其中；检查配方所需的路径是否已设置（MODEL_PATH、TRAIN_FILE 等）；
执行 `patchctl preflight`；确认所有节点和 NPU 都已加入集群，且 Ray 启动时用的就是这套环境变量；
最后执行 `patchctl recipe command` 打印的训练命令。

  -n, --nodes N           节点数 [默认：配方中的节点数]
      --workspace D       打好补丁的源码树所在的目录，各节点上须相同
                          [默认：$WORKSPACE、$PATCHCTL_WORKSPACE 或 workspace]
      --path NAME=PATH    配方的一个文件，代替对应的环境变量；可重复
      --size NAME=N       配方中的另一个规模参数；可重复
      --release NAME      配方所属的版本，也可写作 RECIPE@NAME 或设置 PATCHCTL_RELEASE
      --head A[:PORT]     集群地址 [默认：RAY_ADDRESS；否则用 ray_cluster.sh 在本机启动的集群；
                          单节点时则由框架自行启动 Ray]
      --wait SECONDS      等待节点的秒数 [默认：600]
      --log-dir D         日志目录 [默认：logs]；文件名为 PROFILE-RECIPE-时间.log
      --accept NAME       放行预检的某条结论；可重复
      --no-preflight      完全不检查这台机器
      --node-ip A, --interface I   本节点的 IP 和网卡，无法自动找到时使用；--cann D：CANN 所在目录
      --dry-run           把以上全部打印成一个脚本，不执行；在任何机器上都可用：缺少的东西会说明，并假定存在

退出码：训练开始后为训练的退出码；开始前：1 预检发现问题，或缺少节点；2 用法有误、违反配方的规则或
路径未设置；130 被中断，143 被终止。

  train.sh qwen3-235b grpo --nodes 8 --path model=/data/Qwen3-235B-A22B trainer.total_epochs=1
  MODEL_PATH=... TRAIN_FILE=... VAL_FILE=... CKPTS_DIR=... train.sh qwen3-32b dapo --dry-run
TEXT
}
