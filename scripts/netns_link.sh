#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two network namespaces joined by a shaped cable, to run nodes in as if on two machines:
#
#   scripts/netns_link.sh up RATE [DELAY]   e.g. up 1gbit 2ms: kvik-a (10.77.0.1) - kvik-b (10.77.0.2)
#   scripts/netns_link.sh rate RATE         changes both directions
#   scripts/netns_link.sh run a|b COMMAND   runs a command in one of them
#   scripts/netns_link.sh show
#   scripts/netns_link.sh down
#
# The rate is a token bucket (tc tbf), the delay netem where the kernel has it; where it has not, use
# the emulated link of the transfer layer, which needs neither tc nor root. Needs root.
set -euo pipefail

a=kvik-a
b=kvik-b
queue=${KVIK_NETNS_QUEUE:-400ms} # how long the bucket's queue may get
burst=${KVIK_NETNS_BURST:-256kb}

die() {
  echo "netns_link: $*" >&2
  exit 1
}
[[ $EUID -eq 0 ]] || die "needs root"
command -v ip > /dev/null && command -v tc > /dev/null || die "needs ip and tc (package iproute2)"

shape() { # shape RATE
  tc -n "$a" qdisc replace dev veth0 root handle 1: tbf rate "$1" burst "$burst" latency "$queue"
  tc -n "$b" qdisc replace dev veth0 root handle 1: tbf rate "$1" burst "$burst" latency "$queue"
}

case ${1:-} in
  up)
    [[ $# -ge 2 && $# -le 3 ]] || die "up RATE [DELAY]"
    ip netns add "$a"
    # Half a link is worse than none.
    trap 'status=$?; [[ $status -eq 0 ]] || { ip netns del "$a"; ip netns del "$b"; } 2> /dev/null' EXIT
    ip netns add "$b"
    ip -n "$a" link add veth0 type veth peer name veth0 netns "$b"
    ip -n "$a" addr add 10.77.0.1/24 dev veth0
    ip -n "$b" addr add 10.77.0.2/24 dev veth0
    for ns in "$a" "$b"; do
      ip -n "$ns" link set veth0 up
      ip -n "$ns" link set lo up
    done
    shape "$2"
    if [[ $# -eq 3 ]]; then
      for ns in "$a" "$b"; do
        tc -n "$ns" qdisc add dev veth0 parent 1:1 handle 10: netem delay "$3" limit 100000 ||
          die "this kernel has no netem: emulate the delay in the transfer layer (delay=$3) instead"
      done
    fi
    ;;
  rate)
    [[ $# -eq 2 ]] || die "rate RATE"
    # Changes the bucket and keeps what hangs below it.
    for ns in "$a" "$b"; do
      tc -n "$ns" qdisc change dev veth0 root handle 1: tbf rate "$2" burst "$burst" latency "$queue"
    done
    ;;
  run)
    [[ $# -ge 3 && ($2 == a || $2 == b) ]] || die "run a|b COMMAND"
    exec ip netns exec "kvik-$2" "${@:3}"
    ;;
  show)
    for ns in "$a" "$b"; do
      echo "$ns:"
      tc -n "$ns" -s qdisc show dev veth0
    done
    ;;
  down)
    ip netns del "$a" 2> /dev/null || true
    ip netns del "$b" 2> /dev/null || true
    ;;
  *)
    sed -n '3,12s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
