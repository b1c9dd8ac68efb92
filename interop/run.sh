#!/usr/bin/env bash
# Runs softnic with the stock RDMA programs: as their device, on this host; and against the kernel's RDMA driver
# (rdma_rxe), in a virtual machine.
#
#     bash interop/run.sh                    every host test and every guest test, then the host's judges
#     bash interop/run.sh -run REGEXP        only the tests that match, as in go test -run; the VM boots if one of its own does
#     bash interop/run.sh -shell 'COMMAND'   one shell command in the guest, to look around: its exit code is returned
#
# Needs Debian, Go, and root once (packages, debootstrap); the machine's own kernel is never touched. The host tests
# (interop/stock) leave captures and logs in the job directory. One VM boots per run, emulated, so that no /dev/kvm is
# needed. The job directory is /job in the guest: the test binary goes in, output, captures and logs come out. Then
# `go test ./interop/judge` (SOFTNIC_JOB=dir) judges all of them on the host.
#
# Exit code 0 only when something passed, nothing failed and nothing was skipped. The last line is
#
#     interop: N passed, N failed, N skipped
#
# Environment (all optional):
#
#     SOFTNIC_KEEP=1        keep the job directory also after success
#     SOFTNIC_TIMEOUT=1800  seconds that the VM may live
#     SOFTNIC_LONG=1        host tests that take long, too
#     SOFTNIC_CORPUS=DIR    write the golden captures of TestCorpus to DIR, if nothing failed: make corpus
#     SOFTNIC_LAB=DIR       where built labs are cached; default ${XDG_CACHE_HOME:-~/.cache}/softnic/lab
#     SOFTNIC_ACCEL=tcg     the emulator's accelerator; kvm is faster where it works, which nested machines often lack
#     SOFTNIC_CPUS=N        processors of the VM; default 2, or 1 where the emulator would crash the kernel with more
set -euo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
limit=${SOFTNIC_TIMEOUT:-1800}
accel=${SOFTNIC_ACCEL:-tcg}
pattern=.
command=

die() {
	echo "interop: $*" >&2
	exit 1
}

while [ $# -gt 0 ]; do
	case $1 in
	-run | -shell) [ $# -ge 2 ] || die "$1 needs an argument" ;;
	-h | -help | --help)
		sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
		exit 0
		;;
	*) die "unknown argument $1: see bash interop/run.sh -help" ;;
	esac
	case $1 in
	-run) pattern=$2 ;;
	-shell) command=$2 ;;
	esac
	shift 2
done

# What the host needs: command and Debian package.
host_packages() {
	local missing=() tool package
	while read -r tool package; do
		command -v "$tool" >/dev/null || missing+=("$package")
	done <<-'LIST'
		qemu-system-x86_64 qemu-system-x86
		debootstrap debootstrap
		gpgv gpgv
		tshark tshark
		gcc gcc
		make make
		ibv_rc_pingpong ibverbs-utils
		ib_send_bw perftest
		rping rdmacm-utils
		ucx_perftest ucx-utils
	LIST
	[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
	[ -e /etc/libibverbs.d/rxe.driver ] || missing+=(ibverbs-providers)
	[ -e /usr/include/infiniband/verbs.h ] || missing+=(libibverbs-dev)
	/usr/bin/python3 -c 'import pyverbs.device' 2>/dev/null || missing+=(python3-pyverbs)
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || die "missing: ${missing[*]}; install these (names as in Debian) and try again"
	[ "$(id -u)" = 0 ] || die "missing packages: run as root: apt-get install --no-install-recommends ${missing[*]}"
	echo "interop: installing ${missing[*]}"
	local log
	log=$(mktemp)
	export DEBIAN_FRONTEND=noninteractive # tshark would ask who may capture
	if ! { apt-get install -y --no-install-recommends "${missing[@]}" ||
		{ apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; }; } >"$log" 2>&1 </dev/null; then
		tail -n 20 "$log" >&2
		rm -f "$log"
		die "apt-get could not install ${missing[*]}: see above"
	fi
	rm -f "$log"
}

command -v go >/dev/null || die "go is not in PATH: install the Go that go.mod names"
host_packages

job=$(mktemp -d "${TMPDIR:-/tmp}/softnic-interop.XXXXXX")
chmod 755 "$job" # users other than root in the guest
vm=
streamer=
cleanup() {
	local rc=$?
	trap - EXIT
	[ -z "$vm" ] || kill "$vm" 2>/dev/null || true
	[ -z "$streamer" ] || kill "$streamer" 2>/dev/null || true
	if [ "$rc" != 0 ] || [ -n "${SOFTNIC_KEEP:-}" ]; then
		echo "interop: job directory kept: $job" >&2
	else
		rm -rf "$job"
	fi
	# Last, so that it is the last line whatever happened.
	[ -z "${tally:-}" ] || echo "$tally"
	exit "$rc"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP PIPE

# QEMU before 8.1 sometimes lets a second emulated processor run code that the first has just changed (fixed by its
# commit deba78709a): the kernel, which switches its branches that way when a capture starts, then dies of "Oops: int3".
cpus=${SOFTNIC_CPUS:-}
if [ -z "$cpus" ]; then
	cpus=2
	version=$(qemu-system-x86_64 --version | sed -n '1s/.*version \([0-9]*\.[0-9]*\).*/\1/p')
	if [[ $accel == tcg* && $(printf '%s\n' 8.1 "$version" | sort -V | head -n 1) != 8.1 ]]; then
		cpus=1
	fi
fi

# Static, so that the guest's libraries do not matter.
cd "$tree"
export CGO_ENABLED=0
mkdir "$job/bin"
# The library that softnic exec loads into programs; the Go compiler embeds it.
library=uverbs/preload/lib/libsoftnic.so
if [ ! -e "$library" ] || [ -n "$(find uverbs/preload/src -newer "$library")" ]; then
	sh uverbs/preload/src/build.sh "$library" || [ -n "$command" ] || die "the preload library does not build"
fi
if compgen -G "cmd/softnic/*.go" >/dev/null; then
	go build -o "$job/bin/softnic" ./cmd/softnic || [ -n "$command" ] || die "cmd/softnic does not build"
fi

# What make bench measures in the guest; a lab test keeps it going.
go build -o "$job/bin/softnic-bench" ./interop/bench || [ -n "$command" ] || die "interop/bench does not build"

# wanted TESTS: whether the pattern names a test of that binary.
wanted() {
	[ -n "$("$1" -test.list "${pattern%%/*}")" ]
}

# count VERDICT FILE...: lines such as "--- PASS: TestX", subtests included.
count() {
	local verdict=$1
	shift
	cat /dev/null "$@" | grep -c "^ *--- $verdict: " || true
}

# summary: the verdict on what is in results and failed, as the exit code and for the last line.
summary() {
	local passed skipped
	passed=$(count PASS "${results[@]}")
	failed=$((failed + $(count FAIL "${results[@]}")))
	skipped=$(count SKIP "${results[@]}")
	grep -hE '^ *--- (FAIL|SKIP): ' /dev/null "${results[@]}" | sed 's/^ */interop: /' >&2 || true
	tally="interop: $passed passed, $failed failed, $skipped skipped"
	if [ "$skipped" != 0 ]; then
		echo "interop: a skipped test proves nothing here: the lab, and root on the host, have what every test needs" >&2
	fi
	[ "$passed" -gt 0 ] || echo "interop: no test passed: does -run '$pattern' match any?" >&2
	[ "$failed" = 0 ] && [ "$skipped" = 0 ] && [ "$passed" -gt 0 ]
}

# judge_captures looks at what is in the job directory, and has the judge make a capture of its own where that is wanted.
judge_captures() {
	compgen -G "interop/judge/*_test.go" >/dev/null || return 0
	local tests=() judge_rc=0
	# grep reads to the end: with -q it would end find with a signal, and the judges would be left out.
	if [ "$pattern" = . ] || find "$job" -name '*.pcap*' | grep . >/dev/null; then
		tests+=(TestJob)
	fi
	local test
	for test in TestEveryOpcode TestGoldenAsTshark; do
		if go test -list "${pattern%%/*}" ./interop/judge | grep -x "$test" >/dev/null; then
			tests+=("$test")
		fi
	done
	[ ${#tests[@]} -gt 0 ] || return 0
	echo "interop: judging the captures"
	SOFTNIC_JOB=$job go test -count=1 -v -run "^($(IFS='|' && echo "${tests[*]}"))\$" ./interop/judge >"$job/judge.log" 2>&1 || judge_rc=$?
	cat "$job/judge.log"
	results+=("$job/judge.log")
	if [ "$judge_rc" != 0 ] && [ "$(count FAIL "$job/judge.log")" = 0 ]; then
		failed=$((failed + 1)) # it did not build, or it ended without a verdict
	fi
}

results=()
failed=0
guest=yes
if [ -z "$command" ]; then
	go test -c -o "$job/bin/guest.test" ./interop/guest || die "the guest tests do not build"
	go test -c -o "$job/bin/stock.test" ./interop/stock || die "the host tests do not build"
	wanted "$job/bin/guest.test" || guest=
	# Before the VM, which would take the processors.
	if wanted "$job/bin/stock.test"; then
		echo "interop: stock programs on this host"
		host_rc=0
		(
			cd interop/stock
			SOFTNIC_STOCK=1 SOFTNIC_BIN=$job/bin/softnic SOFTNIC_JOB=$job \
				"$job/bin/stock.test" -test.v -test.run="$pattern" -test.timeout=20m </dev/null 2>&1
		) | tee "$job/host.log" || host_rc=$?
		results+=("$job/host.log")
		if [ "$host_rc" != 0 ] && [ "$(count FAIL "$job/host.log")" = 0 ]; then
			failed=$((failed + 1))
		fi
	fi
	if [ -z "$guest" ]; then
		judge_captures
		summary
		exit
	fi
	# The Go limit is the shorter one: it prints where the tests hang.
	printf 'exec guest.test -test.v -test.run=%q -test.timeout=%ds\n' "$pattern" $((limit > 240 ? limit - 120 : limit / 2)) >"$job/run"
else
	printf '%s\n' "$command" >"$job/run"
fi

# A built lab may be removed by a run with a newer recipe until we hold its lock.
for _ in 1 2 3; do
	lab=$(bash "$tree/interop/vm/build.sh")
	exec 9<"$lab/lock" || continue
	flock -s 9
	[ ! -e "$lab/complete" ] || break
done
[ -e "$lab/complete" ] || die "the lab in $lab vanishes while it is used: run again when no other checkout builds its own"

cp interop/vm/guest.sh "$job/init"
touch "$job/output.log" "$job/console.log"

# The VM ends with us, even after kill -9.
setpriv --pdeathsig TERM timeout -k 5 "$limit" qemu-system-x86_64 \
	-machine q35 -accel "$accel" -cpu max -smp "$cpus" -m 2048 -no-reboot \
	-pidfile "$job/qemu.pid" -display none -vga none -nic none -monitor none -serial "file:$job/console.log" \
	-kernel "$lab/vmlinuz" -initrd "$lab/initrd" \
	-append "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off" \
	-fsdev "local,id=root,path=$lab/root,security_model=none,readonly=on,multidevs=remap" \
	-device virtio-9p-pci,fsdev=root,mount_tag=root \
	-fsdev "local,id=job,path=$job,security_model=none,multidevs=remap" \
	-device virtio-9p-pci,fsdev=job,mount_tag=job \
	</dev/null >"$job/qemu.log" 2>&1 &
vm=$!
tail -n +1 -s 0.2 -f --pid="$vm" "$job/output.log" &
streamer=$!

# note_load writes for the guest, which measures speed, how busy this host is: seconds since it booted, and how long its
# CPUs, and the emulator among them, have been in use.
note_load() {
	local up all emulator=
	read -r up _ </proc/uptime
	read -r all </proc/stat
	read -r emulator 2>/dev/null <"/proc/$(<"$job/qemu.pid")/stat" || return 0
	printf '%s\n%s\n%s\n' "$up" "$all" "$emulator" >"$job/host.part"
	mv "$job/host.part" "$job/host"
}

# A network device that went away while an RDMA link or a queue pair held it is waited for by the kernel for ever, with
# all network configuration locked and no power-off: do not wait with it. It complains every ten seconds.
stuck=
grace=0
while kill -0 "$vm" 2>/dev/null; do
	sleep 0.2
	[ ! -e "$job/qemu.pid" ] || note_load
	if [ "$(grep -c 'unregister_netdevice: waiting' "$job/console.log")" -ge 3 ]; then
		stuck="a network device was removed while an RDMA link or a queue pair still held it: remove the link first"
	elif [ -e "$job/rc" ]; then
		grace=$((grace + 1))
		[ "$grace" -le 150 ] || stuck="the VM did not power off within 30 s after the job"
	fi
	[ -z "$stuck" ] || kill "$vm" 2>/dev/null || true
done
vm_rc=0
wait "$vm" || vm_rc=$?
vm=
wait "$streamer" || true
streamer=

rc=$(cat "$job/rc" 2>/dev/null || echo none)
problem=
if [ -n "$stuck" ]; then
	problem=$stuck
elif [ "$rc" = none ] && [ "$vm_rc" = 124 ]; then
	problem="the VM was ended after $limit s: the job hung, or SOFTNIC_TIMEOUT must be longer"
elif [ "$rc" = none ]; then
	problem="the VM died before the job ended (emulator exit code $vm_rc)"
elif [ ! -e "$job/booted" ]; then
	problem="the guest could not set itself up: $(tail -n 1 "$job/boot.log")"
fi
if [ -n "$problem" ]; then
	cat "$job/qemu.log" >&2
	echo "interop: last console lines:" >&2
	tail -n 30 "$job/console.log" >&2
	echo "interop: $problem" >&2
fi

# Not a failure by itself, rxe has some that a peer can provoke, but never to be overlooked.
if grep -E 'WARNING: CPU|BUG:|Oops|blocked for more than' "$job/dmesg.log" 2>/dev/null; then
	echo "interop: the guest's kernel complained (above)" >&2
fi

if [ -n "$command" ]; then
	[ -z "$problem" ] || exit 1
	exit "$rc"
fi

results+=("$job/output.log")
if [ "$rc" != 0 ] && [ "$(count FAIL "$job/output.log")" = 0 ]; then
	failed=$((failed + 1))
elif [ -n "$problem" ]; then
	failed=$((failed + 1))
fi
[ -n "$problem" ] || judge_captures
verdict=0
summary || verdict=$?
if [ "$verdict" = 0 ] && [ -n "${SOFTNIC_CORPUS:-}" ]; then
	go run ./interop/corpus/make "$job" "$SOFTNIC_CORPUS" || die "the corpus is not made"
fi
exit "$verdict"
