#!/bin/sh
# install_check.sh BUILD: installs a build into a scratch folder, then builds and runs examples/layer.c
# against it with pkg-config and with CMake's find_package, as a user of the library would.
set -eu
build=$1
source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >/dev/null
pc=$(dirname "$(find "$work/prefix" -name moewe.pc)")
lib=$(dirname "$pc")

# shellcheck disable=SC2046
cc -std=c11 "$source/examples/layer.c" $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs moewe) -o "$work/by-pkg-config"
LD_LIBRARY_PATH=$lib "$work/by-pkg-config"

mkdir "$work/user"
cat > "$work/user/CMakeLists.txt" <<TEXT
cmake_minimum_required(VERSION 3.20)
project(user C)
find_package(moewe 0.1 REQUIRED)
foreach(kind shared static)
  add_executable(\${kind} $source/examples/layer.c)
  target_link_libraries(\${kind} PRIVATE moewe::\${kind})
endforeach()
TEXT
cmake -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/user/build" >/dev/null
"$work/user/build/shared" >/dev/null
"$work/user/build/static" >/dev/null
echo "ok: pkg-config, find_package with the shared and with the static library"
