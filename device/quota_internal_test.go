package device

import (
	"errors"
	"fmt"
	"testing"

	"github.com/softnic/softnic/link/pipe"
)

// Each number of objects that Query tells is that of the device, whoever's they are: the call beyond it is refused, changes
// nothing, and succeeds when one is freed, also by the end of a context.
func TestLimitsOfObjects(t *testing.T) {
	open := func(t *testing.T) *Device {
		end, _ := pipe.New(pipe.Config{}, pipe.Config{})
		d, err := Open(end, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	type user struct {
		*Context
		pd *PD
		cq *CQ
	}
	type free = func() error
	a := open(t).Query()
	for _, c := range []struct {
		name  string
		kinds []kind
		told  int // by Query
		want  int // and what own is given
		make  []func(u user) (free, error)
	}{
		{"PD", []kind{kindPD}, a.MaxPD, MaxPD, []func(u user) (free, error){func(u user) (free, error) {
			o, err := u.AllocPD()
			return func() error { return o.Dealloc() }, err
		}}},
		{"MR", []kind{kindMR}, a.MaxMR, MaxMR, []func(u user) (free, error){
			func(u user) (free, error) {
				o, err := u.pd.RegMR(make([]byte, 8), LocalWrite)
				return func() error { return o.Dereg() }, err
			},
			func(u user) (free, error) {
				o, err := u.pd.AllocMR(8)
				return func() error { return o.Dereg() }, err
			},
		}},
		{"MW", []kind{kindMW}, a.MaxMW, MaxMW, []func(u user) (free, error){func(u user) (free, error) {
			o, err := u.pd.AllocMW(MW1)
			return func() error { return o.Dealloc() }, err
		}}},
		{"CQ", []kind{kindCQ}, a.MaxCQ, MaxCQ, []func(u user) (free, error){func(u user) (free, error) {
			o, err := u.CreateCQ(CQInit{Entries: 1})
			return func() error { _, err := o.Destroy(); return err }, err
		}}},
		{"QP", []kind{kindQP}, a.MaxQP, MaxQP, []func(u user) (free, error){
			func(u user) (free, error) {
				o, err := u.pd.CreateQP(QPInit{Type: RC, SendCQ: u.cq, RecvCQ: u.cq})
				return func() error { return o.Destroy() }, err
			},
			func(u user) (free, error) {
				x, err := u.AllocXRCD()
				if err != nil {
					return nil, err
				}
				o, err := x.CreateXRCTarget(nil)
				if err != nil {
					return nil, errors.Join(err, x.Close())
				}
				return func() error { return errors.Join(o.Destroy(), x.Close()) }, nil
			},
		}},
		{"SRQ", []kind{kindSRQ}, a.MaxSRQ, MaxSRQ, []func(u user) (free, error){func(u user) (free, error) {
			o, err := u.pd.CreateSRQ(SRQInit{MaxWR: 1})
			return func() error { return o.Destroy() }, err
		}}},
		{"XRCD", []kind{kindXRCD}, a.MaxXRCD, MaxXRCD, []func(u user) (free, error){func(u user) (free, error) {
			o, err := u.AllocXRCD()
			return func() error { return o.Close() }, err
		}}},
		{"AH", []kind{kindAH}, a.MaxAH, MaxAH, []func(u user) (free, error){func(u user) (free, error) {
			o, err := u.pd.CreateAH(AHAttr{DGID: GIDOf(linkLocal(nil))})
			return func() error { return o.Destroy() }, err
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.told != c.want {
				t.Errorf("%d is told, %d enforced", c.told, c.want)
			}
			d := open(t)
			var users []user
			for range 3 {
				u := user{Context: d.NewContext()}
				u.pd, _ = u.AllocPD()
				u.cq, _ = u.CreateCQ(CQInit{Entries: 1})
				users = append(users, u)
			}
			const limit = 7
			d.limits.mu.Lock()
			d.limits.small = map[kind]int{c.kinds[0]: limit}
			d.limits.mu.Unlock()
			count := func() (n int) {
				for _, u := range users {
					n += u.size(c.kinds[0])
				}
				return n
			}
			var made []free
			for i := 0; count() < limit; i++ {
				f, err := c.make[i%len(c.make)](users[i%len(users)])
				if err != nil {
					t.Fatalf("after %d: %v", count(), err)
				}
				made = append(made, f)
			}
			for round := range 20 { // full, and again after each that was freed
				for i := range 2 * len(users) {
					_, err := c.make[i%len(c.make)](users[i%len(users)])
					if !errors.Is(err, EINVAL) || count() != limit {
						t.Fatalf("one too many: %v, there are %d", err, count())
					}
				}
				if err := made[0](); err != nil {
					t.Fatal(err)
				}
				f, err := c.make[round%len(c.make)](users[round%len(users)])
				if err != nil {
					t.Fatal(err)
				}
				made = append(made[1:], f)
			}
			users[0].Close()
			users = users[1:]
			for i := 0; count() < limit; i++ {
				if _, err := c.make[0](users[i%len(users)]); err != nil {
					t.Fatalf("after the end of a context, with %d: %v", count(), err)
				}
			}
			if _, err := c.make[0](users[0]); !errors.Is(err, EINVAL) {
				t.Error(err)
			}
		})
	}
}

// What a call asks for beyond a limit is refused, and the limit itself is not.
func TestLimitsOfCalls(t *testing.T) {
	end, _ := pipe.New(pipe.Config{}, pipe.Config{})
	d, err := Open(end, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	a := d.Query()
	c := d.NewContext()
	pd, _ := c.AllocPD()
	cq, _ := c.CreateCQ(CQInit{Entries: 1})
	caps := func(k Cap) error {
		q, err := pd.CreateQP(QPInit{Type: RC, SendCQ: cq, RecvCQ: cq, Cap: k})
		if err == nil {
			err = q.Destroy()
		}
		return err
	}
	modify := func(set QPAttr, mask AttrMask) error {
		q, err := pd.CreateQP(QPInit{Type: RC, SendCQ: cq, RecvCQ: cq})
		if err != nil {
			return err
		}
		defer q.Destroy()
		q.mu.Lock()
		defer q.mu.Unlock()
		_, err = q.checkAttrs(&set, mask)
		return err
	}
	for _, v := range []struct {
		name  string
		limit int
		try   func(n int) error
	}{
		{"max_send_wr", a.MaxQPWR, func(n int) error { return caps(Cap{SendWR: n}) }},
		{"max_recv_wr", a.MaxQPWR, func(n int) error { return caps(Cap{RecvWR: n}) }},
		{"max_send_sge", a.MaxSGE, func(n int) error { return caps(Cap{SendSGE: n}) }},
		{"max_recv_sge", a.MaxSGE, func(n int) error { return caps(Cap{RecvSGE: n}) }},
		{"max_inline_data", a.MaxInline, func(n int) error { return caps(Cap{Inline: n}) }},
		{"cqe", a.MaxCQE, func(n int) error {
			q, err := c.CreateCQ(CQInit{Entries: n})
			if err == nil {
				_, err = q.Destroy()
			}
			return err
		}},
		{"max_srq_wr", a.MaxSRQWR, func(n int) error {
			s, err := pd.CreateSRQ(SRQInit{MaxWR: n})
			if err == nil {
				err = s.Destroy()
			}
			return err
		}},
		{"max_srq_sge", a.MaxSRQSGE, func(n int) error {
			s, err := pd.CreateSRQ(SRQInit{MaxWR: 1, MaxSGE: n})
			if err == nil {
				err = s.Destroy()
			}
			return err
		}},
		{"max_rd_atomic", a.MaxInitRd, func(n int) error { return modify(QPAttr{MaxRdAtomic: n}, AttrMaxRdAtomic) }},
		{"max_dest_rd_atomic", a.MaxRdAtom, func(n int) error { return modify(QPAttr{MaxDestRdAtomic: n}, AttrMaxDestRdAtomic) }},
		{"P_Keys", a.MaxPKeys, func(n int) error {
			l := make([]uint16, n)
			for i := range l {
				l[i] = uint16(i + 1)
			}
			_, err := checkPKeys(l)
			return err
		}},
		{"GID index", GIDTableLen - 1, func(n int) error { _, err := d.QueryGID(1, n); return err }},
	} {
		t.Run(v.name, func(t *testing.T) {
			for n, want := range map[int]error{v.limit: nil, v.limit + 1: EINVAL} {
				if err := v.try(n); !errors.Is(err, want) {
					t.Errorf("%d: %v, want %v", n, err, want)
				}
			}
		})
	}
	if got := fmt.Sprint(a.MaxMcastGrp, a.MaxMcastQP, a.MaxMcastTotal); got != fmt.Sprint(MaxMcastGrp, MaxMcastQP, MaxMcastTotal) {
		t.Error(got) // that they are enforced: TestMulticastLimits
	}
}
