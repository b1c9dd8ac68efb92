package device

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/softnic/softnic/link/pipe"
)

// TestCloseWhileDestroyed: a context that is closed while another goroutine destroys what stands on its completion queues leaves none behind.
func TestCloseWhileDestroyed(t *testing.T) {
	end, _ := pipe.New(pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
	d, err := Open(end, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for range 500 {
		c := d.NewContext()
		pd, _ := c.AllocPD()
		cq, err := c.CreateCQ(CQInit{Entries: 4})
		if err != nil {
			t.Fatal(err)
		}
		q, err := pd.CreateQP(QPInit{Type: RC, SendCQ: cq, RecvCQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		xrcd, err := c.AllocXRCD()
		if err != nil {
			t.Fatal(err)
		}
		srq, err := pd.CreateSRQ(SRQInit{MaxWR: 4, XRCD: xrcd, CQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, f := range []func() error{q.Destroy, srq.Destroy, c.Close} {
			wg.Go(func() { _ = f() })
		}
		wg.Wait()
		if o := c.Objects(); o != (Objects{}) {
			t.Fatalf("left: %+v", o)
		}
	}
}
