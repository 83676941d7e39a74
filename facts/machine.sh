# Reads the machine: prints one document of sections, which facts/machine_document.py parses.
# POSIX sh (dash, busybox ash), no Python and no root needed, changes nothing on the host.
# Set by the caller before this text: LIMIT (seconds a tool may take), HUB (URL), PLACES (folders).
# A tool that is absent leaves its section out; a tool that hangs leaves it without an exit status.
LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL PATH
have() { command -v "$1" >/dev/null 2>&1; }
have timeout || timeout() { shift 3; "$@"; }
for d in "${TMPDIR:-/tmp}" /dev/shm /run "$HOME"; do
  D=$(mktemp -d "$d/machine.XXXXXX" 2>/dev/null) && break
done
[ -d "$D" ] || { echo "no folder for temporary files" >&2; exit 1; }
trap 'rm -rf "$D"' EXIT
# later NAME COMMAND...: run it beside the others; its output becomes the section NAME
later() {
  n=$1; shift; jobs="$jobs $n"
  ( timeout -k 2 "$LIMIT" "$@"; echo $? >"$D/$n.exit" ) >"$D/$n" 2>&1 </dev/null &
}
# function NAME: the same for a shell function (which limits itself)
function_later() {
  jobs="$jobs $1"
  ( "$1"; echo $? >"$D/$1.exit" ) >"$D/$1" 2>/dev/null </dev/null &
}
say() { printf '%s=%s\n' "$1" "$2"; }
first() { for f in "$@"; do [ -x "$f" ] && { echo "$f"; return; }; done; }
jobs=

hub() {
  if have curl; then
    # A proxy in between answers for hosts that it does not let through: with 403, 407 or 5xx.
    case $(curl -sS -o /dev/null -w '%{http_code}' --connect-timeout 3 -m 3 "$HUB") in
      2??|3??|401|404|429) echo yes;;
      *) echo no;;
    esac
  elif have wget; then
    wget -q -T 3 -t 1 -O /dev/null "$HUB" >/dev/null 2>&1 && echo yes || echo no
  else echo unknown; fi
}
query() {
  f=count,index,name,uuid,pci.bus_id,compute_cap,driver_version,memory.total,memory.used,memory.free
  while :; do
    o=$(timeout -k 2 "$LIMIT" nvidia-smi --query-gpu=$f --format=csv 2>&1); r=$?
    # An old driver refuses the whole query for one field it does not know: ask without that field.
    x=$(printf '%s\n' "$o" | sed -n 's/^Field "\([a-z_.]*\)" is not a valid field to query.*/\1/p')
    n=$(printf '%s' ",$f," | sed "s/,$x,/,/; s/^,//; s/,\$//")
    [ -n "$x" ] && [ "$n" != "$f" ] || break
    f=$n
  done
  printf '%s\n' "$o"; return $r
}
cuda() {
  for t in /usr/local/cuda /usr/local/cuda-* /opt/cuda /usr/lib/cuda; do
    [ -d "$t/bin" ] || continue
    p=$(readlink -f "$t")
    case $seen in *"|$p|"*) continue;; esac
    seen="$seen|$p|"
    echo "toolkit $p $t"
    [ -x "$p/bin/nvcc" ] && timeout -k 2 "$LIMIT" "$p/bin/nvcc" --version </dev/null 2>&1
    [ -x "$p/bin/ptxas" ] && { echo "ptxas $p/bin/ptxas"; timeout -k 2 "$LIMIT" "$p/bin/ptxas" --version 2>&1; }
  done
  p=$(command -v nvcc) && { echo "nvcc $(readlink -f "$p")"; timeout -k 2 "$LIMIT" "$p" --version 2>&1; }
}
pythons() {
  IFS=:
  for d in $PATH "$HOME/.local/bin"; do
    IFS=' '
    case $d in */shims*) continue;; esac
    for p in "$d"/python3 "$d"/python3.[0-9] "$d"/python3.[0-9][0-9]; do python_version "$p"; done
  done
  for p in "$HOME"/.pyenv/versions/*/bin/python3 "$HOME"/.local/share/uv/python/*/bin/python3; do
    python_version "$p"
  done
}
python_version() {
  [ -x "$1" ] || return
  r=$(readlink -f "$1")
  case $seen in *"|$r|"*) return;; esac
  seen="$seen|$r|"
  # A venv on PATH stands for the interpreter that it was made from.
  [ -e "${1%/bin/*}/pyvenv.cfg" ] && set -- "$r"
  echo "$1 $(timeout -k 2 "$LIMIT" "$1" --version 2>&1)"
}
models() {
  for m in "$HOME"/models/* "$HOME"/models/*/* /root/models/* /root/models/*/* /models/* /models/*/* \
    /data/models/* /data/models/*/* /opt/ddtree/models/*/* "$HOME"/.local/share/ddtree/models/*/*; do
    [ -d "$m" ] || continue
    for f in "$m"/config.json "$m"/*.gguf; do [ -e "$f" ] && { echo "folder $m"; break; }; done
  done | sort -u >"$D/models.list"
  c=${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}
  for m in "$c"/models--*; do [ -d "$m" ] && echo "hub-cache $m" >>"$D/models.list"; done
  cat "$D/models.list"
  while read -r k m; do set -- "$@" "$m"; done <"$D/models.list"
  [ $# = 0 ] || timeout -k 2 5 du -sk "$@"
}
disks() { timeout -k 2 5 df -kP || timeout -k 2 5 df -kPl; }
inodes() { timeout -k 2 5 df -iP || timeout -k 2 5 df -iPl; }
ports() {
  if have ss; then timeout -k 2 5 ss -Hltnp; else cat /proc/net/tcp /proc/net/tcp6; fi
}
socket_owners() {
  have ss && return
  s=$(awk '$4=="0A"{printf "%s%s", n++?"|":"", $10}' /proc/net/tcp /proc/net/tcp6)
  [ -n "$s" ] || return
  timeout -k 2 5 find /proc/[0-9]*/fd -maxdepth 1 -lname 'socket:*' -printf '%p %l\n' |
    grep -E "socket:\[($s)\]" | while read -r p s; do
      p=${p#/proc/}; p=${p%%/*}; read -r c <"/proc/$p/comm"; echo "$s $p $c"
    done
}

function_later hub
function_later cuda
function_later pythons
function_later models
function_later disks
function_later inodes
function_later ports
function_later socket_owners
if have nvidia-smi; then
  function_later query
  later xml nvidia-smi -q -x
  later topology nvidia-smi topo -m
  later nvlink nvidia-smi nvlink -s
fi
have nv-fabricmanager && later fabric_manager nv-fabricmanager --version
have lspci && [ "$(id -u)" = 0 ] && have nvidia-smi && later acs sh -c 'o=$(lspci -vvv) && { echo "$o" | grep ACSCtl; :; }'
have timedatectl && later clock timedatectl show -p NTPSynchronized --value
if [ -d /run/systemd/system ]; then
  set -- 'ddtree*' 'sglang*' 'vllm*' 'ollama*' 'llama*' 'text-generation*' 'gpustack*' 'tritonserver*' \
    'nvidia-*' 'dcgm*' 'nvsm*' 'slurmd*' 'kubelet*' 'docker.service' 'unattended-upgrades*'
  later units systemctl list-units --all --plain --no-legend --type=service "$@"
  later unit_files systemctl list-unit-files --no-legend --type=service "$@"
  later systemd systemctl --version
fi

{
  say hostname "$(uname -n)"
  say kernel "$(uname -r)"
  say arch "$(uname -m)"
  say user "$(id -un)"
  say uid "$(id -u)"
  say home "$HOME"
  say init "$(cat /proc/1/comm)"
  [ -d /run/systemd/system ] && say systemd_booted yes
  say glibc "$(getconf GNU_LIBC_VERSION || ldd --version 2>&1 | sed -n 1p)"
  if [ "$(id -u)" = 0 ]; then say sudo root
  elif have sudo && timeout -k 2 5 sudo -n true; then say sudo passwordless
  else say sudo none; fi
  if [ -e /.dockerenv ] || [ -e /run/.containerenv ] || [ -e /run/systemd/container ]; then
    say container yes
  fi
  say cpus "$(nproc || getconf _NPROCESSORS_ONLN)"
  say cpu_model "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p)"
  say numa_nodes "$(ls -d /sys/devices/system/node/node[0-9]* | wc -l)"
  for f in numa_balancing yama/ptrace_scope; do
    [ -r /proc/sys/kernel/$f ] && say "${f#*/}" "$(cat /proc/sys/kernel/$f)"
  done
  say memory_limit "$(cat /sys/fs/cgroup/memory.max || cat /sys/fs/cgroup/memory/memory.limit_in_bytes)"
  say memlock "$(sed -n 's/^Max locked memory *\([a-z0-9]*\) .*/\1/p' /proc/self/limits)"
  say nofile "$(sed -n 's/^Max open files *\([a-z0-9]*\) .*/\1/p' /proc/self/limits)"
  say clock_unix "$(date +%s)"
  f=/sys/kernel/iommu_groups
  [ -d $f ] && say iommu_types "groups $(sort -u $f/*/type | tr '\n' ' ')"
  f=/sys/module/nvidia_uvm/parameters/uvm_disable_hmm
  [ -r $f ] && say uvm_disable_hmm "$(cat $f)"
  u=$(command -v uv || first "$HOME/.local/bin/uv" "$HOME/.cargo/bin/uv")
  [ -n "$u" ] && say uv "$u" && say uv_version "$("$u" --version)"
  say conda "$(command -v conda || first /opt/conda/bin/conda "$HOME"/*conda3/bin/conda "$HOME"/miniforge3/bin/conda)"
  say pip "$(command -v pip3 || command -v pip)"
  have apt-get && say has_apt yes
  have patch && say has_patch yes
  have nvidia-smi && say nvidia_smi "$(command -v nvidia-smi)"
  t=${HF_HOME:-$HOME/.cache/huggingface}/token
  if [ -n "$HF_TOKEN$HUGGING_FACE_HUB_TOKEN" ] || [ -s "$t" ] || [ -s "$HOME/.huggingface/token" ]; then
    say hf_token yes
  fi
} >"$D/identity" 2>/dev/null </dev/null
cat /etc/os-release >"$D/os" 2>/dev/null
grep -E "^Mem(Total|Available):" /proc/meminfo >"$D/memory" 2>/dev/null
cat /proc/self/mounts >"$D/mounts" 2>/dev/null
cat /proc/driver/nvidia/version >"$D/module" 2>/dev/null
cut -d' ' -f1 /proc/modules >"$D/modules" 2>/dev/null
if [ -d /sys/bus/pci/devices ]; then
  for f in $(grep -l 0x10de /sys/bus/pci/devices/*/vendor 2>/dev/null); do cat "${f%vendor}class"; done >"$D/pci"
fi
# Links resolved, so that a venv behind PREFIX/current is not reported twice.
e=
for p in $PLACES; do e="$e $p/venvs/*/pyvenv.cfg"; done
v=$(readlink -f $e "$HOME"/*/pyvenv.cfg "$HOME"/.[a-z]*/pyvenv.cfg "$HOME"/*/.venv/pyvenv.cfg \
  "$HOME"/*/*/pyvenv.cfg "$HOME"/.local/share/ddtree/*/*/pyvenv.cfg /root/*/pyvenv.cfg /opt/*/pyvenv.cfg /opt/*/*/*/pyvenv.cfg /srv/*/pyvenv.cfg |
  grep -v '[*]' | sort -u)
[ -n "$v" ] && grep -H -E '^version(_info)? *=' $v >"$D/venvs" 2>/dev/null
for p in $PLACES; do
  case $p in '~'*) p=$HOME${p#'~'};; esac
  q=$p; while [ ! -e "$q" ]; do q=${q%/*}; q=${q:-/}; done
  [ -d "$q" ] && [ -w "$q" ] && w=yes || w=no
  [ -e "$p" ] && e=yes || e=no
  [ -f "$p" ] && [ -x "$p" ] && x=yes || x=no
  printf '%s\t%s\t%s\t%s\t%s\n' "$p" "$(readlink -f "$q")" $e $w $x
done >"$D/places"

n=0
for j in $jobs; do
  while [ ! -s "$D/$j.exit" ] && [ $n -lt $((LIMIT * 20 + 60)) ]; do sleep 0.05; n=$((n + 1)); done
done
if [ -s "$D/xml" ]; then
  p=$(sed -n 's:.*<pid>\([0-9]*\)</pid>.*:\1:p' "$D/xml" | tr '\n' ' ')
  [ -n "$p" ] && have ps && ps -o pid=,user= -p "$p" >"$D/process_users" 2>/dev/null
fi
rm -f "$D"/*.list
cd "$D" && echo "@@ sections $(ls | grep -v '\.exit$' | tr '\n' ' ')"
for f in "$D"/*; do
  case $f in *.exit) continue;; esac
  printf '@@ section %s %s\n' "${f##*/}" "$(cat "$f.exit" 2>/dev/null || echo -)"
  # Bytes that are not ASCII become "?": a local run would else lose all that follows them.
  tr -c '\11\12\33\40-\176' '?' <"$f"
  printf '\n@@ end\n'
done
