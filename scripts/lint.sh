#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-format and clang-tidy over the files that differ from main, or over all with --all. Changes
# nothing; exits 1 on a finding. `clang-format -i FILE` fixes the first kind.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == --all ]]; then
  mapfile -t files < <(git ls-files 'src/*.h' 'src/*.cc' 'tests/*.h' 'tests/*.cc')
else
  base=$(git merge-base HEAD main 2> /dev/null || git rev-parse HEAD)
  mapfile -t files < <({ git diff --name-only --diff-filter=d "$base"; git ls-files -o --exclude-standard; } |
    sort -u | grep -E '^(src|tests)/.*\.(h|cc)$' || true)
fi
if [[ ${#files[@]} -eq 0 ]]; then
  echo "lint: no C++ file differs from main; --all checks every file"
  exit 0
fi

echo "lint: clang-format on ${#files[@]} files"
clang-format --dry-run --Werror "${files[@]}"

sources=()
for file in "${files[@]}"; do
  [[ $file == *.cc ]] && sources+=("$PWD/$file")
done
if [[ ${#sources[@]} -gt 0 ]]; then
  # clang-tidy reads clang's own flags; headers are checked through the sources that include them.
  cmake --preset clang > /dev/null
  echo "lint: clang-tidy on ${#sources[@]} sources"
  run-clang-tidy -quiet -p build-clang -j "$(nproc)" "${sources[@]}"
fi
echo "lint: clean"
