#!/bin/bash
# The VM's first process after the initramfs: run.sh puts it into the job directory as "init". It brings up what the
# tests take for granted, runs /job/run, leaves the exit code in /job/rc and turns the machine off.
#
# Output goes to /job/output.log and not to the console: the kernel writes there too and would tear lines apart.
export PATH=/tmp/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8
export SOFTNIC_GUEST=1 SOFTNIC_JOB=/job XDG_RUNTIME_DIR=/run/user/0

finish() {
	trap - ERR
	dmesg >/job/dmesg.log
	echo "$1" >/job/rc.part
	mv /job/rc.part /job/rc
	sync
	echo o >/proc/sysrq-trigger
	# Power-off is done by a kernel worker: a first process that ends before it would panic the machine.
	while :; do sleep 1; done
}

exec >/job/boot.log 2>&1 </dev/null
trap 'finish 125' ERR
hostname softnic
# A tmpfs is for everybody unless told otherwise.
chmod 755 /run /var/lib /var/log
chmod 700 /root
chmod 1777 /tmp /var/tmp
mkdir -p /dev/pts /dev/shm /tmp/bin /run/netns /run/user
mkdir -m 700 /run/user/0
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t debugfs debugfs /sys/kernel/debug
ip link set lo up
# Duplicate address detection costs a second per address and can find no duplicate here.
sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0
modprobe -a rdma_rxe rdma_ucm ib_umad veth tun
chmod 666 /dev/net/tun
ulimit -l unlimited
ulimit -c 0
# The job directory is for data; programs start faster from memory.
for program in /job/bin/*; do
	if [ -e "$program" ]; then
		cp "$program" /tmp/bin/
	fi
done
cd /tmp || finish 125
trap - ERR

cut -d' ' -f1 /proc/uptime >/job/booted
bash /job/run >>/job/output.log 2>&1
finish $?
