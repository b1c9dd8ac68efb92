#!/bin/busybox sh
# shellcheck shell=dash
#
# /init of the lab's initramfs: mount the root (read-only, 9p) and the job directory (read-write, 9p), lay tmpfs over
# what programs write to, and hand over to /job/init. Whatever fails here panics the kernel (init has died), which
# ends the VM at once.
set -e
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs dev /dev
for m in /modules/*; do
	$bb insmod "$m"
done
# Nobody changes the root under us, so the guest may cache it; the job directory is read by the host while we write.
$bb mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose root /newroot
$bb mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none job /newroot/job
for d in /tmp /run /root /var/tmp /var/log /var/lib; do
	$bb mount -t tmpfs tmpfs "/newroot$d"
done
for d in /proc /sys /dev; do
	$bb mount -o move "$d" "/newroot$d"
done
exec $bb switch_root /newroot /bin/bash /job/init
