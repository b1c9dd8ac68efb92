//go:build unix

package control

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

func checkOwner(dir string, fi fs.FileInfo) error {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to user %d, and this is user %d: use --socket PATH", dir, st.Uid, os.Getuid())
	}
	if m := fi.Mode().Perm(); m&0o022 != 0 {
		return fmt.Errorf("%s may be written by others (mode %04o): `chmod 700 %s`, or use --socket PATH", dir, m, dir)
	}
	return nil
}

// lockFolder keeps other daemons from making or replacing sockets in dir meanwhile.
func lockFolder(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	return func() { f.Close() }, nil
}
