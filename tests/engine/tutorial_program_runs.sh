#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# The program of the engine tutorial compiles without a warning, runs, and prints what the tutorial says.
# Prints TAP.

set -eu
cd "${OMNIKV_TOP:-$(dirname "$0")/../..}"
build=${OMNIKV_BUILD:-build}
packages="liburing libisal libxxhash libcrypto jansson numa"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

echo "1..2"
# shellcheck disable=SC2046,SC2086
if ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -Ilib/include -Iuapi -o "$out/engine" \
	Documentation/examples/engine.c "$build/lib/libomnikv.a" $(pkg-config --libs $packages) -ldl -lm -pthread; then
	echo "ok 1 - compiles"
else
	echo "not ok 1 - compiles"
	exit 1
fi
"$out/engine" > "$out/got"
# The indented lines behind "It prints:".
sed -n '/^It prints:$/,/^[^ ]/{s/^    //p}' Documentation/users/engine-tutorial.md > "$out/want"
if diff -u "$out/want" "$out/got" | sed 's/^/# /' && cmp -s "$out/want" "$out/got"; then
	echo "ok 2 - prints what the tutorial says"
else
	echo "not ok 2 - prints what the tutorial says"
	exit 1
fi
