#!/usr/bin/env bash
# Build a container of this checkout and train the quick start in it:  scripts/build_container.sh cpu|cuda [podman]
# TORCH_INDEX=… before it names an index of PyTorch builds without CUDA.
set -euo pipefail
cd "$(dirname "$0")/.."
kind="${1:?say cpu or cuda}"
tool="${2:-docker}"
file="containers/$kind.Dockerfile"
[ -f "$file" ] || { echo "error: there is no $file; say cpu or cuda" >&2; exit 2; }
command -v "$tool" >/dev/null || { echo "error: $tool is not installed" >&2; exit 2; }
"$tool" build --file "$file" --tag "fedkeel:$kind" ${TORCH_INDEX:+--build-arg TORCH_INDEX="$TORCH_INDEX"} .
"$tool" run --rm $([ "$kind" = cuda ] && echo "--gpus all") "fedkeel:$kind" run --no-progress
