#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# omnikvd.service and omnikvd.socket as they are installed, under a real systemd: started, reloaded, killed, started
# anew, with other settings, stopped; what is cached stays where it should. Prints TAP.
#
# systemd runs as the first process of namespaces of its own, over an overlay of this machine's files that is gone
# afterwards: nothing of the machine changes, and none of its services is started.

set -u
top=$(cd "${OMNIKV_TOP:-$(dirname "$0")/../..}" && pwd)
systemd=/lib/systemd/systemd
socket=/run/omnikv/omnikvd.sock
deadline=60

skip() {
	echo "1..0 # SKIP $*"
	echo "ok - the service under systemd # SKIP $*"
	exit 4
}

# ---- in the namespaces: the files, then systemd ---------------------------------------------------

if [ "${1-}" = boot ]; then
	set -e
	root=$2
	mount --make-rprivate /
	mount -t tmpfs -o mode=755 omnikv "$root"
	mkdir "$root/upper" "$root/work" "$root/merged"
	mount -t overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" overlay "$root/merged"
	cd "$root/merged"
	for dir in dev run tmp proc sys; do
		[ -d $dir ] || mkdir $dir
	done
	mount -t proc proc proc
	mount -t sysfs -o ro sysfs sys
	mount -t cgroup2 cgroup2 sys/fs/cgroup
	mount -t tmpfs -o mode=755 tmpfs run
	mount -t tmpfs tmpfs tmp
	mount -t tmpfs -o mode=755 tmpfs dev
	for node in null zero full random urandom tty; do
		touch dev/$node
		mount --bind /dev/$node dev/$node
	done
	mkdir dev/shm
	mount -t tmpfs tmpfs dev/shm
	# The machine's own wishes and units of its administrator play no part.
	rm -rf etc/systemd/system etc/omnikv
	mkdir -p etc/systemd/system
	: >etc/machine-id
	make -s -C "$top" install prefix=/usr DESTDIR="$PWD" >/dev/null
	cat >etc/omnikv/omnikvd.conf <<-EOF
		[daemon]
		pool = 64M
		group = omnikv
		reserve = 4M
		clients = 512
	EOF
	cat >etc/systemd/system/omnikv-test.target <<-EOF
		[Unit]
		Wants=omnikvd.socket omnikvd.service
		After=omnikvd.service
	EOF
	systemd-sysusers --root="$PWD" omnikv.conf >/dev/null
	mkdir old
	pivot_root . old
	umount -l /old
	exec env -i container=omnikv PATH=/usr/sbin:/usr/bin:/sbin:/bin $systemd --unit=omnikv-test.target \
		--log-target=null --show-status=no
fi

# ---- outside ---------------------------------------------------------------------------------------

[ "$(id -u)" = 0 ] || skip "root alone makes namespaces"
[ -x $systemd ] || skip "there is no systemd on this machine"
groups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[ -n "$groups" ] || skip "no cgroup2 is mounted"
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || skip "no overlay file system"
[ -x "$top/build/bin/omnikvd" ] || skip "omnikvd is not built"

unshare --mount --pid --cgroup --uts --ipc --net --fork true 2>/dev/null || skip "no namespaces may be made"

work=$(mktemp -d)
group=$groups/omnikv-test.$$
boot=
clean() {
	kill -KILL "$boot"
	wait "$boot"
	# What systemd made below it goes when its processes have gone.
	for _ in $(seq 50); do
		find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
		[ -d "$group" ] || break
		sleep 0.1
	done
	rm -rf "$work"
} 2>/dev/null
trap clean EXIT
mkdir "$group" 2>/dev/null || skip "no cgroup can be made in $groups"
mkdir "$work/root"
# shellcheck disable=SC2016 # of the inner shell
sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' sh "$group" \
	unshare --mount --pid --cgroup --uts --ipc --net --fork --kill-child "$0" boot "$work/root" >"$work/log" 2>&1 &
boot=$!

init() { grep -m 1 -o '^[0-9]*[0-9]' "/proc/$boot/task/$boot/children" 2>/dev/null; }
within() { timeout "$deadline" nsenter -t "$(init)" -m -p -C -u -i -n -r -w env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
show() { within systemctl show -P "$2" "$1"; }

nr=0
status=0
check() {
	local name=$1
	shift
	nr=$((nr + 1))
	# More starts in a row than an operator makes.
	within systemctl reset-failed omnikvd.service
	if "$@" >"$work/said" 2>&1; then
		echo "ok $nr - $name"
	else
		echo "not ok $nr - $name"
		tail -n 12 "$work/said" | sed 's/^/# /'
		status=1
	fi
}

# until SECONDS COMMAND...: as soon as it succeeds
until_true() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.2
	done
}

is_active() { [ "$(show omnikvd.service ActiveState)" = active ]; }
is_failed() { [ "$(show omnikvd.service ActiveState)" = failed ]; }
settings() { within sh -c "cat >>/etc/omnikv/omnikvd.conf" <<<"$1"; }
play() { within omnikv replay --workload chat --clients 2 "--daemon=$socket" --json >"$work/json"; }
figure() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$work/json" "$1"; }
hits() { [ "$(figure wrong_bytes)" = 0 ] && [ "$(figure blocks_hit)" = "$1" ]; }

until_true "$deadline" init
if ! until_true "$deadline" is_active; then
	echo "not ok 1 - the service starts"
	{ cat "$work/log"; within systemctl status --no-pager -l omnikvd.service; } 2>&1 | tail -n 20 | sed 's/^/# /'
	exit 1
fi

started() { is_active && [ "$(show omnikvd.service StatusText)" = "serving $socket" ]; }
check "the service starts and says that it is ready" started

cold() { play && hits 1984; }
check "engines share what one of them computed" cold

warm() { play && hits 2663; }
killed() {
	within systemctl kill -s KILL omnikvd.service && sleep 0.5 && until_true "$deadline" is_active &&
		[ "$(show omnikvd.service NRestarts)" = 1 ] && warm
}
check "what is cached outlives a killed daemon" killed

restarted() { within systemctl restart omnikvd.service && is_active && warm; }
check "what is cached outlives a restart" restarted

through() {
	play &
	for _ in 1 2 3; do
		sleep 0.3
		within systemctl restart omnikvd.service || return 1
	done
	wait $! && [ "$(figure wrong_bytes)" = 0 ]
}
check "engines go on through restarts" through

reloaded() { settings "reserve = 8M" && within systemctl reload omnikvd.service && is_active; }
within sed -i '/^reserve/d' /etc/omnikv/omnikvd.conf
check "a reload reads the settings again" reloaded

other_pool() {
	within sed -i 's/^pool = .*/pool = 32M/' /etc/omnikv/omnikvd.conf &&
		within systemctl restart omnikvd.service && is_active && cold
}
check "a pool of another size starts empty" other_pool

publishes() { settings "events = tcp://127.0.0.1:5557" && within systemctl restart omnikvd.service && is_active; }
check "events are published" publishes

with_store() {
	settings "spill = /var/lib/omnikv/spill
spill-size = 256M" && within systemctl restart omnikvd.service && is_active && within omnikv spill stat /var/lib/omnikv/spill
}
check "a spill store lies where the service may write" with_store

stops() {
	within systemctl stop omnikvd.service omnikvd.socket && [ "$(show omnikvd.service Result)" = success ] &&
		! within test -e "$socket"
}
check "it stops in order, and leaves no socket" stops

wrong() {
	settings "frob = 1" && ! within systemctl start omnikvd.service && until_true "$deadline" is_failed &&
		[ "$(show omnikvd.service ExecMainStatus)" = 2 ] && [ "$(show omnikvd.service NRestarts)" = 0 ]
}
check "wrong settings fail once" wrong

echo "1..$nr"
exit $status
