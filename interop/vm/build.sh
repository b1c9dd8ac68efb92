#!/usr/bin/env bash
# Builds the VM lab and prints its directory:
#
#     dir=$(bash interop/vm/build.sh)
#
# The lab is three things: vmlinuz (a Debian 6.12 kernel, never installed on the host), root (a Debian tree with the
# stock RDMA tools, which the VM mounts read-only over 9p) and initrd (just enough to mount it). It lies outside the
# tree, in ${SOFTNIC_LAB:-${XDG_CACHE_HOME:-~/.cache}/softnic/lab}/KEY, where KEY is a hash of this file and of
# initramfs.sh, so that a changed recipe is a new lab and an unchanged one costs nothing.
#
# Building needs root (debootstrap) and the package mirror that apt is configured with; using a built lab needs neither.
# SOFTNIC_MIRROR=URL names another mirror.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
base=$(realpath -m "${SOFTNIC_LAB:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/softnic/lab}")

# Bookworm, whatever the host is: its rdma-core (v44) is the one that the measurements in the tests come from.
suite=bookworm
packages=(
	ibverbs-utils ibverbs-providers rdmacm-utils perftest rdma-core python3-pyverbs # what is tested against
	iproute2 ethtool iputils-ping kmod procps                                       # to set the network up
	tcpdump strace iperf3                                                           # to watch and to compare
	busybox-static                                                                  # the whole of the initramfs
)
# Module trees that no RDMA test can need; two thirds of the kernel package.
unneeded=(
	drivers/{gpu,media,iio,hwmon,input,usb,mmc,staging,ata,scsi,mtd,hid,bluetooth,isdn,power,rtc,leds,platform,spi}
	drivers/net/{wireless,ethernet,usb,can,phy,wan,hamradio,arcnet,fddi}
	fs/{btrfs,xfs,ocfs2,gfs2,nfs,nfsd,smb,ceph,ext4,f2fs,jfs,reiserfs,udf} sound
)

die() {
	echo "interop: $*" >&2
	exit 1
}

key=$(cat "$here/build.sh" "$here/initramfs.sh" | sha256sum | cut -c1-16)
lab=$base/$key
if [ -e "$lab/complete" ]; then
	echo "$lab"
	exit 0
fi

[ "$(uname -m)" = x86_64 ] || die "the VM lab is an amd64 machine and is built on one: $(uname -m) will not do"
[ "$(id -u)" = 0 ] || die "the VM lab is not built yet and only root can build it: run once as root with SOFTNIC_LAB=$base bash interop/vm/build.sh"
for tool in debootstrap gpgv apt-get dpkg unshare flock; do
	command -v "$tool" >/dev/null || die "$tool is missing: apt-get install debootstrap gpgv debian-archive-keyring (the lab is built on Debian)"
done

# debootstrap mounts /proc and /sys inside the new root. In a mount namespace of our own they end with us, even after
# kill -9. (In a chroot there is no such thing; scrap copes.)
if [ -z "${SOFTNIC_LAB_UNSHARED:-}" ] && unshare --mount --propagation private true 2>/dev/null; then
	SOFTNIC_LAB_UNSHARED=1 exec unshare --mount --propagation private bash "$here/build.sh"
fi

# scrap DIR...: removes half-built labs, and never what is mounted in them.
scrap() {
	local dir mounted
	for dir in "$@"; do
		while read -r mounted; do
			umount -l "$mounted"
		done < <(awk -v d="$dir/" 'index($2, d) == 1 { print $2 }' /proc/self/mounts | sort -r)
		rm -rf --one-file-system "$dir"
	done
}

mkdir -p "$base"
exec 8>"$base/build.lock"
flock 8
if [ -e "$lab/complete" ]; then # somebody else built it while we waited
	echo "$lab"
	exit 0
fi

# We hold the lock: whatever is half-built was interrupted.
scrap "$base"/tmp.*
tmp=$(mktemp -d "$base/tmp.XXXXXX")
chmod 755 "$tmp"
log=$base/build.log
: >"$log"
trap 'scrap "$tmp"' EXIT
trap 'exit 130' INT TERM HUP

# run WHAT COMMAND...: quiet unless it fails.
run() {
	local what=$1
	shift
	echo "+ $*" >>"$log"
	if ! "$@" >>"$log" 2>&1 </dev/null; then
		tail -n 20 "$log" >&2
		die "$what failed: see $log"
	fi
}

# The mirror is the one that apt uses, so the tree names none: first choice is one that has the suite itself.
apt_mirror() {
	# shellcheck disable=SC2016 # the dollars are apt's
	apt-get indextargets --format '$(RELEASE) $(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
		awk -v s="$suite" '$3 == "main" && ($1 == s || $2 == s) { print 1, $NF } $3 == "main" && /[/]debian[/]?$/ { print 2, $NF }' |
		sort -n | awk 'NR == 1 { print $2 }'
}

export DEBIAN_FRONTEND=noninteractive LC_ALL=C
# debootstrap downloads with wget, which knows nothing of apt's proxy.
proxy=$(apt-config shell p Acquire::http::Proxy | sed -n "s/^p='\(.*\)'$/\1/p")
if [ -n "$proxy" ] && [ "$proxy" != DIRECT ] && [ -z "${http_proxy:-}" ]; then
	export http_proxy=$proxy
fi
# On a fresh machine apt knows nothing until its first update.
url=${SOFTNIC_MIRROR:-$(apt_mirror)}
if [ -z "$url" ]; then
	run "apt-get update" apt-get update
	url=$(apt_mirror)
fi
case $url in
mirror+file:*) url=$(awk '!/^#/ && NF { print $1; exit }' "${url#mirror+file:}") ;; # as cloud images have it
esac
[ -n "$url" ] || die "apt knows no Debian mirror: set SOFTNIC_MIRROR=URL"

echo "interop: building the VM lab in $lab (once; a few minutes)" >&2
# What is thrown away when it is interrupted needs no fsync, and nobody reads manuals in there.
mkdir -p "$tmp/root/etc/dpkg/dpkg.cfg.d"
printf '%s\n' force-unsafe-io path-exclude=/usr/share/{doc,man,locale,info}/* >"$tmp/root/etc/dpkg/dpkg.cfg.d/lab"
run "debootstrap" debootstrap --variant=minbase --include="$(
	IFS=,
	echo "${packages[*]}"
)" "$suite" "$tmp/root" "$url"

# newest_kernel [APT-OPTION...] prints the package of the newest 6.12 kernel, or nothing. The +debN packages of a
# security suite and the plain ones of backports are alike to us.
newest_kernel() {
	apt-cache "$@" pkgnames linux-image-6.12. | grep -E '^linux-image-6\.12\.[^-]*-amd64$|^linux-image-6\.12\.[0-9]+\+bpo-amd64$' | sort -V | tail -n 1 || true
}
apt=()
kernel=$(newest_kernel)
if [ -z "$kernel" ]; then
	# Not in the host's suites: ask backports of the same mirror, with apt state of our own.
	mkdir -p "$tmp/apt/lists/partial" "$tmp/apt/cache/archives/partial"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $url $suite-backports main" >"$tmp/apt/sources.list"
	apt=(-o "Dir::Etc::SourceList=$tmp/apt/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$tmp/apt/lists" -o "Dir::Cache=$tmp/apt/cache")
	run "apt-get update for $suite-backports" apt-get "${apt[@]}" update
	kernel=$(newest_kernel "${apt[@]}")
	[ -n "$kernel" ] || die "no linux-image-6.12*-amd64 in apt's suites nor in $suite-backports: add a suite that has it, then apt-get update"
fi
mkdir "$tmp/kernel"
chmod 777 "$tmp/kernel" # apt drops privileges to download
(cd "$tmp/kernel" && run "download of $kernel" apt-get "${apt[@]}" download "$kernel")
run "unpacking $kernel" dpkg -x "$tmp"/kernel/*.deb "$tmp/kernel/x"
version=${kernel#linux-image-}
mv "$tmp/kernel/x/boot/vmlinuz-$version" "$tmp/vmlinuz"
mkdir -p "$tmp/root/usr/lib/modules"
modules=$tmp/kernel/x/usr/lib/modules/$version
[ -d "$modules" ] || modules=$tmp/kernel/x/lib/modules/$version # where Debian 12 has it
mv "$modules" "$tmp/root/usr/lib/modules/"
(cd "$tmp/root/usr/lib/modules/$version/kernel" && rm -rf "${unneeded[@]}")
run "depmod" chroot "$tmp/root" depmod "$version"

# The initramfs: busybox, the modules that 9p over virtio needs in the order to load them, and initramfs.sh.
init=$tmp/initramfs
mkdir -p "$init"/{bin,modules,proc,sys,dev,newroot}
cp "$tmp/root/bin/busybox" "$init/bin/"
install -m 755 "$here/initramfs.sh" "$init/init"
n=10
while read -r file; do
	name=$n-$(basename "$file")
	n=$((n + 1))
	case $name in
	*.xz) "$init/bin/busybox" xzcat "$tmp/root$file" >"$init/modules/${name%.xz}" ;;
	*) cp "$tmp/root$file" "$init/modules/$name" ;;
	esac
done < <(for m in virtio_pci 9pnet_virtio 9p; do
	chroot "$tmp/root" modprobe -S "$version" --show-depends "$m"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }')
ls "$init"/modules/*9pnet_virtio* >/dev/null 2>&1 || die "$kernel has no 9p over virtio: remove $base and try again, or report the kernel's name"
(cd "$init" && find . | "$init/bin/busybox" cpio -o -H newc 2>>"$log" | gzip -1) >"$tmp/initrd"

# What the VM mounts over, and what only package management would need.
mkdir -p "$tmp/root/job"
rm -rf "$tmp"/root/var/{cache/apt,lib/apt/lists}/* "$tmp/kernel" "$init" "$tmp/apt"
echo softnic >"$tmp/root/etc/hostname"
printf '127.0.0.1 localhost softnic\n::1 localhost softnic\n' >"$tmp/root/etc/hosts"
echo "$version" >"$tmp/version"

touch "$tmp/lock" "$tmp/complete"
scrap "$lab"
mv "$tmp" "$lab"
trap - EXIT

# Older labs go, unless a run (which holds its lab's lock shared) still uses one.
for old in "$base"/*/; do
	old=${old%/}
	if [ "$old" = "$lab" ] || [ ! -e "$old/lock" ]; then
		continue
	fi
	(
		exec 7<"$old/lock"
		flock -n -x 7 || exit 0
		rm -f "$old/complete"
		mv "$old" "$base/tmp.old.$$" # should we be interrupted, the next build removes it
		scrap "$base/tmp.old.$$"
	)
done
echo "$lab"
