//go:build linux

package uverbs

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// process is the memory of a program: of the address space that said hello, whatever
// becomes of its process id.
//
// process_vm_readv and its pair are a little faster and respect the protection of
// pages, but name a process, which may fork, end or start another program. So they are used
// only while the process holds the record lock that it took on the memfd, which an honest one loses with any
// of these, and by a daemon that may not trace everybody. Otherwise its /proc/self/mem is used, which names the address space itself.
type process struct {
	pid    int
	lockFD int // the arena's memfd
	memFD  int // /proc/PID/mem, or -1
	vm     atomic.Bool
	mu     sync.Mutex // atomics
	pool   sync.Pool  // *vectors
}

// tracesAll reports whether the daemon may trace processes that are not its user's. It must not use
// process_vm_* then: the record lock survives an execve that keeps the memfd open, and what runs after it
// may be set-uid. Without the capability the kernel refuses that.
var tracesAll = sync.OnceValue(func() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	return unix.Capget(&h, &d[0]) != nil || d[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
})

// isMemory reports whether a file is /proc/PID/mem. Another could be served by the program itself, and hold up whoever
// reads it, or be one of /proc that obeys whoever writes it.
func isMemory(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil || st.Type != unix.PROC_SUPER_MAGIC {
		return false
	}
	to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err == nil && strings.HasSuffix(to, "/mem")
}

// vectors are the arguments of one call.
type vectors struct {
	local  []unix.Iovec
	remote []unix.RemoteIovec
}

// maxVectors is the kernel's UIO_MAXIOV.
const maxVectors = 1024

// probe decides how the memory is reached: value stands at addr if pid is the right
// process. It reports whether there is a way at all.
func (p *process) probe(addr, value uint64) bool {
	var b [8]byte
	e := []transport.Extent{{VA: addr, Buf: b[:]}}
	if p.pid > 0 && !tracesAll() && p.holdsLock() && p.vmReadWrite(e, false) == nil && binary.NativeEndian.Uint64(b[:]) == value {
		p.vm.Store(true)
		return true
	}
	return p.memFD >= 0 && p.fileReadWrite(e, false) == nil && binary.NativeEndian.Uint64(b[:]) == value
}

// holdsLock reports whether the process still runs what said hello.
func (p *process) holdsLock() bool {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 1}
	err := unix.FcntlFlock(uintptr(p.lockFD), unix.F_GETLK, &l)
	return err == nil && l.Type == unix.F_WRLCK && int(l.Pid) == p.pid
}

// access reads, or writes, all extents.
func (p *process) access(e []transport.Extent, write bool) error {
	if p.vm.Load() {
		// Closing one of several descriptors of the memfd drops the lock, and the library sets it again.
		for range 100 {
			if p.holdsLock() {
				return p.vmReadWrite(e, write)
			}
			runtime.Gosched()
		}
		p.vm.Store(false)
	}
	return p.fileReadWrite(e, write)
}

func (p *process) vmReadWrite(e []transport.Extent, write bool) error {
	v, _ := p.pool.Get().(*vectors)
	if v == nil {
		v = new(vectors)
	}
	defer func() {
		clear(v.local)
		p.pool.Put(v)
	}()
	for len(e) > 0 {
		n := min(len(e), maxVectors)
		v.local, v.remote = v.local[:0], v.remote[:0]
		want := 0
		for i := range e[:n] {
			if len(e[i].Buf) == 0 {
				continue
			}
			iov := unix.Iovec{Base: &e[i].Buf[0]}
			iov.SetLen(len(e[i].Buf))
			v.local = append(v.local, iov)
			v.remote = append(v.remote, unix.RemoteIovec{Base: uintptr(e[i].VA), Len: len(e[i].Buf)})
			want += len(e[i].Buf)
		}
		e = e[n:]
		if want == 0 {
			continue
		}
		var got int
		var err error
		if write {
			got, err = unix.ProcessVMWritev(p.pid, v.local, v.remote, 0)
		} else {
			got, err = unix.ProcessVMReadv(p.pid, v.local, v.remote, 0)
		}
		if err == unix.ESRCH {
			return transport.ErrGone
		}
		if err != nil || got != want {
			return device.EFAULT
		}
	}
	return nil
}

func (p *process) fileReadWrite(e []transport.Extent, write bool) error {
	if p.memFD < 0 {
		return device.EFAULT
	}
	for len(e) > 0 {
		// Extents that follow each other in the program's memory are one call.
		n, next := 1, e[0].VA+uint64(len(e[0].Buf))
		for n < len(e) && n < maxVectors && e[n].VA == next {
			next += uint64(len(e[n].Buf))
			n++
		}
		if err := p.file(e[:n], int64(next-e[0].VA), write); err != nil {
			return err
		}
		e = e[n:]
	}
	return nil
}

func (p *process) file(e []transport.Extent, want int64, write bool) error {
	if int64(e[0].VA) < 0 {
		return device.EFAULT // no address of a program; the offset would be negative
	}
	bufs := make([][]byte, 0, 8)
	for i := range e {
		bufs = append(bufs, e[i].Buf)
	}
	var got int
	var err error
	if write {
		got, err = unix.Pwritev(p.memFD, bufs, int64(e[0].VA))
	} else {
		got, err = unix.Preadv(p.memFD, bufs, int64(e[0].VA))
	}
	if err == nil && got == 0 && want > 0 {
		return transport.ErrGone // the address space has ended: with its program, or by an exec
	}
	if err != nil || int64(got) != want {
		return device.EFAULT
	}
	return nil
}

// region is a registered part of the program's memory: address va of the
// registration is address va + shift of the program.
type region struct {
	*process
	shift uint64
}

var _ transport.Memory = region{}

// Slices implements transport.Memory: nothing can be touched directly.
func (r region) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }

// ReadV implements transport.Memory.
func (r region) ReadV(e []transport.Extent) error { return r.shifted(e, false) }

// WriteV implements transport.Memory.
func (r region) WriteV(e []transport.Extent) error { return r.shifted(e, true) }

func (r region) shifted(e []transport.Extent, write bool) error {
	if r.shift == 0 {
		return r.access(e, write)
	}
	for i := range e {
		e[i].VA += r.shift
	}
	err := r.access(e, write)
	for i := range e {
		e[i].VA -= r.shift
	}
	return err
}

// update is a read and a write of the word at va that no other of the daemon comes
// between. The program's own stores can: atomic_cap is HCA.
func (r region) update(va uint64, f func(old uint64) (uint64, bool)) (old uint64, err error) {
	if va&7 != 0 {
		return 0, device.EINVAL
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var b [8]byte
	e := []transport.Extent{{VA: va, Buf: b[:]}}
	if err := r.ReadV(e); err != nil {
		return 0, err
	}
	old = binary.NativeEndian.Uint64(b[:])
	if v, ok := f(old); ok {
		binary.NativeEndian.PutUint64(b[:], v)
		err = r.WriteV(e)
	}
	return old, err
}

// Atomic64 implements transport.Memory.
func (r region) Atomic64(va uint64, a *transport.Atomic) (uint64, error) {
	return r.update(va, a.Apply)
}

// Store64 implements transport.Memory.
func (r region) Store64(va, v uint64) error {
	_, err := r.update(va, func(uint64) (uint64, bool) { return v, true })
	return err
}
