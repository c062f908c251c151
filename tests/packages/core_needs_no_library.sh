#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# core/ is compiled into the kernel too: what its objects call and do not define themselves is
# only what both sides have. Prints TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1

shopt -s nullglob
objects=(build/obj/core/*.o)
if [ ${#objects[@]} -eq 0 ]; then
	echo "ok - core needs no library # SKIP there is no object of core/"
	exit 0
fi
defined=$(nm --defined-only "${objects[@]}" | awk 'NF == 3 {print $3}' | sort -u)
needed=$(nm -u "${objects[@]}" | awk '$1 == "U" {print $2}' | sort -u |
	grep -vE '^(mem(cpy|move|set|cmp)|_GLOBAL_OFFSET_TABLE_|__stack_chk_fail)$')
foreign=$(comm -23 <(printf '%s\n' "$needed" | grep .) <(printf '%s\n' "$defined"))
if [ -n "$foreign" ]; then
	echo "not ok - core needs no library"
	while read -r name; do echo "# needs $name"; done <<<"$foreign"
	exit 1
fi
echo "ok - core needs no library"
