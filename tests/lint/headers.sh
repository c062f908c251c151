#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Each public header compiles alone, as C11 and as C++, with both compilers; the kernel contract
# besides without holes and for 32-bit callers. Prints TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
status=0
flags=(-fsyntax-only -Wall -Wextra -Werror -Ilib/include -Iuapi)

try() {
	local title=$1 out
	shift
	if out=$("$@" 2>&1); then
		echo "ok - $title"
	else
		echo "not ok - $title"
		sed 's/^/# /' <<<"$out"
		status=1
	fi
}

for header in lib/include/*.h lib/include/omnikv/*.h uapi/linux/omnikv*.h; do
	[ -f "$header" ] || continue
	for cc in gcc clang; do
		command -v $cc >/dev/null || continue
		try "$header as C11, $cc" $cc -x c -std=c11 "${flags[@]}" -include "$header" /dev/null
		try "$header as C++17, $cc" $cc -x c++ -std=c++17 "${flags[@]}" -include "$header" /dev/null
	done
done

for header in uapi/linux/omnikv*.h; do
	for cc in gcc clang; do
		command -v $cc >/dev/null || continue
		try "$header without holes, $cc" $cc -x c -std=c11 "${flags[@]}" -Wpadded -include "$header" /dev/null
		try "$header without holes, 32-bit, $cc" \
			$cc -m32 -I"/usr/include/$(gcc -print-multiarch)" -x c -std=c11 "${flags[@]}" -Wpadded -include "$header" /dev/null
	done
done
exit $status
