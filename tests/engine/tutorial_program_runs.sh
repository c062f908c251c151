#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# The programs of the engine tutorial compile without a warning, run, and print what the tutorial says.
# Prints TAP.

set -eu
cd "${OMNIKV_TOP:-$(dirname "$0")/../..}"
build=${OMNIKV_BUILD:-build}
packages="liburing libisal libxxhash libcrypto jansson numa"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
status=0

# try NAME LINE: the indented lines behind LINE in the tutorial are what examples/NAME.c prints.
try() {
	# shellcheck disable=SC2046,SC2086
	if ${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -Ilib/include -Iuapi -o "$out/$1" \
		"Documentation/examples/$1.c" "$build/lib/libomnikv.a" $(pkg-config --libs $packages) -ldl -lm -pthread; then
		echo "ok - $1.c compiles"
	else
		echo "not ok - $1.c compiles"
		status=1
		return
	fi
	"$out/$1" > "$out/got" || echo "exit status $?" >> "$out/got"
	sed -n "/^$2\$/,/^[^ ]/{s/^    //p}" Documentation/users/engine-tutorial.md > "$out/want"
	if [ -s "$out/want" ] && cmp -s "$out/want" "$out/got"; then
		echo "ok - $1.c prints what the tutorial says"
	else
		diff -u "$out/want" "$out/got" | sed 's/^/# /'
		echo "not ok - $1.c prints what the tutorial says"
		status=1
	fi
}

echo "1..4"
try engine "It prints:"
try connector "This one prints:"
exit $status
