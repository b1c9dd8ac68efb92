package device

import "golang.org/x/sys/unix"

// letOthersRun lets other threads of this processor run, of whatever program, if any want to. It takes less than
// a look.
func letOthersRun() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
