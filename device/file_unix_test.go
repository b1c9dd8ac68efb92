//go:build unix

package device_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// TestPersistentFlush writes into a file of the peer's and has it kept. Elsewhere the right is refused at registration.
func TestPersistentFlush(t *testing.T) {
	a, b := twoHosts(t, 0, device.Options{}, device.Options{})
	path := filepath.Join(t.TempDir(), "pmem")
	const size = 3*4096 + 100
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := device.MapFile(f, size+1); err == nil {
		t.Error("more than the file has was mapped")
	}
	m, err := device.MapFile(f, size)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	const access = device.LocalWrite | device.RemoteWrite | device.FlushGlobal | device.FlushPersistent
	if _, err := b.pd.RegMR(make([]byte, 100), access); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("persistence of memory: %v", err)
	}
	mr, err := b.pd.RegMemory(m, m.Addr(), size, access)
	if err != nil {
		t.Fatal(err)
	}
	qa, qb := a.qp(device.RC, 16), b.qp(device.RC, 16)
	connect(t, qa, qb, 1, device.ConnectOptions{Access: device.RemoteWrite | device.FlushGlobal | device.FlushPersistent})
	src := a.mr(5000)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i*3 + 1)
	}
	both := transport.FlushGlobal | transport.FlushPersistent
	for _, wr := range []*device.SendWR{
		{Op: device.OpWrite, Flags: device.Signaled, SGE: []device.SGE{src.SGE(0, 5000)}, RemoteAddr: mr.Addr() + 7000, RKey: mr.RKey()},
		{Op: device.OpFlush, Flags: device.Signaled, RemoteAddr: mr.Addr() + 7000, RKey: mr.RKey(), FlushLen: 5000, FlushType: both},
		{Op: device.OpFlush, Flags: device.Signaled, RKey: mr.RKey(), FlushType: both, FlushLevel: transport.FlushMR},
	} {
		if err := qa.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		a.ok(wr.Op.Completed())
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got[7000:12000], src.Bytes()) {
		t.Errorf("the file has not what was written: %v", err)
	}
	if err := mr.Dereg(); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}
