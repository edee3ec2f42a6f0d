#!/bin/sh
# check_symbols.sh LIBRARY [HEADER] - the shared library exports moewe_* and nothing else, and with HEADER
# exactly the functions that HEADER marks MOEWE_API.  Prints what is wrong; exit 1.
set -eu
library=${1:?usage: check_symbols.sh LIBRARY [HEADER]}
header=${2:-}

[ -r "$library" ] || { echo "check_symbols: $library is not there" >&2; exit 1; }
exported=$(nm -D --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' | sort -u)
[ -n "$exported" ] || { echo "check_symbols: $library exports nothing" >&2; exit 1; }

bad=0
foreign=$(printf '%s\n' "$exported" | grep -v '^moewe_' | grep -v -x -e _init -e _fini || true)
if [ -n "$foreign" ]; then
    printf '%s\n' "$foreign" | sed 's/^/check_symbols: exported without the prefix moewe_: /' >&2
    bad=1
fi
data=$(nm -D --defined-only "$library" | awk '$2 != "T" && $2 != "t" && $3 ~ /^moewe_/ { print $NF }')
if [ -n "$data" ]; then
    printf '%s\n' "$data" | sed 's/^/check_symbols: exported data, functions only are public: /' >&2
    bad=1
fi
if [ -n "$header" ]; then
    declared=$(tr '\n' ' ' <"$header" | grep -o 'MOEWE_API [^;(]*(' | grep -o 'moewe_[a-z0-9_]* *(' | tr -d ' (' | sort -u)
    for name in $declared; do
        printf '%s\n' "$exported" | grep -q -x "$name" || { echo "check_symbols: $name is declared and not exported" >&2; bad=1; }
    done
    for name in $(printf '%s\n' "$exported" | grep '^moewe_'); do
        printf '%s\n' "$declared" | grep -q -x "$name" || { echo "check_symbols: $name is exported and not in the header" >&2; bad=1; }
    done
fi
exit $bad
