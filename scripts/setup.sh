#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs from Debian 12 what a group of tasks needs, and only what is missing: `build` (compile,
# test, run) or `clang` (lint, thread-safety analysis, fuzzing). Run it as often as you like; it
# needs root only when something is missing, and touches nothing outside the package manager.
set -euo pipefail

# Left: what src/CMakeLists.txt asks for. Every name is a Debian package.
build_packages=(
  g++ cmake ninja-build pkg-config ccache git
  python3 python3-pip python3-venv       # repository checks; `kvik pull` downloads with pip
  curl                                   # the demo talks to the server with it
  libgtest-dev libgmock-dev libbenchmark-dev
  nlohmann-json3-dev libcli11-dev libcpp-httplib-dev libssl-dev
  libfmt-dev libspdlog-dev prometheus-cpp-dev
  libzstd-dev liblz4-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev libeigen3-dev libhiredis-dev
  libzmq3-dev cppzmq-dev libmsgpack-cxx-dev
  redis-server                           # tests of --pool redis:// start their own
)
clang_packages=(clang clang-tidy clang-format)

group=${1:-build}
case $group in
  build) wanted=("${build_packages[@]}") ;;
  clang) wanted=("${clang_packages[@]}") ;;
  *) echo "usage: setup.sh [build|clang]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query > /dev/null; then
  echo "setup: this is not a Debian system; install the counterparts of: ${wanted[*]}" >&2
  exit 1
fi
missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "setup: all ${#wanted[@]} packages for '$group' are installed"
  exit 0
fi

echo "setup: installing ${#missing[@]} of ${#wanted[@]} packages for '$group': ${missing[*]}"
root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo > /dev/null || {
    echo "setup: not root and no sudo; run as root: apt-get install ${missing[*]}" >&2
    exit 1
  }
  root=(sudo)
fi
"${root[@]}" apt-get update -qq
"${root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" > /dev/null
echo "setup: done"
