#!/bin/sh
# deps.sh [--install]: says which packages of the build are missing, or installs them (Debian, root).
# Without --install it installs only where nothing stands in the way: as root, with apt-get.
set -eu
missing=
for tool in cmake:cmake cc:gcc pkg-config:pkg-config python3:python3; do
    command -v "${tool%%:*}" >/dev/null 2>&1 || missing="$missing ${tool#*:}"
done
for library in jansson:libjansson-dev libpcre2-8:libpcre2-dev cmocka:libcmocka-dev; do
    pkg-config --exists "${library%%:*}" 2>/dev/null || missing="$missing ${library#*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    apt-get update -q >/dev/null && apt-get install -q -y --no-install-recommends $missing >/dev/null && exit 0
fi
echo "missing packages:$missing (on Debian and Ubuntu: sudo apt-get install$missing)" >&2
exit 1
