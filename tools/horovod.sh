#!/usr/bin/env bash
# Build Horovod into build/frameworks, for benchmarks/scripts.py: its last release wants an older C++ than torch has.
# Needs cmake, g++ and a Python with torch: PYTHON=.venv/bin/python tools/horovod.sh (some minutes)
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
target=$PWD/build/frameworks
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cd "$scratch"
"$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary :all: horovod==0.28.1
tar -xzf horovod-0.28.1.tar.gz
cd horovod-0.28.1
sed -i 's/CXX_STANDARD 14/CXX_STANDARD 17/; s/-std=c++11 -fPIC/-std=c++17 -fPIC/' \
  CMakeLists.txt horovod/torch/CMakeLists.txt third_party/gloo/CMakeLists.txt
export HOROVOD_WITH_GLOO=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_MPI=1
export HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
"$python" -m pip install --quiet --no-deps --no-build-isolation --upgrade --target "$target" .
