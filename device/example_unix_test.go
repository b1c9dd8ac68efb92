//go:build unix

package device_test

import (
	"fmt"
	"os"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// A file in memory is memory that a peer can have kept: FLUSH of type persistent is answered when the bytes are on the disk.
func ExampleMapFile() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	f := must(os.CreateTemp("", "softnic-example"))
	defer os.Remove(f.Name())
	check(f.Truncate(4096))
	mem := must(device.MapFile(f, 4096))
	check(f.Close())
	log := must(b.pd.RegMemory(mem, mem.Addr(), 4096, device.LocalWrite|device.RemoteWrite|device.FlushPersistent))

	x, y := a.qp(device.RC), b.qp(device.RC)
	rx, ry := x.Address(1, 100), y.Address(1, 200)
	check(x.Connect(rx.PSN, ry, device.ConnectOptions{}))
	check(y.Connect(ry.PSN, rx, device.ConnectOptions{Access: device.RemoteWrite | device.FlushPersistent}))
	check(x.PostSend(&device.SendWR{Op: device.OpWrite, Flags: device.Inline, InlineData: []byte("committed"), RemoteAddr: log.Addr(), RKey: log.RKey()}))
	check(x.PostSend(&device.SendWR{Op: device.OpFlush, FlushType: transport.FlushPersistent, FlushLen: 9, RemoteAddr: log.Addr(), RKey: log.RKey()}))
	a.wait()
	fmt.Println(a.wait().Status)

	check(log.Dereg())
	check(mem.Close())
	fmt.Printf("%s\n", must(os.ReadFile(f.Name()))[:9])
	// Output:
	// IBV_WC_SUCCESS
	// committed
}
